"""A plan as people read it: text and JSON.

What a plan is and how it is compiled is in the modules around this folder.
"""
