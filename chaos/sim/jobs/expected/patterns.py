"""Which rows of a partition match the pattern: a fall, no peak before a rise, and another fall, soon enough.

Source: docs/decisions/0069-patterns.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.chaos.sim.jobs.oracle import PARTITION_STRIDE, Input

WITHIN_US = 3_000_000
"""So short that many partial matches end by time."""
PEAK = 50
"""Half of all rises."""
Match = tuple[int, int, int]
"""The ids of its rows."""


def matches(records: Iterable[Input]) -> set[Match]:
    """Return the matches in the records of all partitions; of matches that overlap, the first to be complete."""
    by_partition: dict[int, list[Input]] = {}
    for record in sorted(records, key=lambda record: (record.at, record.id)):
        by_partition.setdefault(record.id // PARTITION_STRIDE, []).append(record)
    match_ids: set[Match] = set()
    for rows in by_partition.values():
        complete = sorted((last, first, middle) for first in range(len(rows)) for middle, last in _of(rows, first))
        through = -1
        for last, first, middle in complete:
            if first > through:
                match_ids.add((rows[first].id, rows[middle].id, rows[last].id))
                through = last
    return match_ids


def _of(rows: Sequence[Input], first: int) -> list[tuple[int, int]]:
    """Return the second and third row of the match that begins with this row, if there is one."""
    middle: int | None = None
    for number in range(first + 1, len(rows) if rows[first].value < 0 else 0):
        row = rows[number]
        if row.at >= rows[first].at + WITHIN_US or (middle is None and row.value > PEAK):
            break
        if middle is None and row.value > 0:
            middle = number
        elif middle is not None and row.value < 0:
            return [(middle, number)]
    return []
