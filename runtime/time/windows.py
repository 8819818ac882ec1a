"""Windows over event time, and the slices that they consist of.

A tumbling window is the interval [start, start + size). Starts are multiples of the size, counted from 1970 and shifted
by the offset. Every record is in exactly one window. Hopping windows start at multiples of a shorter time and overlap.

State is kept per slice: the time between two neighbouring bounds of windows. So a record is folded once, however many
windows hold it, and the results of a window are merged from those of its slices. Without overlap, slices are windows.

Invariants
    - start <= time < end, also for times before 1970.
    - A slice is in `overlap` windows; their ends are its own end and the next ones, `every_us` apart.
    - Targets can hold the bounds of every window that a record is assigned to; other event times are refused first
      (intake.py by the source's policy, the operators for times that a function returned).

Pure.
Source: API.md (windows); docs/decisions/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.arguments import checked, position
from holdfast.errors import ConfigError
from holdfast.model import NEVER_US
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.spec import ColumnSpec

WINDOW_START, WINDOW_END = "window_start", "window_end"
TIME = pa.timestamp("us", tz="UTC")
"""The only type of event time; without a time zone it would not be a point in time."""

END_COLUMN = ColumnSpec(WINDOW_END, np.dtype(np.int64))
"""The end of the window, repeated beside the values so that a scan finds it without decoding keys."""
CLOCK_KEY = KeyType(("key_group",), (pa.int64(),))
CLOCK_COLUMNS = (ColumnSpec("at", np.dtype(np.int64), NEVER_US),)
"""One row per key group: the watermark up to which its windows are closed."""
_SHOWN = ("size_us", "gap_us", "unit", "tz")
"""Parts of an identity that a job's code gives without a name."""
_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}


TIME_FIRST_US, TIME_LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Years 1 to 9999, which every target can hold."""
OVERLAP_MAX = 10_000
"""Limit on the windows that hold one record: that many results follow from it."""
LENGTH_MAX_US = 365_000 * 86_400_000_000
"""Limit on a window with its lateness: a thousand years, so that bounds are far from the ends of int64."""


@runtime_checkable
class Windows(Protocol):
    """A way to divide event time into windows. State identifies a slice by its end."""

    kind: ClassVar[str]
    """A part of the identity of state."""
    merging: ClassVar[bool]
    """Whether windows of one key that touch become one, with merged aggregates."""
    per_record: ClassVar[bool]
    """Whether every record has its own window, which ends with it."""

    @property
    def time_of_results(self) -> str:
        """The result column that is the event time of the results."""

    @property
    def size_us(self) -> int:
        """The size of the longest window in microseconds."""

    @property
    def overlap(self) -> int:
        """How many windows hold a record."""

    @property
    def every_us(self) -> int:
        """The time from the end of a window to that of the next that holds the same records."""

    def slices(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the end of the slice of each event time."""

    def starts(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the starts of the windows that have these ends."""

    def identity(self) -> dict[str, Any]:
        """Return the kind of the windows and its parameters as JSON-able values."""

    def shown(self) -> str:
        """Return the windows as text for messages."""


@dataclass(frozen=True)
class Tumbling:
    """Windows of one size without gaps or overlaps; microseconds."""

    size_us: int
    offset_us: int = 0

    kind: ClassVar[str] = "tumbling"
    merging: ClassVar[bool] = False
    per_record: ClassVar[bool] = False
    time_of_results: ClassVar[str] = WINDOW_START
    overlap: ClassVar[int] = 1

    @property
    def every_us(self) -> int:
        return self.size_us

    def slices(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        return next_multiples(times, self.size_us, self.offset_us)

    def starts(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        return ends - self.size_us

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "size_us": self.size_us, "offset_us": self.offset_us}

    def shown(self) -> str:
        return window_text(self.identity())

    def __str__(self) -> str:
        """Return the text that checkpoints of older versions compare windows by."""
        return f"tumbling({self.size_us}us, offset={self.offset_us}us)"


@dataclass(frozen=True)
class Hopping:
    """Windows of one size that overlap: one starts at every multiple of `every_us`, which divides the size."""

    size_us: int
    every_us: int

    kind: ClassVar[str] = "hopping"
    merging: ClassVar[bool] = False
    per_record: ClassVar[bool] = False
    time_of_results: ClassVar[str] = WINDOW_START

    @property
    def overlap(self) -> int:
        return self.size_us // self.every_us

    def slices(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        return next_multiples(times, self.every_us)

    def starts(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        return ends - self.size_us

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "size_us": self.size_us, "every_us": self.every_us}

    def shown(self) -> str:
        return window_text(self.identity())


@dataclass(frozen=True)
class SessionWindows:
    """Windows of one key that end `gap_us` after their last record; records no farther apart are in one window."""

    gap_us: int

    kind: ClassVar[str] = "session"
    merging: ClassVar[bool] = True
    per_record: ClassVar[bool] = False
    time_of_results: ClassVar[str] = WINDOW_END
    overlap: ClassVar[int] = 1

    @property
    def size_us(self) -> int:
        """The size of a window of one record: a window may be longer by any time."""
        return self.gap_us

    @property
    def every_us(self) -> int:
        return self.gap_us

    def slices(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the end that each record alone gives its window."""
        return times + self.gap_us

    def starts(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        return ends - self.gap_us

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "gap_us": self.gap_us}

    def shown(self) -> str:
        return window_text(self.identity())


@dataclass(frozen=True)
class Sliding:
    """Windows (time - size, time], one for every record, of its event time; a slice is one event time."""

    size_us: int

    kind: ClassVar[str] = "sliding"
    merging: ClassVar[bool] = False
    per_record: ClassVar[bool] = True
    time_of_results: ClassVar[str] = WINDOW_END
    overlap: ClassVar[int] = 1

    @property
    def every_us(self) -> int:
        return self.size_us

    def slices(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the end of the window of each record."""
        return times

    def starts(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        return ends - self.size_us

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "size_us": self.size_us}

    def shown(self) -> str:
        return window_text(self.identity())


def next_multiples(times: NDArray[np.int64], step_us: int, offset_us: int = 0) -> NDArray[np.int64]:
    """Return the first multiple of a step, shifted by the offset, after each time."""
    since = np.mod(times - offset_us, step_us)  # never negative
    ends: NDArray[np.int64] = times - since + step_us
    return ends


def assigned(windows: Windows, times: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """Return every pair of a record and a window that holds it, in the order of the records.

    Returns:
        The numbers of the records and the ends of the windows; None instead of numbers if windows do not overlap.
    """
    ends = windows.slices(times)
    if windows.overlap == 1:
        return None, ends
    further = np.arange(windows.overlap) * windows.every_us
    return np.repeat(np.arange(times.size), windows.overlap), (ends[:, None] + further).ravel()


def window_text(window: Mapping[str, Any]) -> str:
    """Return the windows of an identity as text for messages."""
    names = {"offset_us": "offset", "every_us": "every"}
    lengths = [f"{names[part]}={span(window[part])}" for part in names if window.get(part)]
    shown = [str(value) if isinstance(value, str) else span(value) for part, value in window.items() if part in _SHOWN]
    return f"{window['kind']}({', '.join(shown + lengths)})"


def span(us: int) -> str:
    """Return a duration exactly, in the form that a job's code gives: "90s", "1h", "250ms"."""
    for unit, size_us in _UNITS_US.items():
        if us % size_us == 0 and us:
            return f"{us // size_us}{unit}"
    return f"{us}us" if us else "0s"


def event_times_held(windows: Iterable[tuple[Windows, int]]) -> tuple[int, int]:
    """Return the first and the last event time whose window, with its lateness, targets can hold.

    Args:
        windows: The windows that the times are assigned to, each with its lateness in microseconds.
    """
    lengths = [(window.size_us, window.size_us + lateness_us) for window, lateness_us in windows]
    before, behind = (max(each, default=0) for each in ([a for a, _ in lengths], [b for _, b in lengths]))
    return TIME_FIRST_US + before, TIME_LAST_US - behind


def outside(times: NDArray[np.int64], held: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Return which times lie outside the range; None if none do, the common case, which is cheap to check."""
    if not times.size or (held[0] <= times.min() and times.max() <= held[1]):
        return None
    found: NDArray[np.bool_] = (times < held[0]) | (times > held[1])
    return found


def micros_of(times: pa.Array) -> NDArray[np.int64]:
    """Return event times as microseconds since 1970, without a copy; nulls have arbitrary values."""
    buffer = times.buffers()[1]
    return np.zeros(0, np.int64) if buffer is None else np.frombuffer(buffer, np.int64, len(times), times.offset * 8)


def times_in(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """Return the event times of a column; a row that has none has one that is before all others."""
    column = batch.column(name)
    times = micros_of(column)
    if not column.null_count:
        return times
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), times, NEVER_US)


def not_held(at_us: int) -> str:
    """Return why an event time is refused."""
    return (
        f"event time {at_us:,} us since 1970, or its window, lies outside the years 1 to 9999 (were seconds, "
        "milliseconds or nanoseconds taken for microseconds?)"
    )


@checked("hf.tumbling", '("1h", offset="15m")')
def tumbling(size: Duration, offset: Duration = "0s") -> Tumbling:
    """Windows of this size, aligned to 1970 plus the offset: `tumbling("1h", offset="15m")`.

    Raises:
        ConfigError: the size is not positive, or the offset is negative or not below the size.
    """
    where = f"of hf.tumbling at {position()}"
    size_us, offset_us = 1_000 * duration_ms(size, f"size {where}"), 1_000 * duration_ms(offset, f"offset {where}")
    if size_us <= 0 or not 0 <= offset_us < size_us:
        raise ConfigError(
            f"tumbling({size!r}, offset={offset!r}): the size must be above 0 and the offset below the size",
            not_done="the job was not planned",
            next_step='use, for example, tumbling("10s") or tumbling("1d", offset="6h")',
        )
    return Tumbling(size_us, offset_us)


@checked("hf.hopping", '("10s", every="2s")')
def hopping(size: Duration, every: Duration) -> Hopping:
    """Windows of this size that overlap, one starting at each multiple of `every`: `hopping("10s", every="2s")`.

    State is kept per `every`, not per window, so a record costs the same in any number of windows.

    Raises:
        ConfigError: the size is not a multiple of `every`, or more than 10,000 windows would overlap.
    """
    where = f"of hf.hopping at {position()}"
    size_us, every_us = 1_000 * duration_ms(size, f"size {where}"), 1_000 * duration_ms(every, f"every {where}")
    call_text = f"hopping({size!r}, every={every!r})"
    if every_us <= 0 or size_us <= 0 or size_us % every_us:
        raise ConfigError(
            f"{call_text}: the size must be a multiple of every, and both above 0",
            not_done="the job was not planned",
            next_step='use, for example, hopping("10s", every="2s"); for windows without overlap, hf.tumbling(size)',
        )
    if size_us // every_us > OVERLAP_MAX:
        raise ConfigError(
            f"{call_text}: {size_us // every_us:,} windows would overlap; at most {OVERLAP_MAX:,} may",
            not_done="the job was not planned",
            next_step="let windows start less often, or make them shorter",
        )
    return Hopping(size_us, every_us)


@checked("hf.sliding", '("10m")')
def sliding(size: Duration) -> Sliding:
    """Windows before each record: `sliding("10m")` gives every record the aggregates of the ten minutes up to it.

    As SQL's RANGE BETWEEN INTERVAL size PRECEDING AND CURRENT ROW, but without records that are exactly `size` older: a
    window is (event time - size, event time]. Records of one event time are in the windows of each other. A record is
    emitted when the watermark has passed it.

    Raises:
        ConfigError: the size is not above 0.
    """
    size_us = 1_000 * duration_ms(size, f"size of hf.sliding at {position()}")
    if size_us <= 0:
        raise ConfigError(
            f"sliding({size!r}): the size must be above 0",
            not_done="the job was not planned",
            next_step='use, for example, sliding("10m")',
        )
    return Sliding(size_us)


@checked("hf.session", '("30m")')
def session(gap: Duration) -> SessionWindows:
    """Windows per key that end when no record came for this long: `session("30m")`.

    A window begins with its first record and ends `gap` after its last one. Records of a key that are at most `gap`
    apart are in one window, also if a record that comes late closes the gap between two.

    Raises:
        ConfigError: the gap is not above 0.
    """
    gap_us = 1_000 * duration_ms(gap, f"gap of hf.session at {position()}")
    if gap_us <= 0:
        raise ConfigError(
            f"session({gap!r}): the gap must be above 0",
            not_done="the job was not planned",
            next_step='use, for example, session("30m")',
        )
    return SessionWindows(gap_us)
