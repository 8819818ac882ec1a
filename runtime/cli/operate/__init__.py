"""Commands on a job by its name: status, events, explain, checkpoints, audit, rewind, savepoint, dead letters, stop.

They read the root and send requests. Changes need --apply.
"""
