"""SQLite as a target: its dialect, its file, the queue of writers of one file, and the public sink.

Everything that imports sqlite3 is here, and no code that another database could share, which is in sinks/sql.
"""
