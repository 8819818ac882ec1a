"""The driver of a job: the master and its parts decide, the loop, repair and sweep act.

The master is pure: events in, state and effects out. No Spark, no command line.
"""
