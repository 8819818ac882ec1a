"""Keyed functions: a user's object with state and timers per key, called with records or with whole batches.

Here live the two steps, the run-time form of their attributes, and how their state may change between versions.
Declarations of users are in runtime/functions/users/keyed_process.py; no other operator lives here.
"""
