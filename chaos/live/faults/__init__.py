"""The faults of real runs: the scenario file, the schedule, strikes on processes, network and storage.

Nothing here judges the outcome.
"""
