"""Aggregates per key over all time: folding, running totals, and how their state may change between versions.

aggregate.py folds for windows and tables too, but their own packages define windows and tables, and runtime/functions
defines the results of aggregates.
"""
