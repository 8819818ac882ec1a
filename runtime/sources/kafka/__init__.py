"""Kafka as a source: what users write, the source, its consumer, messages as columns.

Its clients, and the meaning of their errors, are in storage/kafka, which a sink shares.
"""
