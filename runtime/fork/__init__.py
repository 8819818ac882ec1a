"""A fork: a new job under the same root, from a checkpoint of another one, which is only read.

What the new job is, checkpoint/forks.py decides; here its objects are copied and its log is created.
"""
