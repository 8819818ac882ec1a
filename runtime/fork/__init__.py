"""A fork: a new job under the same root, from a checkpoint of another one, which is only read.

checkpoint/forks.py decides the contents of the new job; this package copies its objects and creates its log.
"""
