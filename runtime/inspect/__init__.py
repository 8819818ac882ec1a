"""What a job has stored: log, checkpoints and the state of operators, and embedded logs: read, compared and sized.

Only what is committed is seen, without the job's code, so a running job is not disturbed. Nothing here writes to a job;
what a job is doing now is in `job/`.
"""
