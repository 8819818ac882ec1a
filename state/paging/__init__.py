"""The memory of tables as files of this machine: a swap area within a budget, and images for the next process.

Files here are never durable and never the only copy. No rows, keys or epochs: a table sees a `Memory` (tables/slab.py).
"""
