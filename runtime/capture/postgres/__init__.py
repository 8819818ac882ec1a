"""Captures the changes of a Postgres table into a log: its rows as they were at one position, and all commits after it.

`messages` decodes the server's messages, `changes` makes records of them, `following` decides which changes are
appended, confirmed or refused; these are pure. `target` writes the log, `stream`, `slots` and `snapshot` talk to the
server, `process` runs them. Nothing here knows a job.
"""
