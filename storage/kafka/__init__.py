"""Kafka as source and sink share it: where a topic is, clients, questions to the brokers, the meaning of errors.

Everything here may import confluent_kafka, the extra `kafka`. It knows neither sources nor sinks.
"""
