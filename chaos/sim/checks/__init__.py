"""The rules that hold in every simulated run, checked during the run and at its end.

Checks only read the world. history.py reads the job log without the runtime's code.
"""
