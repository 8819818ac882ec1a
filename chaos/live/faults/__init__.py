"""The faults of real runs: the scenario file, the schedule, strikes on processes, network and storage.

The package judge judges the outcome.
"""
