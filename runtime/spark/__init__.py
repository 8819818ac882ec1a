"""Spark: worker processes as Spark tasks, epochs as Spark jobs, the data formats that Spark reads.

Everything that imports pyspark is here; what runs in a worker process is in runtime/processes.
"""
