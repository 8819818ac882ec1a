"""Captures the changes of a SQLite table into a log: its rows as of one transaction, and all transactions after it.

`triggers` has the statements by which the database keeps its changes, and is pure. `outbox` reads and removes them,
`process` runs a capture, `lock` keeps a second one waiting. Nothing here knows a job.
"""
