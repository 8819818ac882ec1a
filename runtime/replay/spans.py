"""Ranges of a job's input: what an epoch took, and how it is cut into pieces.

Invariants
    - The pieces of a span hold each of its records once; in each partition they follow one another.
    - A span with several records is cut into at least two pieces that are smaller.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.checkpoint.manifest import Manifest

PARTS = 16
"""Pieces of a span: a million records need five rounds."""


@dataclass(frozen=True)
class Range:
    """Offsets [first, end) of one partition of a source."""

    source: str
    partition: int
    first: int
    end: int

    @property
    def offsets(self) -> int:
        """Return how many offsets it has; some may hold no record."""
        return self.end - self.first


Span = tuple[Range, ...]


def span_of(before: Manifest | None, after: Manifest) -> Span:
    """Return what an epoch took from its sources; partitions of which it took nothing have an empty range.

    Args:
        before: The manifest of the epoch that it follows; None: it is the first.
    """
    start_offsets = {} if before is None else {(at.source, at.partition): at.offset for at in before.positions}
    if after.audited is not None:  # the first offset of a new partition need not be 0
        start_offsets = {(each.source, each.partition): each.first for each in after.audited.sources} | start_offsets
    ranges = (
        Range(at.source, at.partition, start_offsets.get((at.source, at.partition), 0), at.offset)
        for at in after.positions
    )
    return tuple(sorted(ranges, key=lambda each: (each.source, each.partition)))


def offsets_in(span: Span) -> int:
    """Return how many offsets a span has."""
    return sum(each.offsets for each in span)


def cut(span: Span) -> list[Span]:
    """Return the pieces of a span, in the order in which they are played: at most `PARTS`, or one per partition.

    Long ranges are cut at the same share of each partition, as a job reads its partitions side by side. Once each range
    has one record at most, the pieces are the ranges.
    """
    longest = max((each.offsets for each in span), default=0)
    if longest <= 1:
        return [(each,) for each in span if each.offsets] or [span]
    count = min(PARTS, longest)
    return [tuple(_share(each, n, count) for each in span) for n in range(count)]


def _share(whole: Range, n: int, count: int) -> Range:
    first, end = (whole.first + whole.offsets * at // count for at in (n, n + 1))
    return replace(whole, first=first, end=end)
