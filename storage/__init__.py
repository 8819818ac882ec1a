"""Objects: conditional create on a local folder, in memory or in a bucket; hashes and digests of what they hold.

The embedded log is in log. Nothing here knows a job.
"""
