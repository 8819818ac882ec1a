"""What a keyed function handles in one frame: records in their order, or due timers in the order of their times.

Taking the next event puts its key and times into the frame. An error of a dataclass, while a row is made, is raised
there, and the events after it can still be taken.

Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.runtime.operators.event_clock import Times
from holdfast.runtime.operators.process.cells import Firing, Frame, TimerCell
from holdfast.runtime.rows.windows import TIME
from holdfast.state.keys.batch import KeyType


class Events(ABC):
    """The events of one frame."""

    call: Callable[[Any], None]
    """Handles an event that was taken."""

    def __iter__(self) -> Iterator[Any]:
        return self

    @abstractmethod
    def __next__(self) -> Any:
        """Take the next event."""

    @abstractmethod
    def raw(self, keys: KeyType) -> tuple[pa.RecordBatch, int]:
        """Return a batch and its row that show the event in a dead letter."""


class Records(Events):
    """The records of a piece.

    Args:
        numbers: Of the key of every record.
        made: The rows.
        times: Event time of every record; None if the stream has none.
        clocks: Per key, or the same for all.
    """

    def __init__(
        self,
        frame: Frame,
        piece: pa.RecordBatch,
        numbers: list[int],
        made: Iterator[Any],
        times: list[int] | None,
        clocks: Times | np.int64,
        call: Callable[[Any], None],
    ) -> None:
        self._frame, self._piece, self._numbers, self._made, self._times = frame, piece, numbers, made, times
        self._clocks: list[int] | None = None
        if isinstance(clocks, np.integer):
            frame.clock_us = int(clocks)
        else:
            self._clocks = clocks.tolist()
        self.call, self._at, self._end = call, -1, len(numbers)

    def __next__(self) -> Any:
        at = self._at = self._at + 1
        if at == self._end:
            raise StopIteration
        frame = self._frame
        frame.k = k = self._numbers[at]
        if self._times is not None:
            frame.at_us = self._times[at]
        if self._clocks is not None:
            frame.clock_us = self._clocks[k]
        return next(self._made)

    def raw(self, keys: KeyType) -> tuple[pa.RecordBatch, int]:
        return self._piece, self._at


class Firings(Events):
    """The timers of one round.

    Args:
        due: Per timer: the numbers of the keys, and the times.
        last: Event time has ended.
        horizon_us: Timers set for a time up to this one fire in this round too.
        before: Event time before it advanced: per key, or the same for all.
        call: Takes the number of a timer.
    """

    def __init__(
        self,
        frame: Frame,
        timers: Sequence[TimerCell],
        due: Sequence[tuple[list[int], list[int]]],
        last: bool,
        horizon_us: int,
        before: Times | int,
        call: Callable[[int], None],
    ) -> None:
        self._frame, self._timers, self.call = frame, timers, call
        self._before = [before] * len(frame.users) if isinstance(before, int) else before.tolist()
        self._firing = frame.firing = Firing(horizon_us, last)
        self._name = ""
        for timer, (ks, times) in zip(timers, due, strict=True):
            timer.due = dict(zip(ks, times, strict=True))
            self._firing.heap += [(at, k, timer.number) for k, at in timer.due.items()]
        heapify(self._firing.heap)

    def __next__(self) -> int:
        heap, frame = self._firing.heap, self._frame
        while heap:
            at, k, number = heappop(heap)
            if self._timers[number].fired(k, at):
                frame.k, frame.at_us, frame.clock_us = k, at, max(at, self._before[k])
                self._name = self._timers[number].name
                return number
        raise StopIteration

    def raw(self, keys: KeyType) -> tuple[pa.RecordBatch, int]:
        frame = self._frame
        columns = keys.decode(frame.users.take(np.array([frame.k], np.int64)))
        fields = [*keys.fields, pa.field("timer", pa.string(), nullable=False), pa.field("at", TIME, nullable=False)]
        shown = [*columns, pa.array([self._name]), pa.array([frame.at_us]).cast(TIME)]
        return pa.RecordBatch.from_arrays(shown, schema=pa.schema(fields)), 0
