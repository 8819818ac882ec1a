"""Targets inside the process, for tests: with the same tags, with immediate writes, with repetitions.

Nothing that a job in production uses.
"""
