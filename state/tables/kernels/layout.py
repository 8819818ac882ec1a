"""The numbers that Python and kernels share: control words of a table, flags of a record, operations of a program.

A record is `[key words][state word][values]`, one int64 per word. The key of fixed width has one word per column, and a
word of null bits if a column is nullable. Any other key has three: its xxh3-64, and offset and length of its canonical
bytes in the arena. The state word holds the flags.

An entry of the index is `tag << 32 | slot + 1`, 0 if it is empty. The tag is the upper 31 bits of the key's hash; its
upper bits are the entry's home. So neither growing nor deleting reads a record of another key.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from enum import IntEnum


class Control(IntEnum):
    """Positions in the array of a table's numbers, which kernels read and write."""

    BITS = 0  # the index has 1 << BITS entries
    OLD_BITS = 1  # this many has the generation that is being moved
    START = 2  # the entry at which moving began
    MOVED = 3  # entries that have been moved from there on; -1: no generation is moving
    COUNT = 4  # keys in the index
    HIGH = 5  # slots ever used; those of dropped records are in the free list
    FREE = 6  # slots in the free list
    OPENED = 7  # slots touched since the last barrier
    ARENA = 8  # bytes used in the arena
    VOID = 9  # bytes in the arena that no record names
    SEED = 10  # of the index's hash
    MASK = 11  # of the index's hash; tests let hashes collide
    BORN = 12  # records created by the last call
    WORDS = 13  # per record
    KEY = 14  # words of the key
    TEXT = 15  # 1: the key's bytes are in the arena
    DIRTY = 16  # the flag of records written since the last barrier
    COPIES = 17  # where the copies of frozen records are
    COPIED_SLOTS = 18  # where the list of their slots is
    COPIED = 19  # copies made
    KNOWN = 20  # a frozen record with none of these flags is not copied; 0: all are
    WITHOUT = 21  # a frozen record with one of these flags is not copied
    VALUES = 22  # words of a record's values
    FIELDS = 23


class TablePart(IntEnum):
    """Where the parts of a table are: positions in the array of addresses that kernels get."""

    RECORDS = 0
    SIZE = 1  # words that the records have room for
    ENTRIES = 2
    OLD = 3
    CONTROL = 4
    FREE = 5
    OPENED = 6
    ARENA = 7
    DEFAULTS = 8
    VALUES = 9  # how many values a record has


class KeyPart(IntEnum):
    """Where the parts of a batch's keys are: positions in the array of addresses that kernels get."""

    COLUMNS = 0  # how many arrays of words follow FIRST; text keys have one, their xxh3
    STARTS = 1  # of the bytes of each text key
    LENGTHS = 2
    DATA = 3  # the bytes of all text keys
    FIRST = 4


class Flag(IntEnum):
    """Bits of a record's state word; 0 is a free slot."""

    WORKING = 1 << 0  # the key exists now
    COMMITTED = 1 << 1  # existed at the last commit
    EVEN = 1 << 2  # EVEN and ODD change roles at every barrier: Control.DIRTY marks records written since, the other
    # one those that the barrier froze and that are not copied yet
    ERASED = 1 << 4  # absent because it expired
    USED = 1 << 5  # the slot holds a key
    PINNED = 1 << 7  # while vacant records are dropped: an unfinished epoch names it
    ODD = 1 << 8


DIRTY = Flag.EVEN | Flag.ODD
"""Flags of records that are written since the last barrier, or frozen by it and not copied yet."""
BLOCK_ROWS = 256
"""Rows whose records fit the first-level cache together."""
SCRATCH_GAP = 24
"""Words between the parts of a kernel's scratch, so that they do not lie in the same lines of the cache."""
MOVED_PER_BLOCK = 1_024
"""Entries that a block moves. A block inserts at most BLOCK_ROWS keys. So the old generation, half full when moving
begins, fills to five eighths at most, and the new one, twice as large, to three eighths."""


class Do(IntEnum):
    """Operations of a program."""

    COUNT = 0
    SET = 1
    ADD_INT = 2
    MIN_INT = 3
    MAX_INT = 4
    MIN_UINT = 5
    MAX_UINT = 6
    ADD_FLOAT = 7
    MIN_FLOAT = 8
    MAX_FLOAT = 9
    MIN_FLOAT32 = 10
    MAX_FLOAT32 = 11

    @property
    def floating(self) -> bool:
        """Return whether it reads values as doubles; it reads integers otherwise, or none."""
        return self >= Do.ADD_FLOAT

    @property
    def merging(self) -> Do:
        """Return the operation that merges two of its results."""
        return Do.ADD_INT if self == Do.COUNT else self


OPERATION, WORD, INPUT, SHIFT = range(4)
"""Columns of a program: a Do; the word of the record; the column of the input, or of the result of a merge; 64 less the
bits of a small signed integer, from whose low bytes the state is read."""
PROGRAM_FIELDS = 4
