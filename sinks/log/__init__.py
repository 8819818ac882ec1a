"""The embedded log as a target: rows, uploads, audits, and the changelog of a job's state.

The log itself is in storage/log.
"""
