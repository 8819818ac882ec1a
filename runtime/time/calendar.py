"""Windows of calendar days, weeks and months in a time zone, whatever their length.

A day begins at the first instant of its date: a day on which clocks are changed has 23 or 25 hours. Dates that a time
zone left out have no window. The rules of time zones are those of Polars, so all workers of a job have the same.

Invariants
    - Windows have no gaps and do not overlap, also if a date occurs twice because clocks are set back at midnight.

Pure.
Source: API.md (windows); docs/guide/event-time.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar
from zoneinfo import available_timezones

import numpy as np
import polars as pl
from numpy.typing import NDArray

from holdfast.arguments import checked, position
from holdfast.errors import ConfigError
from holdfast.runtime.time.windows import WINDOW_START, window_text

_STEPS = {"day": "1d", "week": "1w", "month": "1mo"}
"""In the words of Polars; weeks begin on Monday."""
_LONGEST_DAYS = {"day": 2, "week": 8, "month": 32}
"""With the days on which clocks are set back."""
_ZONE = re.compile(r"[A-Za-z]\w*([/+-][\w+-]+)*")
_DAY_US = 86_400_000_000
Times = NDArray[np.int64]


@dataclass(frozen=True)
class Calendar:
    """Days, weeks from Monday, or months of a time zone."""

    unit: str
    tz: str

    kind: ClassVar[str] = "calendar"
    merging: ClassVar[bool] = False
    per_record: ClassVar[bool] = False
    time_of_results: ClassVar[str] = WINDOW_START
    overlap: ClassVar[int] = 1

    @property
    def size_us(self) -> int:
        return _LONGEST_DAYS[self.unit] * _DAY_US

    @property
    def every_us(self) -> int:
        return self.size_us

    def slices(self, times: Times) -> Times:
        dates = self._dates(times)
        begins, ends = self._begin(dates), self._begin(self._move(dates, 1))
        # If clocks are changed around midnight, the date alone does not determine the day.
        moved = (times >= ends).astype(np.int64) - (times < begins)
        return np.where(moved == 0, ends, self._begin(self._moved(dates, 1 + moved)))

    def starts(self, ends: Times) -> Times:
        dates = self._move(self._dates(ends), -1)
        starts = self._begin(dates)
        left_out = starts == ends  # the time zone left this date out
        return np.where(left_out, self._begin(self._move(dates, -1)), starts)

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "unit": self.unit, "tz": self.tz}

    def shown(self) -> str:
        return window_text(self.identity())

    def _dates(self, times: Times) -> pl.Series:
        """Return the first date of the unit that each time falls into, by the clocks of the time zone."""
        local = pl.Series(times).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(self.tz)
        return local.dt.date().dt.truncate(_STEPS[self.unit])

    def _move(self, dates: pl.Series, units: int) -> pl.Series:
        return dates.dt.offset_by(f"{units * int(_STEPS[self.unit][:1])}{_STEPS[self.unit][1:]}")

    def _moved(self, dates: pl.Series, units: Times) -> pl.Series:
        """Move each date by a number of units between 0 and 2."""
        choices = pl.DataFrame({str(count): self._move(dates, count) for count in range(3)})
        chosen = pl.Series("units", units)
        return (
            choices.with_columns(chosen)
            .select(pl.when(pl.col("units") == 0).then("0").when(pl.col("units") == 1).then("1").otherwise("2"))
            .to_series()
        )

    def _begin(self, dates: pl.Series) -> Times:
        """Return the first instant of each date."""
        naive = dates.cast(pl.Datetime("us"))
        begins = naive.dt.replace_time_zone(self.tz, ambiguous="earliest", non_existent="null")
        instants = begins.cast(pl.Int64)
        if begins.null_count():  # clocks jump over midnight, or from before it to after it
            jumps = self._jumps(dates.filter(begins.is_null()).unique())
            jumped = dates.replace_strict(*jumps, default=0)
            instants = pl.select(pl.when(begins.is_null()).then(jumped).otherwise(instants)).to_series()
        return instants.to_numpy()

    def _jumps(self, dates: pl.Series) -> tuple[pl.Series, pl.Series]:
        """Return dates without a midnight, and when each begins: when clocks first show it or a later one.

        Clocks are changed once in the days around it. So it is found by halving the time between a day before the
        date, by UTC, and two days after, where every zone has another date.
        """
        low = dates.cast(pl.Datetime("us")).cast(pl.Int64).to_numpy() - _DAY_US
        high, days = low + 3 * _DAY_US, dates.cast(pl.Int32).to_numpy()
        while (high - low > 1).any():
            middle = low + (high - low) // 2
            clocks = pl.Series(middle).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(self.tz)
            reached = clocks.dt.date().cast(pl.Int32).to_numpy() >= days
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return dates, pl.Series(high)


@checked("hf.calendar", '("day", tz="Europe/Berlin")')
def calendar(unit: str, tz: str) -> Calendar:
    """Windows of calendar days, weeks from Monday, or months in a time zone: `calendar("day", tz="Europe/Berlin")`.

    Raises:
        ConfigError: the unit or the time zone is unknown.
    """
    if not isinstance(unit, str) or unit not in _STEPS:
        raise ConfigError(
            f"calendar({unit!r}, tz={tz!r}) at {position()}: the unit is unknown",
            not_done="the job was not planned",
            next_step=f"use one of: {', '.join(_STEPS)}",
        )
    window = Calendar(unit, str(tz))
    try:
        if not _ZONE.fullmatch(window.tz):  # Polars takes offsets too, which have no days of 23 hours
            raise pl.exceptions.ComputeError("not a name")
        window.slices(np.zeros(1, np.int64))
    except pl.exceptions.ComputeError as error:
        close = get_close_matches(window.tz, available_timezones() - {"localtime"}, 3)
        raise ConfigError(
            f"calendar({unit!r}, tz={tz!r}) at {position()}: the time zone is unknown",
            not_done="the job was not planned",
            next_step=f"use a name such as {', '.join(close or ['UTC', 'Europe/Berlin'])}",
        ) from error
    return window
