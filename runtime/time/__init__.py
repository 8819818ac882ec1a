"""Event time: watermarks, windows, the calendar, triggers, bounds of joins, patterns.

No state and no operators.
"""
