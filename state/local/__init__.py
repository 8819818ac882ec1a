"""State on the local disk, so that a restart reads little from the root: images of tables, copies of sealed objects.

What is here is never needed: a worker without it restores from the root. Nothing here knows an operator or an epoch's
fate.
"""
