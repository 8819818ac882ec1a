"""SQLite as a target: its dialect, its file, the queue of writers of one file, and the public sink.

Everything that imports sqlite3 is here, and only what no other database shares; the rest is in sinks/sql.
"""
