"""Expected output of each branch of a simulated job, in plain Python.

No module here shares code with the runtime: it knows records, numbers and lists.
"""
