"""Operators, which process batches inside a fragment: intake, filters, functions, aggregates, windows.

An operator knows its tables and its output. It knows no channel, thread, file or commit.
"""
