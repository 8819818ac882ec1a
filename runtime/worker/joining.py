"""Join what waits for a fragment into one batch: pieces of a source partition, or frames of a channel.

A batch costs a worker the same however few rows it has, so a backlog of small ones is worked on as few large ones. They
form of what has arrived while the last one was worked on; nothing waits for more.

A watermark between two batches matters to the rows behind it if it makes them late, or if a function sees it. So a
batch is joined with those before the watermark only if none of its rows lies behind that watermark, in every column
that a step there or later compares with event time. Such a row comes to the same before and after the watermark
(`Step.compared`). A batch with a row that may be late is joined with nothing: sessions decide about such rows together.
Where a function of the user sees watermarks, nothing is joined. If several watermarks only advance, the newest
counts.

Invariants
    - Which rows are late, and every result and state at a barrier, are those of the same batches one by one.
    - A row is late, if it is, in a batch that is as it was read, or as it was sent.
    - Nothing is joined across a barrier, or a watermark by which a sender becomes quiet, idle, over or active again.
    - Rows and frames keep their order.

Pure.
Source: docs/decisions/0126-joined-batches.md, 0006-watermarks.md; PROTOCOL P9, P11.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import LAST_US, NEVER_US, Barrier, ChannelId, Watermark
from holdfast.runtime.operators.contract import MAIN, Placed, entry
from holdfast.runtime.plan.ahead import JOINED_ROWS, Read
from holdfast.runtime.plan.model import Fragment, Plan
from holdfast.runtime.plan.source import OFFSETS
from holdfast.runtime.sources.reading import Untaken
from holdfast.runtime.time.windows import times_in
from holdfast.runtime.wire.channels import Frame

JOINED_BYTES = 2 << 20
Times = NDArray[np.int64]
Passing = frozenset[str] | None
"""The columns of an input that decide whether a row may be joined across a watermark; None: none may be."""
ANY_TIME: Passing = frozenset()
"""No step there or later has to do with event time."""


def passings(plan: Plan) -> dict[tuple[int, int], Passing]:
    """Return for every fragment and port what decides whether rows may be joined across watermarks."""
    passing_by_port: dict[tuple[int, int], Passing] = {}
    for fragment in reversed(plan.fragments):
        for port in range(1 + len(fragment.further)):
            passing_by_port[fragment.index, port] = _passing(plan, fragment, port, passing_by_port)
    return passing_by_port


def _passing(plan: Plan, fragment: Fragment, port: int, later: Mapping[tuple[int, int], Passing]) -> Passing:
    if not fragment.timed(port):  # its watermarks are not looked at
        return ANY_TIME
    columns = set[str]()
    for placed_step in fragment.steps:
        if placed_step.step.sees_watermarks:
            return None
        for at, point in enumerate(placed_step.inputs):
            if point == entry(port):
                columns.update(placed_step.step.compared(at))
        if placed_step.step.sends_to is None:
            continue
        edge = plan.edges[placed_step.step.sends_to]
        behind = later[edge.to_fragment, edge.port]
        if behind is None:
            return None
        for name in behind:
            origin = _origin(fragment, placed_step.input, name, port)
            if origin is None:
                return None
            columns.update(origin)
    return frozenset(columns)


def _origin(fragment: Fragment, point: int, name: str, port: int) -> tuple[str, ...] | None:
    """Return the column of a port whose values a column at a point has, if it has those of that port.

    None: it is not known which times it has. A step that compares times makes its own; they are never behind the
    watermark that it lets through.
    """
    if point < 0:
        return (name,) if point == entry(port) else ()
    placed_step: Placed = fragment.steps[point]
    step = placed_step.step
    if any(step.compared(at) for at in range(len(placed_step.inputs))):
        return ()
    same = step.merges or step.reads_side != MAIN
    before = name if same else step.handed_on(name)
    if before is None:
        return None
    found = [_origin(fragment, each, before, port) for each in placed_step.inputs]
    if any(each is None for each in found):
        return None
    return tuple(each for names in found if names for each in names)


class Inlets:
    """The input channels of a subtask: takes frames, joined.

    Args:
        take: Takes the next frame of a channel.
        passing: By channel.
        now_us: Returns the event time of the fragment at the end of a channel: rows behind it may be late there.
    """

    def __init__(
        self,
        take: Callable[[ChannelId], Frame | None],
        passing: Mapping[ChannelId, Passing],
        now_us: Callable[[ChannelId], int],
    ) -> None:
        self._take, self._passing, self._now_us = take, passing, now_us
        self._held: dict[ChannelId, deque[Frame]] = {channel: deque() for channel in passing}
        """Frames that wait for those before them."""
        self._resting = set[ChannelId]()
        """Channels whose sender was quiet, idle or over at its last watermark."""

    def take(self, channel: ChannelId) -> Frame | None:
        """Return the next frame of a channel: a barrier, a watermark, or rows; None if none has arrived."""
        held_frames, passing = self._held[channel], self._passing[channel]
        if passing is None:
            return self._take(channel)
        batches, newest, at_us = list[pa.RecordBatch](), None, self._now_us(channel) if passing else NEVER_US
        rows = size = 0
        while (frame := held_frames.popleft() if held_frames else self._take(channel)) is not None:
            if isinstance(frame, Watermark) and self._only_advances(channel, frame):
                newest, at_us = frame, max(at_us, frame.at_us)
                continue
            if isinstance(frame, Barrier | Watermark):
                break
            alone = bool(passing) and is_behind(frame, at_us, passing)
            if (alone and (batches or newest)) or not _fits(frame, batches, size):
                break
            batches.append(frame)
            rows, size = rows + frame.num_rows, size + frame.nbytes
            if alone or rows >= JOINED_ROWS:
                frame = None
                break
        if frame is not None and newest is None and not batches:
            if isinstance(frame, Watermark):
                (self._resting.add if _rests(frame) else self._resting.discard)(channel)
            return frame
        held_frames.extendleft(each for each in (frame, newest if batches else None) if each is not None)
        if batches:
            return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return newest

    def _only_advances(self, channel: ChannelId, at: Watermark) -> bool:
        """Return whether a watermark says nothing but how far time is."""
        return not _rests(at) and channel not in self._resting


def _fits(frame: pa.RecordBatch, batches: Sequence[pa.RecordBatch], size: int) -> bool:
    """Return whether a frame can be joined with others of this size."""
    return not batches or bool(size + frame.nbytes <= JOINED_BYTES and frame.schema.equals(batches[0].schema))


def _rests(at: Watermark) -> bool:
    return at.idle or at.quiet or at.over


def is_behind(batch: pa.RecordBatch, at_us: int, columns: Iterable[str]) -> bool:
    """Return whether a time of a row is behind a watermark."""
    return any(times_in(batch, name).min(initial=LAST_US) < at_us for name in columns)


def judged(
    reads: Sequence[Read],
    offset: int,
    times: Sequence[Times] | None,
    told: Callable[[int], int | None],
    at_us: int,
    out_of_orderness_us: int,
) -> list[Untaken]:
    """Return what was read of a partition as pieces, each with what decides whether it joins those before it.

    Args:
        reads: At least one; only the last may be without records.
        offset: Where the first begins.
        times: Event times of the rows of each, if watermarks matter.
        told: Returns the watermark that the source itself reports at an offset.
        at_us: The partition's watermark before the first, or a later time: rows behind it may be late.
    """
    pieces, before, alone = list[Untaken](), None, True
    for number, chunk in enumerate(reads):
        unknown = not _offsets_known(chunk, offset)
        apart = alone or unknown or before is None or not _alike(before, chunk)
        offset, before, alone = chunk.following, chunk, unknown
        if times is None or chunk.batch is None:
            pieces.append(Untaken(chunk, apart, at_us))
            continue
        own = times[number]
        behind = int(own.min(initial=LAST_US)) < at_us
        pieces.append(Untaken(chunk, apart or behind, at_us))
        alone = unknown or behind
        last_us = max(int(own.max(initial=NEVER_US)), NEVER_US + out_of_orderness_us) - out_of_orderness_us
        at_us = max(at_us, last_us, NEVER_US if (mark := told(chunk.following)) is None else mark)
    return pieces


def together(pieces: Iterable[Untaken], rows_max: int | None, most_us: int) -> int:
    """Return how many pieces are taken as one batch, at least the first.

    Args:
        rows_max: More rows than these are not taken, unless the first has more.
        most_us: Nothing is taken once the partition's watermark is later than this.
    """
    rows = number = 0
    for number, piece in enumerate(pieces):
        if number and (piece.apart or piece.at_us > most_us):
            return number
        assert piece.read.batch is not None, "a gap is a piece of its own"
        rows += piece.read.batch.num_rows
        if number and rows_max is not None and rows > rows_max:
            return number
    return number + 1


def _alike(before: Read, read: Read) -> bool:
    if before.batch is None or read.batch is None:
        return False
    return bool(read.batch.schema.equals(before.batch.schema))


def _offsets_known(read: Read, offset: int) -> bool:
    """Return whether the offset of every row is known, where the batch begins at this one."""
    if read.batch is None:
        return False
    return bool(read.batch.schema.names[-1] == OFFSETS or read.following - offset == read.batch.num_rows)
