"""Rows and what is computed from them: schema, row types, expressions, aggregates, windows, watermarks, dead letters.

It knows no plan, no operator and no process. Pure.
"""
