"""Lists, maps and timers of user keys, on resident tables; for operators that process whole batches.

An operator declares a table with one of the `spec` functions and wraps it. Everything durable is in the table's rows.
"""
