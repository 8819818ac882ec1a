"""Matches of patterns: the automaton, the state of its runs, the operator and its results.

The API for users is in rows/patterns.py; nothing here knows of plans, channels or files.
"""
