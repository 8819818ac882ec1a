"""What makes a checkpoint: alignment, coordinator, job log, manifest, catalogue, timelines, recovery.

Its modules decide; only repository.py reads and writes objects. It knows neither state tables nor sinks.
"""
