"""Postgres as a target: its dialect, its server, the meaning of its errors, and the public sink.

Everything that imports psycopg is here, and no code that another database could share, which is in sinks/sql.
"""
