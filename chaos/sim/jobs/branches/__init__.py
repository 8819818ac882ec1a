"""Branches that the jobs of some seeds have: one module each, with its steps and the watch over its output.

A new branch is a module here, a line in registry.py, and its answer in expected/.
"""
