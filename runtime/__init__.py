"""The runtime of jobs, from the user's dataflow to the command line; one package per room.

No module lives here directly. Imports between the rooms point one way (pyproject.toml, docs/architecture.md).
"""
