"""The parts of a checkpoint: alignment, coordinator, job log, manifest, catalogue, timelines, recovery.

The modules decide; only repository.py reads and writes objects. No state tables and no sinks.
"""
