"""Windows over event time: which window a record belongs to.

A tumbling window is the time [start, start + size); starts are multiples of the size after the epoch of 1970, moved by
the offset. Every record is in exactly one.

Invariants
    - start <= time < end, also for times before 1970.

Pure.
Source: API.md (windows); docs/design/0006-watermarks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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


def hopping(size: str, every: str) -> NoReturn:
    """Overlapping windows. Not supported so far: always raises ConfigError."""
    _unsupported(f"hopping({size!r}, every={every!r})")


def session(gap: str) -> NoReturn:
    """Windows that end after a gap without records. Not supported so far: always raises ConfigError."""
    _unsupported(f"session({gap!r})")


def calendar(unit: str, tz: str) -> NoReturn:
    """Days, weeks or months of a time zone. Not supported so far: always raises ConfigError."""
    _unsupported(f"calendar({unit!r}, {tz!r})")


def _unsupported(what: str) -> NoReturn:
    raise ConfigError(
        f"{what} is not supported by this version; tumbling windows are",
        not_done="the job was not planned",
        next_step='use hf.tumbling(size), for example hf.tumbling("10s")',
    )
