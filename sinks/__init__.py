"""Sinks: the contract, the protocol of delivery, and a room for every kind of target.

Common code of all SQL databases is in sql, common code of Delta and Iceberg in lakehouse.
"""
