"""SQLite as a target: transactions, tags, repair, audit, immediate writes, owners, the queue of writers.

Everything that imports sqlite3 is here. The order of deliveries is decided in sinks/delivery.py.
"""
