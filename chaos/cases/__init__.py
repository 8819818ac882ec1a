"""`chaos_case`: a user's own test under faults.

The pytest hooks are in chaos/pytest_plugin.py and import this package at first use.
"""
