"""What the output of each branch of a simulated job must hold, in plain Python.

No module here shares code with the runtime: it knows records, numbers and lists.
"""
