"""Reads, compares and measures stored data: a job's log, checkpoints and operator state, and embedded logs.

Only committed data is read, without the job's code, so a running job is not disturbed. Nothing here writes to a job;
`job/` reports the activity of a running job.
"""
