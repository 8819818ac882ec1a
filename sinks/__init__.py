"""Sinks: the contract, the protocol of delivery, and a room for every kind of target.

What all SQL databases share is in sql, what Delta and Iceberg share in lakehouse.
"""
