"""Event time of one source in one subtask: a watermark per partition, and what the channels are told.

Idleness is by clock: a partition in which nothing was found for half of `idle_after` is quiet, and idle after the rest
of it, until its next record. Time that passed while it was not looked at does not count twice: it is quiet before it is
idle. A partition that was read to its sealed end holds nothing back ever again. Where a run reads no further, it holds
time where it is, as records may follow in the next run; if it never had one, it holds nothing back.

Invariants
    - What is sent behind a batch covers the batch; a partition that wakes is announced before its rows.
    - Partitions that have records are read lowest watermark first, so none runs ahead of the others.

Source: DESIGN sections 6 and 13; PROTOCOL P11, P13; docs/design/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from holdfast.model import LAST_US, NEVER_US, SourcePosition, Watermark
from holdfast.ports import Clock
from holdfast.runtime import watermark
from holdfast.runtime.messages import PartitionTime
from holdfast.runtime.steps import SourceSpec

_ALIVE, _QUIET = Watermark(NEVER_US), Watermark(NEVER_US, quiet=True)
_IDLE, _OVER = Watermark(NEVER_US, idle=True), Watermark(NEVER_US, idle=True, over=True)
POLL_S = 0.05
"""How long a partition in which nothing was found lets others go first: to look again may cost a request."""


@runtime_checkable
class TellsTime(Protocol):
    """An open source that knows more about event time than its records show."""

    def watermark(self, partition: int, offset: int) -> int | None:
        """Return up to which time, in microseconds since 1970, no record follows at or after the offset."""


class EventTime:
    """The partitions of one source that one subtask reads.

    Args:
        positions: These partitions, with the watermarks of the checkpoint.
        send: Puts a watermark behind everything that the source has emitted.
    """

    def __init__(
        self,
        spec: SourceSpec,
        opened: object,
        positions: list[SourcePosition],
        clock: Clock,
        send: Callable[[Watermark], None],
    ) -> None:
        assert spec.event_time is not None
        self._spec, self._clock, self._send = spec, clock, send
        self._told = opened if isinstance(opened, TellsTime) else None
        self._column = spec.source.schema.get_field_index(spec.event_time)
        self._at = {p.partition: NEVER_US if p.watermark is None else p.watermark for p in positions}
        self._silent_since: dict[int, float] = {}
        self._looked_at: dict[int, float] = {}
        self._minimum = watermark.begin(self._at)
        for partition, at_us in self._at.items():
            self._minimum, _ = watermark.told(self._minimum, partition, Watermark(at_us))
        send(self._minimum.now)

    def turn(self, partition: int) -> tuple[bool, int]:
        """Return what partitions are read in the order of: lowest watermark first, those just found empty last."""
        looked_at = self._looked_at.get(partition)
        rests = looked_at is not None and self._clock.monotonic() - looked_at < POLL_S
        return rests, self._at[partition]

    def known(self, partition: int) -> int | None:
        """Return the partition's watermark, None if it has none yet."""
        at_us = self._at[partition]
        return None if at_us == NEVER_US else at_us

    def woke(self, partition: int) -> bool:
        """The partition has records, which are not emitted yet."""
        self._silent_since.pop(partition, None)
        self._looked_at.pop(partition, None)
        return self._tell(partition, _ALIVE)

    def emitted(self, partition: int, batch: pa.RecordBatch, following: int) -> None:
        """The batch was emitted; the partition is read up to `following`."""
        if batch.num_rows:  # else none of the records could be decoded
            times = batch.column(self._column)
            micros = np.frombuffer(times.buffers()[1], np.int64, len(times), times.offset * 8)
            self._raise_to(partition, int(micros.max()) - self._spec.out_of_orderness_us)
        self._ask(partition, following)
        self._tell(partition, _ALIVE)

    def found_nothing(self, partition: int, offset: int, ended: bool) -> bool:
        """Nothing was there to read; return whether anything was sent."""
        now = self._looked_at[partition] = self._clock.monotonic()
        if self._ask(partition, offset):
            self._silent_since.pop(partition, None)
        silent = now - self._silent_since.setdefault(partition, now)
        if ended:
            return self._tell(partition, _OVER)
        idle_after, told = self._spec.idle_after_s, self._minimum.parts[partition]
        if silent >= idle_after and (told.quiet or told.idle):
            return self._tell(partition, _IDLE)
        return self._tell(partition, _QUIET if silent >= idle_after / 2 else _ALIVE)

    def at_end(self, partition: int, ended: bool) -> None:
        """This run reads the partition no further; it is sealed there, or more may follow in the next run."""
        if ended or self._at[partition] == NEVER_US:
            self._tell(partition, _OVER)

    def times(self) -> list[PartitionTime]:
        """Return of each partition for how long nothing was found, and whether it may hold time back."""
        now, parts = self._clock.monotonic(), self._minimum.parts
        silent = {p: None if (at := self._silent_since.get(p)) is None else round(1000 * (now - at)) for p in parts}
        name = self._spec.name
        return [PartitionTime(name, p, silent[p], not (each.idle or each.over)) for p, each in parts.items()]

    def finish(self) -> None:
        """No record follows anywhere: send the last watermark (P13)."""
        for partition in self._at:
            self._minimum, _ = watermark.told(self._minimum, partition, Watermark(LAST_US))
        self._send(Watermark(LAST_US))

    def _ask(self, partition: int, offset: int) -> bool:
        """Take what the source tells of event time; return whether that moves the partition's."""
        before = self._at[partition]
        if self._told is not None and (at_us := self._told.watermark(partition, offset)) is not None:
            self._raise_to(partition, at_us)
        return self._at[partition] > before

    def _raise_to(self, partition: int, at_us: int) -> None:
        self._at[partition] = max(self._at[partition], at_us)

    def _tell(self, partition: int, how: Watermark) -> bool:
        part = replace(how, at_us=self._at[partition])
        if self._minimum.parts[partition] == part:
            return False
        self._minimum, changed = watermark.told(self._minimum, partition, part)
        if changed:
            self._send(self._minimum.now)
        return changed
