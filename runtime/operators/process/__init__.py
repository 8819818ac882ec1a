"""Keyed functions: a user's object with state and timers per key, called with records or with whole batches.

Here live the two steps, what their attributes are at run time, and how their state may change between versions. What
users declare is in runtime/functions/keyed_process.py; no other operator lives here.
"""
