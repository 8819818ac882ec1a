"""How long one turn of a worker's loop runs Python functions, and how many rows it starts together.

The cost of a user's function is unknown beforehand: a microsecond or a second per row. During a turn the worker handles
no message, no barrier and no stop. So the functions are interrupted when a turn has lasted `TURN_S`, and resume in the
next one. Work that cannot be interrupted at any row is started in portions that `SlicePace` sizes: the records of one
read, because a source has a position only between reads, and the rows of one call of `map_batches`.

`SlicePace` doubles while its rows take less than `SHORT_S`. When they take longer than `LONG_S`, it falls to the number
that would have taken half of that. But a function may have a fixed cost per call, regardless of the number of rows;
then fewer rows would not shorten a call and would multiply the calls. So the last two sizes are used to split the time
into a part that grows with the rows and a fixed part. Only the first part lowers the pace.

Invariants
    - At least one row is started, whatever it costs, so there is always progress.
    - Without a clock, as in simulations, all work is done in the turn in which it arrives.

Pure; the clock is a parameter.
Source: docs/decisions/0004-python-functions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.ports import Clock
from holdfast.runtime.operators.portions import Portions
from holdfast.runtime.wire.vitals import At, Mark

TURN_S = 0.1
"""Functions are interrupted when a turn has lasted this long."""
GRACE_S = 0.05
"""How much longer a piece in progress may take: if interrupted, the rows made for it would have to be made again."""
LOOK_AFTER_MAX = 64
"""The end of the turn is checked after 1, 2, 4, ... rows, up to this many: a check after every row would cost a fast
function a tenth of its time."""
SHORT_S, LONG_S = 0.05, 0.2
ROWS_FIRST = 32
ROWS_MAX = 1 << 20
"""More than a batch ever has."""


def unmarked(_: str | None, __: At | None = None, /) -> None:
    """Record nothing."""


class TimeSlice:
    """The current turn. Without a clock, time does not pass and no turn is ever over."""

    def __init__(
        self,
        clock: Clock | None = None,
        mark: Mark = unmarked,
        portions: Callable[[str], Portions] = lambda _operator: Portions(),
    ) -> None:
        self.mark, self.portions = mark, portions
        self.at_work: str | None = None
        """The operator whose function is being called outside of the backlog; any thread may read it."""
        self._clock = clock
        self._until = 0.0

    @contextmanager
    def calling(self, operator: str, mark: str) -> Iterator[None]:
        """Mark the call of an operator's functions, outside of the backlog."""
        self.at_work = operator
        try:
            with self.marked(mark):
                yield
        finally:
            self.at_work = None

    @contextmanager
    def marked(self, mark: str, at: At | None = None) -> Iterator[None]:
        """Mark the call of a function. If it has no memory left, the mark stays: that ends the process."""
        self.mark(mark, at)
        try:
            yield
        except MemoryError:
            raise
        except BaseException:
            self.mark(None)
            raise
        self.mark(None)

    def begin(self) -> None:
        """Begin a turn."""
        self._until = self.now() + TURN_S

    def over(self) -> bool:
        """Return whether the turn has lasted long enough."""
        return self._clock is not None and self._clock.monotonic() >= self._until

    def overdue(self) -> bool:
        """Return whether the turn has lasted so long that even work that is costly to interrupt has to end."""
        return self._clock is not None and self._clock.monotonic() >= self._until + GRACE_S

    def now(self) -> float:
        """Return the time, in seconds since some start."""
        return 0.0 if self._clock is None else self._clock.monotonic()

    def wall_us(self) -> int:
        """Return the wall clock, in microseconds since 1970; 0 without a clock."""
        return 0 if self._clock is None else self._clock.wall_us()

    def pace(self, first: int = ROWS_FIRST) -> SlicePace:
        """Return a pace that learns from this clock, beginning with this many rows; no limit without a clock."""
        return SlicePace(ROWS_MAX if self._clock is None else first)


class SlicePace:
    """How many rows to start together, learnt from how long earlier ones took."""

    def __init__(self, rows: int = ROWS_FIRST) -> None:
        self.rows = rows
        self._before: tuple[int, float] | None = None
        """Rows and seconds of the last portion of another size."""
        self._last: tuple[int, float] | None = None

    def took(self, rows: int, seconds: float) -> None:
        """Learn from rows that were started together. A portion of fewer than `rows` can only lower the pace."""
        if rows < self.rows:
            if seconds <= LONG_S or rows == 0:
                return
            self.rows = rows
        if self._last is not None and self._last[0] != rows:
            self._before = self._last
        self._last = rows, seconds
        if seconds < SHORT_S:
            self.rows = min(2 * rows, ROWS_MAX)
        elif seconds > LONG_S:
            self._weigh(rows, seconds)

    def _weigh(self, rows: int, seconds: float) -> None:
        """Take fewer rows if the time grows with them, more if the fixed cost dominates."""
        by_rows = seconds
        if self._before is not None:
            others, took = self._before
            by_rows = min(seconds, max(0.0, rows * (seconds - took) / (rows - others)))
        fixed = seconds - by_rows
        if by_rows > max(LONG_S, fixed):
            self.rows = max(1, int(rows * LONG_S / 2 / by_rows))
        elif by_rows < fixed / 2:
            self.rows = min(2 * rows, ROWS_MAX)
