"""A Kafka topic as the place of a job's changelog: its records, their readers, and the repairs of rewinds.

What may not live here: anything about streams of rows, which are in the package around this one.
"""
