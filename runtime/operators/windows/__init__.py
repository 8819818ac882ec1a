"""Aggregates per window of event time: windows with and without overlap, sessions, and how their rows of state merge.

The clock of a key group is event_clock.py's and folding is aggregates/aggregate.py's: other operators use both. Nothing
here defines windows; rows/windows.py does.
"""
