"""Formats of records as text: JSON and CSV lines to columns.

No files and no connectors.
"""
