"""Aggregates: what users name in `.agg(...)`, the contract of an aggregate function, and the functions.

One module is one function or one family; registry.py lists them, and no other module names one. Nothing here knows a
table, a window or an operator: functions work on arrays. Pure.
"""
