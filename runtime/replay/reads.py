"""The batches that an epoch read from its sources and the watermarks that they sent, in order, to cut pieces along.

Pieces of a share of each partition meet in another order than the records did, and event time advances behind each of
them. So a piece that is cut along the reads holds the records that were read one after another, and event time advances
where it did. Then the same records are late in pieces and in the whole, as far as one order is that of all subtasks:
between them, reads are merged by the share that each had read.

Invariants
    - The pieces of a span hold each of its records once; in each partition they follow one another.
    - A span with several records is cut into at least two pieces that are smaller.

Pure.
Source: docs/decisions/0131-recorded-order.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import NamedTuple

from holdfast.model import Epoch, Subtask, Watermark
from holdfast.runtime.replay.script import Script
from holdfast.runtime.replay.spans import PARTS, Range, Span, offsets_in
from holdfast.runtime.worker.order import SENT, FragmentSteps, FromPartition, sent_at

Place = tuple[str, int]
"""A source and a partition."""


class Sent(NamedTuple):
    """A watermark that a source sent."""

    fragment: int
    subtask: Subtask
    at: Watermark


class Reads:
    """The reads and watermarks of an epoch.

    Args:
        items: In order; the ranges of a partition follow one another.
        senders: The subtasks that send watermarks, by fragment.
    """

    def __init__(self, items: Sequence[Range | Sent]) -> None:
        self.items = tuple(items)
        self.senders: dict[int, set[Subtask]] = {}
        for each in items:
            if isinstance(each, Sent):
                self.senders.setdefault(each.fragment, set()).add(each.subtask)

    def following(self, offsets: Mapping[Place, int], number: int) -> int:
        """Return the number of the next item: a watermark, or a range that is not read to its end.

        Args:
            offsets: How far each partition is read.
            number: The number of the first item that may be next.
        """
        while number < len(self.items) and isinstance(each := self.items[number], Range):
            if offsets.get((each.source, each.partition), each.end) < each.end:
                break
            number += 1
        return number

    def cut(self, span: Span) -> list[Span]:
        """Return the pieces of a span, in the order in which they were read: at most `PARTS`."""
        if (total := offsets_in(span)) <= 1:
            return [span]
        count = min(PARTS, total)
        ends: list[dict[Place, int]] = [{} for _ in range(count)]
        offsets = 0
        for each in self._within(span):
            first = each.first
            while first < each.end:
                number = offsets * count // total
                here = min(each.end - first, -(-(number + 1) * total // count) - offsets)
                first, offsets = first + here, offsets + here
                ends[number][each.source, each.partition] = first
        pieces, rest = list[Span](), span
        for reached in ends:
            ranges = [(each, reached.get((each.source, each.partition), each.first)) for each in rest]
            pieces.append(tuple(replace(each, end=end) for each, end in ranges))
            rest = tuple(replace(each, first=end) for each, end in ranges)
        return pieces

    def _within(self, span: Span) -> Iterator[Range]:
        """Yield the reads of a span, and behind them what none of them has: gaps at its end."""
        left = {(each.source, each.partition): each for each in span}
        for each in self.items:
            if not isinstance(each, Range):
                continue
            wanted = left.get((each.source, each.partition))
            if wanted is not None and (end := min(each.end, wanted.end)) > wanted.first:
                yield replace(wanted, end=end)
                left[each.source, each.partition] = replace(wanted, first=end)
        yield from (each for each in left.values() if each.offsets)


def reads_of(script: Script) -> Reads:
    """Return the reads that a script has."""
    items: list[Range | Sent] = []
    for epoch in script.sections:
        mine = [_of_subtask(script, Subtask(number), epoch) for number in range(script.parallelism)]
        items += _side_by_side(mine)
    return Reads(items)


def _of_subtask(script: Script, subtask: Subtask, epoch: Epoch) -> list[Range | Sent]:
    """Return the reads of a subtask in one section; those of several sources side by side."""
    steps = [
        (at, each) for (in_epoch, who, at), each in sorted(script.steps.items()) if (in_epoch, who) == (epoch, subtask)
    ]
    return _side_by_side([list(_of_fragment(each, fragment, subtask)) for fragment, each in steps])


def _side_by_side(lists: Sequence[list[Range | Sent]]) -> list[Range | Sent]:
    """Merge lists by the share of each that is done."""
    shares = [[((at + 1) / len(items), n, at) for at in range(len(items))] for n, items in enumerate(lists)]
    return [lists[n][at] for _, n, at in merge(*shares)]


def _of_fragment(steps: FragmentSteps, fragment: int, subtask: Subtask) -> Iterator[Range | Sent]:
    read_to = {number: each.first for number, each in enumerate(steps.places) if isinstance(each, FromPartition)}
    for number, amount in steps.taken():
        if number <= SENT:
            yield Sent(fragment, subtask, sent_at(number, amount))
        elif number in read_to:
            where = steps.places[number]
            assert isinstance(where, FromPartition)
            yield Range(where.source, where.partition, read_to[number], read_to[number] + amount)
            read_to[number] += amount
