"""Carries out a plan: admission, takeover of the job, hosting of the driver's loop, requests while it runs.

The decisions are the driver's; this package connects them to Spark, signals and storage.
"""
