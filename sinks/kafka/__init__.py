"""Kafka as a target: transactions, the progress topic that holds tags and owners, topics, and the meaning of errors.

progress.py, encoding.py, options.py and target.py decide and are pure; client.py and topics.py alone import
confluent_kafka.
"""
