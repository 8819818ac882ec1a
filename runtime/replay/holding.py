"""A subtask of a replay in pieces: it reads the recorded batches in their order, and sends the recorded watermarks.

One subtask stands for all that there were. A piece may end within a batch: then event time does not advance before the
rest was read too, in this replay or in one that begins there.

Invariants
    - A batch holds records of one recorded batch alone, and those of an earlier one were read before.
    - A watermark is sent once all batches that were read before it are read; the least of all subtasks counts.

Source: docs/decisions/0131-recorded-order.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from holdfast.model import NO_EPOCH, Subtask, Watermark
from holdfast.runtime.plan.ahead import Read
from holdfast.runtime.replay.reads import Reads, Sent
from holdfast.runtime.replay.sources import divided
from holdfast.runtime.replay.spans import Range
from holdfast.runtime.sources.event_time import EventTime
from holdfast.runtime.sources.reading import Reading, Untaken
from holdfast.runtime.time import watermark
from holdfast.runtime.worker.subtask import SubtaskRun


class HeldRun(SubtaskRun):
    """The data plane of the subtask that reads recorded batches."""

    def __init__(self, reads: Reads, *args: Any, **more: Any) -> None:
        self._reads, self._number = reads, 0
        self._least: dict[int, watermark.Minimum[Subtask]] = {
            fragment: watermark.begin(sorted(senders)) for fragment, senders in reads.senders.items()
        }
        super().__init__(*args, **more)

    def _sends_to(self, index: int) -> Callable[[Watermark], None]:
        return lambda at: None

    def _read_one(self) -> bool:
        return self._send_time() or super()._read_one()

    def _next_item(self) -> Range | Sent | None:
        offsets = {(each.source, each.partition): each.offset for each in self._readings}
        self._number = self._reads.following(offsets, self._number)
        return self._reads.items[self._number] if self._number < len(self._reads.items) else None

    def _send_time(self) -> bool:
        """Send the watermarks that come next; return whether there were any."""
        is_sent = False
        while isinstance(each := self._next_item(), Sent):
            self._number += 1
            state, changed = watermark.reported(self._least[each.fragment], each.subtask, each.at)
            self._least[each.fragment] = state
            if changed:
                self.quiet, is_sent = NO_EPOCH, True
                self._forward(each.fragment, state.now)
        return is_sent

    def _in_turn(self) -> list[Reading]:
        """Return the partition of the batch that comes next."""
        if not isinstance(each := self._next_item(), Range):
            return super()._in_turn()
        return [r for r in self._readings if (r.source, r.partition) == (each.source, each.partition)]

    def _emit(self, reading: Reading, time: EventTime | None, batch: pa.RecordBatch, following: int) -> None:
        each = self._next_item()
        if isinstance(each, Range) and each.partition == reading.partition and following > each.end:
            first, rest = divided(Read(batch, following), each.end)
            if first.batch is not None and rest is not None:
                reading.rest.appendleft(Untaken(rest))
                batch, following = first.batch, first.following
        super()._emit(reading, time, batch, following)
