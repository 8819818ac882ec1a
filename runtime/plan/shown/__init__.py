"""A plan as people read it: text and JSON.

The modules around this folder define a plan and compile it.
"""
