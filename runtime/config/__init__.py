"""The settings of a job: one table with the name, type, limits and origin of each.

Nothing here acts on a setting; the module that does reads it from this table.
"""
