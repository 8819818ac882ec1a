"""One worker: the pure protocol, the loop that performs its effects, and the state, output and uploads of its subtask.

Nothing of Spark and nothing of the driver; the loop runs unchanged in production, in tests and in the simulator.
"""
