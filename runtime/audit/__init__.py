"""The audit of a job: reads sources and targets back and compares them with the digests of the checkpoints.

It changes nothing, and shares no code with the operators that it checks.
"""
