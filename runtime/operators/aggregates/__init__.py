"""Aggregates per key over all time: folding, running totals, and how their state may change between versions.

aggregate.py folds for windows and tables too, but what a window or a table is belongs to their packages, and what an
aggregate computes to runtime/functions.
"""
