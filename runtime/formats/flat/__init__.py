"""A quick way for JSON objects of the usual kind: flat ones, of integers, floats, bools and plain strings.

It decides which objects are of that kind, and reads them. json_lines.py, which alone defines a row, reads the rest.
"""
