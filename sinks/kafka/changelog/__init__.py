"""A Kafka topic as the place of a job's changelog: its records, their readers, and the repairs of rewinds.

Nothing about streams of rows may live here: they are in the package around this one.
"""
