"""Sinks: the contract, delivery, staging, undo, read-back for audits; the log and memory as targets.

A database has a package of its own. What all SQL databases share is in sql.
"""
