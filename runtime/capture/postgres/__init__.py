"""Captures the changes of a Postgres table into a log: its rows as they were at one position, and all commits after it.

`messages` decodes what the server sends, `changes` makes records of it, `following` decides what is appended, confirmed
or refused; these are pure. `target` writes the log, `stream`, `slots` and `snapshot` talk to the server, `process`
runs them. Nothing here knows a job.
"""
