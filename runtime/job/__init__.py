"""A job as it is now: its status and what explains it, requests to it, names of its checkpoints, dead letters.

It reads what the driver publishes, and sends requests. `SavepointNamed` is the only record that it appends to a job
log. `inspect/` reads the stored data of a job; `execution/` starts a run.
"""
