"""Sources: the log, the generator, the reading of partitions, and event time per partition.

The contract of a source is in runtime/plan/source.py. Nothing here knows workers or commits.
"""
