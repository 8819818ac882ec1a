"""The journal of a real run, and the verdict on it.

The same journal always gives the same verdict.
"""
