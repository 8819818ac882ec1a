"""Postgres as a target: its dialect, its server, the meaning of its errors, and the public sink.

Everything that imports psycopg is here, and only what no other database shares; the rest is in sinks/sql.
"""
