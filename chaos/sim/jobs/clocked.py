"""Windows by a keyed function: in some seeds it takes the place of the window operator, and must give the same rows.

It keeps the open windows of a bucket in a map, and has one timer, for the first of them.

Source: docs/design/0065-keyed-functions.md, 0066-rounds-of-timers.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.runtime.api.stream import Stream

KEYED_SHARE = 0.16
"""Of the seeds with event time."""
OPEN = "open"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Sums:
    """The aggregates of one window."""

    n: int
    total: int
    low: int
    high: int


@dataclass
class Counted:
    """One closed window."""

    bucket: int
    window_end: datetime
    n: int
    total: int
    low: int
    high: int


class Windows(hf.KeyedProcess[Any, Counted]):
    """Aggregates per bucket and window, emitted once event time has passed the window and the lateness."""

    open = hf.Map(int, Sums)
    """By the end of the window, in seconds."""
    due = hf.Timer("event")

    def __init__(self, size_s: int, lateness_s: int) -> None:
        self.size_s, self.lateness = size_s, timedelta(seconds=lateness_s)

    def on_record(self, ctx: hf.Context, r: Any) -> None:
        end_s = ((r.at - _EPOCH) // timedelta(seconds=self.size_s) + 1) * self.size_s
        if ctx.watermark is not None and self.closes(end_s) <= ctx.watermark:
            ctx.side("late", tuple(r))
            return
        sums = self.open.get(end_s, Sums(0, 0, r.value, r.value))
        low, high = min(sums.low, r.value), max(sums.high, r.value)
        self.open.set(end_s, Sums(sums.n + 1, sums.total + r.value, low, high))
        self.due.set(self.closes(self.open.items()[0][0]))

    @due.fires
    def close(self, ctx: hf.Context) -> None:
        end_s, sums = self.open.items()[0]
        ctx.emit(Counted(ctx.key, _EPOCH + timedelta(seconds=end_s), sums.n, sums.total, sums.low, sums.high))
        self.open.remove(end_s)
        if following := self.open.items():
            self.due.set(self.closes(following[0][0]))

    def closes(self, end_s: int) -> datetime:
        """Return the time from which the window with this end is over."""
        return _EPOCH + timedelta(seconds=end_s) + self.lateness


def count_by_timers(
    records: Stream, operator: str, size_s: int, lateness_s: int, late: pa.Schema
) -> tuple[Stream, Stream]:
    """Return the results of windows and the late records."""
    windows = Windows(size_s, lateness_s)
    counted = records.key_by("bucket").process(operator, windows, to=Counted, sides={"late": late})
    return counted, counted.side("late")
