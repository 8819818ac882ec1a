"""Spark and the network: worker processes as Spark tasks, authenticated and encrypted streams between them.

Everything that imports pyspark or opens a socket for the job is here; decisions are elsewhere.
"""
