"""Events that a keyed function handles in one frame: records in their order, or due timers in the order of their times.

Taking the next event puts its key and times into the frame. An error of a dataclass, while a row is made, is raised
there, and the events after it can still be taken.

Events end early when the turn is overdue; at least one can always be taken.

Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.runtime.functions.users.keyed_process import EVENT
from holdfast.runtime.operators.event_clock import Times
from holdfast.runtime.operators.process.cells import Firing, Frame, TimerCell
from holdfast.runtime.operators.time_slice import LOOK_AFTER_MAX
from holdfast.runtime.time.windows import TIME
from holdfast.state.keys.batch import KeyType


class Events(ABC):
    """The events of one frame."""

    call: Callable[[Any], None]
    """Handles an event that was taken."""

    def __init__(self, overdue: Callable[[], bool], most: int) -> None:
        self._overdue, self._most, self._look = overdue, most, min(1, most)

    def over(self, taken: int) -> bool:
        """Return whether no other event may be taken after this many; called when `taken` has reached `_look`."""
        if taken == self._most or self._overdue():
            return True
        self._look = min(self._most, taken + min(taken, LOOK_AFTER_MAX))
        return False

    @property
    @abstractmethod
    def taken(self) -> int:
        """How many events were taken, once they have ended."""

    def __iter__(self) -> Iterator[Any]:
        return self

    @abstractmethod
    def __next__(self) -> Any:
        """Take the next event."""

    @abstractmethod
    def raw(self, keys: KeyType) -> tuple[pa.RecordBatch, int]:
        """Return a batch and its row that show the event in a dead letter."""


class RecordEvents(Events):
    """The records of a piece.

    Args:
        numbers: The number of every record's key.
        made: The rows.
        times: Event time of every record; None if the stream has none.
        clocks: Per key, or the same for all.
        overdue: Whether the turn has lasted too long.
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
        overdue: Callable[[], bool],
    ) -> None:
        super().__init__(overdue, len(numbers))
        self._frame, self._piece, self._numbers, self._made, self._times = frame, piece, numbers, made, times
        self._clocks: list[int] | None = None
        if isinstance(clocks, np.integer):
            frame.clock_us = int(clocks)
        else:
            self._clocks = clocks.tolist()
        self.call, self._at = call, -1

    @property
    def taken(self) -> int:
        return self._at

    def __next__(self) -> Any:
        at = self._at = self._at + 1
        if at == self._look and self.over(at):
            raise StopIteration
        frame = self._frame
        frame.k = k = self._numbers[at]
        if self._times is not None:
            frame.at_us = self._times[at]
        if self._clocks is not None:
            frame.clock_us = self._clocks[k]
        try:
            return next(self._made)
        except StopIteration as error:  # of a dataclass; rows end above
            raise RuntimeError("StopIteration while a row was made") from error

    def raw(self, keys: KeyType) -> tuple[pa.RecordBatch, int]:
        return self._piece, self._at


class Firings(Events):
    """The timers of one round: those that are due, and those that handlers set for a time that is due too.

    Args:
        clock: That of the timers.
        timers: Those of this clock.
        due: Per timer: the numbers of the keys, and the times. Every timer that is due and not among them comes after
            the first `most` of them.
        through_us: The watermark, or the processing time.
        before: Event time before it advanced, which timers of processing time do not: per key, or the same for all.
        call: Takes the number of a timer.
        overdue: Whether the turn has lasted too long.
        most: Take at most this many; the others stay in `TimerCell.due`.
    """

    def __init__(
        self,
        frame: Frame,
        clock: str,
        timers: Sequence[TimerCell],
        due: Sequence[tuple[list[int], list[int]]],
        through_us: int,
        before: Times | int,
        call: Callable[[int], None],
        overdue: Callable[[], bool],
        most: int,
    ) -> None:
        super().__init__(overdue, most)
        self._frame, self._timers, self.call, self._taken = frame, {each.number: each for each in timers}, call, 0
        self.fired: list[int] = []
        """The number of the key of every timer that fired."""
        self._before = [before] * len(frame.users) if isinstance(before, int) else before.tolist()
        self._firing, self._of_event_time = Firing(clock, through_us), clock == EVENT
        frame.firing = self._firing
        self._name = ""
        for timer, (ks, times) in zip(timers, due, strict=True):
            timer.due = dict(zip(ks, times, strict=True))
            self._firing.heap += [(at, k, timer.number) for k, at in timer.due.items()]
        heapify(self._firing.heap)

    @property
    def taken(self) -> int:
        return self._taken

    def __next__(self) -> int:
        heap, frame = self._firing.heap, self._frame
        while heap:
            if self._taken == self._look and self.over(self._taken):
                break
            at, k, number = heappop(heap)
            self._taken += 1  # also of a timer that was cleared: those that are not in the heap come later
            if self._timers[number].fired(k, at):
                self.fired.append(k)
                frame.k, frame.clock_us, self._firing.at_us = k, self._before[k], at
                if self._of_event_time:
                    frame.at_us, frame.clock_us = at, max(at, frame.clock_us)
                self._name = self._timers[number].name
                return number
        raise StopIteration

    def raw(self, keys: KeyType) -> tuple[pa.RecordBatch, int]:
        frame, at_us = self._frame, self._firing.at_us
        columns = keys.decode(frame.users.take(np.array([frame.k], np.int64)))
        fields = [*keys.fields, pa.field("timer", pa.string(), nullable=False), pa.field("at", TIME, nullable=False)]
        shown = [*columns, pa.array([self._name]), pa.array([at_us]).cast(TIME)]
        return pa.RecordBatch.from_arrays(shown, schema=pa.schema(fields)), 0
