"""Resident tables: columns by slot, index, deltas, expiry.

They take a whole batch at a time, and are pure. They know neither segments nor files.
"""
