"""Spark: worker processes as Spark tasks, epochs as Spark jobs, the data formats that Spark reads.

Everything that imports pyspark is here; the code of worker processes is in runtime/processes.
"""
