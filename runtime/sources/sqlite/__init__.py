"""`hf.SQLiteChanges`: the configuration of a captured table, its columns and its description by the database.

Nothing here reads changes, or writes the log: see runtime/capture/sqlite. `table` is pure, `catalogue` asks a database.
"""
