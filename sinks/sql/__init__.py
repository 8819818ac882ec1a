"""SQL as a target, written once: delivery, repair, audit, immediate writes, for any database with a dialect.

dialect.py is the contract that a database fulfils. Nothing here imports a driver, opens a connection by itself or names
a database.
"""
