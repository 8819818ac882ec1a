"""A job as it is now: its status and the explanation, requests to it, names of its checkpoints, dead letters.

It reads the driver's published status, and sends requests. `SavepointNamed` is the only record that it appends to a job
log. `inspect/` reads the stored data of a job; `execution/` starts a run.
"""
