"""Event time of one source in one subtask: a watermark per partition, and the watermarks sent to the channels.

The clock decides idleness: a partition without new records for half of `idle_after` is quiet, and idle after the other
half, until its next record. A long gap between two polls does not skip a stage: a partition is quiet before it is idle.
A partition read to its sealed end never holds time back again. A partition that the run reads no further holds time at
its watermark, because records may follow in the next run; if it never had a record, it holds nothing back. If its
records have not told the time yet, it holds back everything.

Invariants
    - A watermark sent after a batch covers the batch; a partition that wakes is announced before its rows.
    - Partitions that have records are read lowest watermark first, so none runs ahead of the others.

Source: DESIGN sections 6 and 13; PROTOCOL P11, P13; docs/decisions/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model import LAST_US, NEVER_US, SourcePosition, Watermark
from holdfast.ports import Clock
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import OpenSource
from holdfast.runtime.time import watermark
from holdfast.runtime.time.event_times import times_of
from holdfast.runtime.time.windows import TIME_LAST_US, micros_of
from holdfast.runtime.wire.messages import PartitionTime

_ALIVE, _QUIET = Watermark(NEVER_US), Watermark(NEVER_US, quiet=True)
_IDLE, _OVER = Watermark(NEVER_US, idle=True), Watermark(NEVER_US, idle=True, over=True)
POLL_S = 0.05
"""How long an empty partition yields to others before it is polled again: a poll may cost a request."""


class EventTime:
    """The partitions of one source that one subtask reads.

    Args:
        positions: These partitions, with the watermarks of the checkpoint.
        send: Sends a watermark after everything that the source has emitted.
    """

    def __init__(
        self,
        spec: SourceSpec,
        opened: OpenSource,
        positions: list[SourcePosition],
        clock: Clock,
        send: Callable[[Watermark], None],
    ) -> None:
        assert spec.event_time is not None
        self._spec, self._clock, self._send = spec, clock, send
        self._opened = opened
        self._column = spec.event_time
        self._at = {p.partition: NEVER_US if p.watermark is None else p.watermark for p in positions}
        self._untold = {p.partition for p in positions if spec.watermark is not None and p.offset > 0}
        """Partitions that had records, of which none need have told the time."""
        self._silent_since: dict[int, float] = {}
        self._looked_at: dict[int, float] = {}
        self._minimum = watermark.begin(self._at)
        for partition, at_us in self._at.items():
            self._minimum, _ = watermark.reported(self._minimum, partition, Watermark(at_us))
        send(self._minimum.now)

    def begin(self, partition: int) -> None:
        """Read another partition, from its first record on; until that comes, or it is idle, time stands still."""
        self._at[partition] = NEVER_US
        self._minimum, changed = watermark.joined(self._minimum, partition)
        if changed:
            self._send(self._minimum.now)

    def turn(self, partition: int) -> tuple[bool, int]:
        """Return the sort key of a partition: lowest watermark is read first, partitions just found empty last."""
        looked_at = self._looked_at.get(partition)
        rests = looked_at is not None and self._clock.monotonic() - looked_at < POLL_S
        return rests, self._at[partition]

    def known(self, partition: int) -> int | None:
        """Return the partition's watermark, None if it has none yet."""
        at_us = self._at[partition]
        return None if at_us == NEVER_US else at_us

    def now_us(self, partition: int) -> int:
        """Return the later one of the partition's watermark and of what was sent: rows behind it may be late."""
        return max(self._at[partition], self._minimum.now.at_us)

    def is_silent(self, partition: int) -> bool:
        """Return whether the partition was last reported quiet or idle."""
        reported = self._minimum.parts[partition]
        return reported.quiet or reported.idle

    def woke(self, partition: int) -> bool:
        """Announce that the partition has records, before they are emitted; return whether anything was sent."""
        self._silent_since.pop(partition, None)
        self._looked_at.pop(partition, None)
        return self._tell(partition, _ALIVE)

    def emitted(self, partition: int, batch: pa.RecordBatch, following: int) -> None:
        """Raise the watermark by an emitted batch; the partition is read up to `following`."""
        if batch.num_rows:  # else none of the records could be decoded
            self._raise_to(partition, self._through(batch))
            if self._spec.watermark is not None:
                self._untold.add(partition)
        self._ask(partition, following)
        self._tell(partition, _ALIVE)

    def found_nothing(self, partition: int, offset: int, ended: bool) -> bool:
        """Record that a poll found no records; return whether anything was sent."""
        now = self._looked_at[partition] = self._clock.monotonic()
        if self._ask(partition, offset):
            self._silent_since.pop(partition, None)
        silent = now - self._silent_since.setdefault(partition, now)
        if ended:
            return self._tell(partition, _OVER)
        idle_after, reported = self._spec.idle_after_s, self._minimum.parts[partition]
        if silent >= idle_after and (reported.quiet or reported.idle):
            return self._tell(partition, _IDLE)
        return self._tell(partition, _QUIET if silent >= idle_after / 2 else _ALIVE)

    def rests(self, partition: int, *, idle: bool) -> None:
        """Record that the partition is quiet or idle; the caller has waited for its records."""
        self._tell(partition, _IDLE if idle else _QUIET)

    def look(self, partition: int, offset: int) -> None:
        """Ask a source that reports its time how far it is at this offset, where no poll has asked."""
        if self._ask(partition, offset):
            self._tell(partition, _ALIVE)

    def at_end(self, partition: int, ended: bool) -> None:
        """Record that this run reads the partition no further: it is sealed there, or the next run may read more."""
        if ended or (self._at[partition] == NEVER_US and partition not in self._untold):
            self._tell(partition, _OVER)

    def times(self) -> list[PartitionTime]:
        """Return how long each partition has been without records, and whether it may hold time back."""
        now, parts = self._clock.monotonic(), self._minimum.parts
        silent = {p: None if (at := self._silent_since.get(p)) is None else round(1000 * (now - at)) for p in parts}
        name = self._spec.name
        return [PartitionTime(name, p, silent[p], not (each.idle or each.over)) for p, each in parts.items()]

    def finish(self) -> None:
        """Send the last watermark: no partition has further records (P13)."""
        for partition in self._at:
            self._minimum, _ = watermark.reported(self._minimum, partition, Watermark(LAST_US))
        self._send(Watermark(LAST_US))

    def _ask(self, partition: int, offset: int) -> bool:
        """Ask the source for its watermark; return whether that advances the partition's."""
        before = self._at[partition]
        if (at_us := self._opened.watermark(partition, offset)) is not None:
            self._raise_to(partition, at_us)
        return self._at[partition] > before

    def _through(self, batch: pa.RecordBatch) -> int:
        """Return the watermark that the records of a batch give; NEVER_US if they give none."""
        if (column := self._spec.watermark) is None:
            return int(micros_of(batch.column(self._column)).max()) - self._spec.out_of_orderness_us
        at_us = pc.max(times_of(column, batch, self._spec.name, None)).value
        return NEVER_US if at_us is None else min(at_us, TIME_LAST_US)  # only the end of the input is the last one

    def _raise_to(self, partition: int, at_us: int) -> None:
        self._at[partition] = max(self._at[partition], at_us)

    def _tell(self, partition: int, how: Watermark) -> bool:
        part = replace(how, at_us=self._at[partition])
        if self._minimum.parts[partition] == part:
            return False
        self._minimum, changed = watermark.reported(self._minimum, partition, part)
        if changed:
            self._send(self._minimum.now)
        return changed
