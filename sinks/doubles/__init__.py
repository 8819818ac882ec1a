"""Targets in memory for tests and the simulator that are written immediately, or that take rows again.

Targets of users are in the folders of their technology.
"""
