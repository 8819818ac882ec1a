"""`hf.PostgresChanges`: the configuration of a captured table, its columns and its description by the server.

Nothing here reads changes, or writes the log: see runtime/capture/postgres. `columns` and `table` are pure, `catalogue`
asks a server.
"""
