"""The state that a worker or a task keeps on the local disk, and how the next one opens it.

No layout of files, which is in state/local; no decision about epochs.
"""
