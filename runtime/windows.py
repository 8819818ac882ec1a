"""Windows over event time: which window a record belongs to.

A tumbling window is the time [start, start + size); starts are multiples of the size after the epoch of 1970, moved by
the offset. Every record is in exactly one.

Invariants
    - start <= time < end, also for times before 1970.
    - The bounds of every window that an event time comes into are times that targets hold; times that would come into
      others are refused before (intake.py by the source's policy, window.py for times that a function gave).

Pure.
Source: API.md (windows); docs/design/0006-watermarks.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.model import NEVER_US
from holdfast.runtime.settings import duration_ms
from holdfast.state.keys import KeyType
from holdfast.state.spec import ColumnSpec

WINDOW_START, WINDOW_END = "window_start", "window_end"
TIME = pa.timestamp("us", tz="UTC")
"""The only type of event time; what has no time zone is no point in time."""

END_COLUMN = ColumnSpec(WINDOW_END, np.dtype(np.int64))
"""The end of the window again, beside the values, where a scan finds it without decoding keys."""
CLOCK_KEY = KeyType(("key_group",), (pa.int64(),))
CLOCK_COLUMNS = (ColumnSpec("at", np.dtype(np.int64), NEVER_US),)
"""One row per key group: the watermark up to which its windows are closed."""
_UNITS_US = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}


TIME_FIRST_US, TIME_LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Years 1 to 9999: what every target can hold."""
LENGTH_MAX_US = 365_000 * 86_400_000_000
"""Of a window with its lateness: a thousand years, so that bounds are far from the ends of int64."""


@dataclass(frozen=True)
class Tumbling:
    """Windows of one size without gaps or overlaps; microseconds."""

    size_us: int
    offset_us: int = 0

    def ends(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the end of the window of each time."""
        since = np.mod(times - self.offset_us, self.size_us)  # never negative
        ends: NDArray[np.int64] = times - since + self.size_us
        return ends

    def __str__(self) -> str:
        """Return the text that checkpoints of older versions compare windows by."""
        return f"tumbling({self.size_us}us, offset={self.offset_us}us)"


def span(us: int) -> str:
    """Return a length of time as a job's code gives it, exact: "90s", "1h", "250ms"."""
    for unit, size_us in _UNITS_US.items():
        if us % size_us == 0 and us:
            return f"{us // size_us}{unit}"
    return f"{us}us" if us else "0s"


def event_times_held(windows: Iterable[tuple[Tumbling, int]]) -> tuple[int, int]:
    """Return the first and the last event time whose window, with its lateness, lies within what targets hold.

    Args:
        windows: Those that the times go to, each with its lateness in microseconds.
    """
    lengths = [(window.size_us, window.size_us + lateness_us) for window, lateness_us in windows]
    before, behind = (max(each, default=0) for each in ([a for a, _ in lengths], [b for _, b in lengths]))
    return TIME_FIRST_US + before, TIME_LAST_US - behind


def outside(times: NDArray[np.int64], held: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Return which times are not in the range; None if all are, which costs next to nothing to find out."""
    if not times.size or (held[0] <= times.min() and times.max() <= held[1]):
        return None
    found: NDArray[np.bool_] = (times < held[0]) | (times > held[1])
    return found


def micros_of(times: pa.Array) -> NDArray[np.int64]:
    """Return event times as microseconds since 1970, without a copy; anything stands where one is null."""
    buffer = times.buffers()[1]
    return np.zeros(0, np.int64) if buffer is None else np.frombuffer(buffer, np.int64, len(times), times.offset * 8)


def not_held(at_us: int) -> str:
    """Return why an event time is refused."""
    return (
        f"event time {at_us:,} us since 1970 lies outside of the years 1 to 9999, or its window does (are seconds or "
        "milliseconds taken for microseconds, or nanoseconds?)"
    )


@checked("hf.tumbling", '("1h", offset="15m")')
def tumbling(size: str, offset: str = "0s") -> Tumbling:
    """Windows of this size, aligned to 1970 plus the offset: `tumbling("1h", offset="15m")`.

    Raises:
        ConfigError: the size is not positive, or the offset is negative or not below the size.
    """
    size_us, offset_us = 1_000 * duration_ms(size, "size"), 1_000 * duration_ms(offset, "offset")
    if size_us <= 0 or not 0 <= offset_us < size_us:
        raise ConfigError(
            f"tumbling({size!r}, offset={offset!r}): the size must be above 0 and the offset below the size",
            not_done="the job was not planned",
            next_step='give for example tumbling("10s") or tumbling("1d", offset="6h")',
        )
    return Tumbling(size_us, offset_us)


def hopping(*given: object, **named: object) -> NoReturn:
    """Overlapping windows. Not supported so far: always raises ConfigError."""
    _unsupported("hopping", given, named)


def session(*given: object, **named: object) -> NoReturn:
    """Windows that end after a gap without records. Not supported so far: always raises ConfigError."""
    _unsupported("session", given, named)


def calendar(*given: object, **named: object) -> NoReturn:
    """Days, weeks or months of a time zone. Not supported so far: always raises ConfigError."""
    _unsupported("calendar", given, named)


def _unsupported(called: str, given: tuple[object, ...], named: Mapping[str, object]) -> NoReturn:
    arguments = [*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())]
    raise ConfigError(
        f"{called}({', '.join(arguments)}) is not supported by this version; tumbling windows are",
        not_done="the job was not planned",
        next_step='use hf.tumbling(size), for example hf.tumbling("10s")',
    )
