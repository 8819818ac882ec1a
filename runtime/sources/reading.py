"""The source partitions that one subtask reads: the position of each, and how fast it may be read.

Invariants
    - A partition with an `until` is read no further than that if a record lies before it. If the next record lies
      behind a gap that holds `until`, the batch is taken whole: no position may lie inside a gap.
    - A partition is read only in the history that its position belongs to.
    - At most one second of unused rate is saved up for a burst.

Source: DESIGN sections 6 and 13; PROTOCOL P12; docs/decisions/0008, 0022, 0035.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import Unavailable
from holdfast.model import LAST_US, NEVER_US, SourcePosition
from holdfast.ports import Clock
from holdfast.runtime.operators.contract import Arrival
from holdfast.runtime.plan.ahead import Ahead, Read, inline
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.same_source import refuse_other_sources
from holdfast.runtime.plan.source import OFFSETS, OpenSource, PartitionReader


class Untaken(NamedTuple):
    """The result of one read of a partition, in a queue of such results."""

    read: Read
    apart: bool = True
    """Whether it is a batch of its own, or the beginning of one (runtime/worker/joining.py)."""
    at_us: int = NEVER_US
    """The partition's watermark before it, if watermarks matter."""


class NotRead(NamedTuple):
    """Why a partition could not be read at the last attempt, and since when that has been so."""

    error: Unavailable
    since: float
    """The monotonic clock."""


@dataclass
class Reading:
    """One source partition of this subtask."""

    source: str
    fragment: int
    partition: int
    opened: OpenSource
    offset: int
    ended: bool = False
    watermark: int | None = None
    """As of the checkpoint; after that, see the source's EventTime."""
    until: int | None = None
    """Read no further than this offset, unless only a gap lies before it."""
    identity: str | None = None
    """Identity of the records before `identified`; None: nothing was read."""
    identified: int = 0
    ends_there: bool = False
    """The input ends at `until`, rather than only this run's reading of it."""
    goes_on: bool = False
    """The run reads further than `until`, but not now: a microbatch ends there."""
    ahead: Ahead = field(default_factory=inline)
    rest: deque[Untaken] = field(default_factory=deque)
    """The reads from `offset` on that were not taken yet."""
    lost: int = 0
    """See SourcePosition.lost."""
    reader: PartitionReader | None = None
    """None before the first poll."""
    refused: NotRead | None = None
    """None if the last poll that was answered gave records, or none that are new."""

    def poll(self, bytes_max: int) -> Read | None:
        """Return the next records, as PartitionReader.poll does."""
        if self.reader is None:
            self.reader = self.opened.reader(self.partition, self.offset, self.ahead)
        return self.reader.poll(bytes_max)

    def told(self, offset: int) -> int | None:
        """Return the watermark that the source itself reports at an offset; None: only the records show their time."""
        return self.opened.watermark(self.partition, offset)

    def failed(self, error: Unavailable, now: float) -> None:
        """Note that a poll failed. No record was taken."""
        self.refused = NotRead(error, now if self.refused is None else self.refused.since)

    def close(self) -> None:
        """Stop reading."""
        if self.reader is not None:
            self.reader.close()

    def caught_up(self) -> bool:
        """Return whether everything is read that is to be read now."""
        return self.ended or (self.until is not None and self.offset >= self.until)

    def is_over(self) -> bool:
        """Return whether this run reads the partition no further."""
        return self.ended or (self.caught_up() and not self.goes_on)

    def identify(self) -> str | None:
        """Return the identity of the history that was read from; None before the first record."""
        if self.offset != self.identified:
            self.identity = self.opened.identity(self.partition, self.offset) if self.offset > 0 else None
            self.identified = self.offset
        return self.identity

    def look_for_end(self) -> None:
        """Update whether the partition is read to its end; called when it may be."""
        at_end = self.ends_there and self.until is not None and self.offset >= self.until
        self.ended = self.ended or at_end or self.opened.ended(self.partition, self.offset)

    def found_nothing(self) -> None:
        """Lower `until` to the present end: records before it may have been taken back since it was set."""
        if self.until is not None and self.offset < self.until:
            end = self.opened.end_offsets().get(self.partition, self.until)
            self.until = max(self.offset, min(self.until, end))

    def end_at(self, offset: int) -> None:
        """End the input at this offset."""
        self.until, self.ends_there = max(offset, self.offset), True
        self.look_for_end()


@dataclass
class Throttle:
    """A token bucket: how many records a subtask may take from its sources per second."""

    rate: float | None
    clock: Clock
    _since: float = field(init=False)
    _taken: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._since = self.clock.monotonic()

    def wait_s(self) -> float:
        """Return how long to wait before the next read, 0 if reading is allowed."""
        if self.rate is None:
            return 0.0
        elapsed = self.clock.monotonic() - self._since
        if elapsed > 1.0 and self._taken < self.rate * (elapsed - 1.0):
            # At most one second of unused rate is saved up for a burst.
            self._since, self._taken = self._since + elapsed - 1.0, 0
        return max(0.0, self._taken / self.rate - (self.clock.monotonic() - self._since))

    def rows_max(self) -> int | None:
        """Return how many rows to take at most in one read, a twentieth of a second's worth."""
        return None if self.rate is None else max(1, int(self.rate / 20))

    def took(self, rows: int) -> None:
        """Count rows that were read."""
        self._taken += rows


@dataclass
class HeldBack:
    """How far sources may be read in event time while another subtask is behind (docs/decisions/0048).

    Limits lapse unless the driver repeats them, so that nothing waits for a lost driver.
    """

    clock: Clock
    _later_than: Mapping[str, int] = field(init=False, default_factory=dict)
    _lapses: float = field(init=False, default=0.0)

    def limit(self, later_than: Mapping[str, int], lasts_s: float) -> None:
        """Take the driver's limits, by source, in place of earlier ones."""
        self._later_than, self._lapses = later_than, self.clock.monotonic() + lasts_s

    def holds(self, source: str, watermark: int | None) -> bool:
        """Return whether a partition with this watermark is not to be read now; one without was never read."""
        return watermark is not None and watermark > self.most_us(source)

    def most_us(self, source: str) -> int:
        """Return the latest watermark with which partitions of a source are read now."""
        at_us = self._later_than.get(source)
        return LAST_US if at_us is None or self.clock.monotonic() >= self._lapses else at_us


def lost_range(partition: int, first: int, end: int) -> str:
    """Return the words for offsets that were removed before they were read: `first` to before `end`."""
    return (
        f"partition {partition}, offsets {first:,} to {end - 1:,} ({end - first:,}) were removed before they were read"
    )


def no_further(reading: Reading, batch: pa.RecordBatch, following: int) -> tuple[pa.RecordBatch, int]:
    """Cut off the rows from `until` on if offsets count rows; if they have gaps, take the batch whole."""
    if reading.until is None or following <= reading.until or following - reading.offset != batch.num_rows:
        return batch, following
    return batch.slice(0, reading.until - reading.offset), reading.until


def arrived(
    reading: Reading, batch: pa.RecordBatch, following: int, rows_max: int | None
) -> tuple[pa.RecordBatch, Arrival]:
    """Return which of the rows read to take, at most rows_max, and which records they are.

    The others come next.
    """
    taken, arrival = _to_take(reading, batch, following, rows_max)
    if taken.num_rows < batch.num_rows:
        reading.rest.appendleft(Untaken(Read(batch.slice(taken.num_rows), following)))
    return taken, arrival


def _to_take(
    reading: Reading, batch: pa.RecordBatch, following: int, rows_max: int | None
) -> tuple[pa.RecordBatch, Arrival]:
    records, offsets = split(batch)
    if offsets is not None:
        return _placed(reading, records, offsets, rows_max)
    if rows_max is not None and batch.num_rows > rows_max:
        following -= batch.num_rows - rows_max
        batch = batch.slice(0, rows_max)
    batch, following = no_further(reading, batch, following)
    contiguous = following - reading.offset == batch.num_rows
    return batch, Arrival(reading.partition, reading.offset, following, contiguous)


def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, NDArray[np.int64] | None]:
    """Return the records and the offset of each; None: they are contiguous, and the batch has no such column."""
    if batch.schema.names[-1] != OFFSETS:
        return batch, None
    schema = pa.schema(list(batch.schema)[:-1])
    return pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema), np.asarray(batch.columns[-1])


def _placed(
    reading: Reading, records: pa.RecordBatch, offsets: NDArray[np.int64], rows_max: int | None
) -> tuple[pa.RecordBatch, Arrival]:
    """Do the same if every row carries its offset. If all rows lie behind `until`, take them whole."""
    rows = len(offsets) if reading.until is None else int(np.searchsorted(offsets, reading.until)) or len(offsets)
    rows = rows if rows_max is None else min(rows, rows_max)
    offsets = offsets[:rows]
    arrival = Arrival(reading.partition, int(offsets[0]), int(offsets[-1]) + 1, False, offsets)
    return records.slice(0, rows), arrival


def open_readings(
    plan: Plan,
    positions: tuple[SourcePosition, ...],
    opened: Mapping[str, OpenSource],
    until: tuple[SourcePosition, ...] = (),
    ahead: Callable[[str], Ahead] = lambda _source: inline(),
) -> list[Reading]:
    """Return the partitions to read; an unknown position (-1) is the partition's first record.

    Args:
        ahead: How the readers of a source read in the background; they share its answer.

    Raises:
        Damaged: a source is not the one whose records were read up to these positions.
    """
    refuse_other_sources(plan.app, positions, opened)
    fragments = {spec.name: spec.fragment for spec in plan.sources}
    ends = {(at.source, at.partition): at.offset for at in until}
    readings = []
    for at in positions:
        source = opened[at.source]
        offset = source.retention_start(at.partition) if at.offset < 0 else at.offset
        end = ends.get((at.source, at.partition))
        at_end = end is not None and offset >= end and source.ended(at.partition, offset)
        identity = at.identity if at.offset > 0 else None
        reading = Reading(
            at.source,
            fragments[at.source],
            at.partition,
            source,
            offset,
            at_end,
            at.watermark,
            end,
            identity,
            identified=0 if identity is None else offset,
            ahead=ahead(at.source),
            lost=at.lost,
        )
        reading.identify()  # a checkpoint of an older version has no identity: take the present one
        readings.append(reading)
    return readings
