"""State on the local disk, so that a restart reads little from the root: images of tables, copies of sealed objects.

These files are optional: a worker without them restores from the root. Nothing here knows an operator or an epoch's
fate.
"""
