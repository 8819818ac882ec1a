"""The state of operators as checkpoints hold it, and logs: read, compared and sized without the job's code.

Only stored checkpoints are read, so a running job is not disturbed and only committed values are seen. Nothing here
writes to a job.
"""
