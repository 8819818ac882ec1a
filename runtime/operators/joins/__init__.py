"""The join of two streams of facts, and the rows that it keeps while they may still find a partner.

Operators over tables keep rows by rows.py as well, but their look-ups, groups and searches are in tables/.
"""
