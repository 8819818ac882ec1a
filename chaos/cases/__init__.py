"""`chaos_case`: a user's own test under faults.

The pytest hooks are in chaos/pytest_plugin.py; they import this package at first use.
"""
