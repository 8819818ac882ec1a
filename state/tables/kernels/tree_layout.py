"""The numbers that Python and the kernels of ordered indexes share: control words of a tree, parts of bounds.

A node is `[entries used][next leaf][previous leaf][unused]` and its entries, one int64 per word. An entry of a leaf is
`[sort words][slot]`; an inner entry is a copy of the first entry of a child, and the child's number after it.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from enum import IntEnum

LEAF_ENTRIES = 32
LEVELS_MAX = 24
"""More than any tree has: an inner node splits only when it holds at least this many halves of entries."""
NODE_HEADER = 4
NONE = -1
"""No node."""


class Tree(IntEnum):
    """Positions in the array of a tree's numbers, which kernels read and write."""

    ROOT = 0
    LEVELS = 1  # 1: the root is a leaf
    HIGH = 2  # nodes ever used; freed ones are in a list
    FREE = 3  # the first free node, whose next one is its "next leaf"
    USED = 4  # nodes in the tree
    COUNT = 5  # entries of all leaves
    ROOM = 6  # nodes that there is memory for
    WORDS = 7  # sort words of an entry
    TEXT = 8  # 1: canonical bytes decide between equal words
    INNER = 9  # entries that an inner node has room for
    NODE = 10  # words of a node
    PATH = 11  # scratch: inner node and number of the child taken, by level
    FIELDS = 11 + 2 * LEVELS_MAX


class Bounds(IntEnum):
    """Where the parts of a batch of bounds are: positions in the array that kernels get."""

    WORDS = 0  # where the words of the first bound are; those of the next one follow
    COUNT = 1  # words of a bound; an entry is compared by these alone
    ABOVE = 2  # 1: a bound is after the entries that are equal to it, 0: before them
    DATA = 3  # where the canonical bytes of all bounds are, 0: only words are compared
    STARTS = 4
    LENGTHS = 5
    FIELDS = 6
