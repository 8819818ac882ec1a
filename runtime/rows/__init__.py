"""Rows: schema, row types, expressions, types of state, dead letters.

No time, no format of records and no aggregate; it knows no plan, no operator and no process. Pure.
"""
