"""Functions that users write, and their calls: aggregates in Python, keyed functions with state and timers. Pure."""
