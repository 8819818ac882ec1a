"""Which rows of two streams with equal keys join by their event times; how long a join keeps a row.

State keeps the rows of each input in *buckets* of event time. A row is compared with the rows of the few buckets that
its partners can be in. A bucket leaves the state as a whole, by one range per key group.

A row is *over* at a point of event time if no row of the other input at or after that point can join it. From then on
it joins nothing: it leaves the state, or it is late if it arrives now.

Invariants
    - Both inputs use the same buckets; `partners` spans at most two of them.
    - The rows of a bucket are all over when the clock is `after_us` after its end.
    - A row that is not over at a point is at most `delay_us` older than that point.

Pure.
Source: docs/decisions/0060-joins.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.arguments import checked, position
from holdfast.errors import ConfigError
from holdfast.runtime.config.durations import Duration, duration_ms
from holdfast.runtime.time.windows import LENGTH_MAX_US, Tumbling, Windows, assigned, event_times_held, span

Times = NDArray[np.int64]
LEFT, RIGHT = 0, 1
"""The inputs of a join, by port."""
BUCKET_MIN_US = 1_000
BUCKETS_KEPT = 8
"""A bucket is no shorter than this part of the time for which rows are kept."""


class JoinBound(Protocol):
    """Keeps the state of a join finite."""

    kind: ClassVar[str]
    """A part of the identity of state."""

    def place(self, times: Times) -> tuple[NDArray[np.int64] | None, Times]:
        """Return every pair of a row and a bucket that it belongs to, as Windows.assign does."""

    def over(self, port: int, times: Times, ends: Times) -> Times:
        """Return the time from which each row is over, given the end of its bucket."""

    def after_us(self, port: int) -> int:
        """Return how long after the end of a bucket its rows are all over."""

    def partners(self, port: int, times: Times) -> tuple[Times, Times] | None:
        """Return the first and the last time of the rows of the other input that join each row.

        None: all rows of its bucket join it.
        """

    def bucket_of(self, times: Times) -> Times:
        """Return the end of the bucket of a partner with this time."""

    def delay_us(self, port: int) -> int:
        """Return how far the event time of this input's rows in the result may lie behind the clock."""

    def held(self) -> tuple[int, int]:
        """Return the first and the last event time that the state can hold."""

    def identity(self) -> dict[str, Any]:
        """Return the kind of the bound and its parameters as JSON-able values."""

    def shown(self) -> str:
        """Return the bound as text for messages."""


@dataclass(frozen=True)
class Between:
    """A right row joins a left row whose time plus `lower_us` is not after it, and plus `upper_us` not before it."""

    lower_us: int
    upper_us: int

    kind: ClassVar[str] = "between"

    @property
    def bucket(self) -> Tumbling:
        """The buckets of both inputs; no shorter than the interval, so that two of them contain it."""
        kept_us = max(self.after_us(LEFT), self.after_us(RIGHT))
        return Tumbling(max(self.upper_us - self.lower_us, kept_us // BUCKETS_KEPT, BUCKET_MIN_US))

    def place(self, times: Times) -> tuple[NDArray[np.int64] | None, Times]:
        return None, self.bucket.slices(times)

    def over(self, port: int, times: Times, ends: Times) -> Times:
        return times + (self.after_us(port) + 1)

    def after_us(self, port: int) -> int:
        return max(self.upper_us if port == LEFT else -self.lower_us, 0)

    def partners(self, port: int, times: Times) -> tuple[Times, Times] | None:
        if port == LEFT:
            return times + self.lower_us, times + self.upper_us
        return times - self.upper_us, times - self.lower_us

    def bucket_of(self, times: Times) -> Times:
        return self.bucket.slices(times)

    def delay_us(self, port: int) -> int:
        return self.after_us(port)

    def held(self) -> tuple[int, int]:
        return event_times_held([(self.bucket, max(self.after_us(LEFT), self.after_us(RIGHT)))])

    def identity(self) -> dict[str, Any]:
        sizes = {"lower_us": self.lower_us, "upper_us": self.upper_us, "bucket_us": self.bucket.size_us}
        return {"kind": self.kind, **sizes}

    def shown(self) -> str:
        return bound_text(self.identity())


@dataclass(frozen=True)
class SameWindow:
    """Rows join that are in the same window."""

    windows: Windows

    kind: ClassVar[str] = "window"

    def place(self, times: Times) -> tuple[NDArray[np.int64] | None, Times]:
        return assigned(self.windows, times)

    def over(self, port: int, times: Times, ends: Times) -> Times:
        return ends

    def after_us(self, port: int) -> int:
        return 0

    def partners(self, port: int, times: Times) -> tuple[Times, Times] | None:
        return None

    def bucket_of(self, times: Times) -> Times:
        raise AssertionError("partners in the same window are in the same bucket")

    def delay_us(self, port: int) -> int:
        return self.windows.size_us

    def held(self) -> tuple[int, int]:
        return event_times_held([(self.windows, 0)])

    def identity(self) -> dict[str, Any]:
        return {"kind": self.kind, "window": self.windows.identity(), "shown": self.windows.shown()}

    def shown(self) -> str:
        return bound_text(self.identity())


def bound_text(identity: dict[str, Any]) -> str:
    """Return the bound of an identity as text for messages."""
    if identity["kind"] == Between.kind:
        return f"between {_signed(identity['lower_us'])} and {_signed(identity['upper_us'])}"
    return f"in the same {identity['shown']}"


@checked("hf.between", '("0s", "1h")')
def between(lower: Duration, upper: Duration) -> Between:
    """Bound a join by event time: a right row joins a left row that is `lower` to `upper` older, both inclusive.

    `between("0s", "1h")`: the right row is at most an hour younger. `between("-5m", "5m")`: at most five minutes apart.

    Raises:
        ConfigError: not durations, or `lower` is above `upper`.
    """
    where = f"of hf.between at {position()}"
    lower_us, upper_us = _signed_us(lower, f"lower {where}"), _signed_us(upper, f"upper {where}")
    call_text = f"between({lower!r}, {upper!r})"
    if lower_us > upper_us:
        raise ConfigError(
            f"{call_text}: the lower bound is above the upper bound",
            not_done="the job was not planned",
            next_step='exchange them, for example between("-5m", "5m")',
        )
    if max(abs(lower_us), abs(upper_us)) * 4 > LENGTH_MAX_US:
        raise ConfigError(
            f"{call_text}: the bounds are longer than 250 years",
            not_done="the job was not planned",
            next_step="give shorter durations, for how long a row waits for its partners",
        )
    return Between(lower_us, upper_us)


def _signed_us(given: Duration, called: str) -> int:
    if isinstance(given, timedelta) and given < timedelta():
        return -1_000 * duration_ms(-given, called)
    if isinstance(given, str) and (text := given.strip()).startswith("-"):
        return -1_000 * duration_ms(text[1:], called)
    return 1_000 * duration_ms(given, called)


def _signed(us: int) -> str:
    return f"-{span(-us)}" if us < 0 else span(us)
