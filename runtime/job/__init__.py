"""A job as seen from outside: status, explanation, requests, names of checkpoints, dead letters.

It reads what the driver publishes and asks by requests; it never changes the job log of a running job.
"""
