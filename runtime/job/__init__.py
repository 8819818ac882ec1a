"""A job as seen from outside: status, explanation, requests, names of checkpoints, dead letters.

It reads the files that the driver publishes, and sends requests. `SavepointNamed` is the only record that it appends
to a job log.
"""
