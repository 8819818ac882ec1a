"""Functions over rows: aggregates that users name in `.agg(...)`, their contract, and keyed functions that users write.

One module is one function or one family; registry.py lists the aggregates, and no other module names one. Nothing here
knows a table, a window or an operator: functions work on arrays. Pure.
"""
