"""SQL as a target, written once: delivery, repair, audit, immediate writes, for any database with a dialect.

dialect.py is the contract that a database fulfils. Nothing here imports a driver, names a database, or opens a
connection except through a dialect.
"""
