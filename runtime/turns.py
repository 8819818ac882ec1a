"""How long one turn of a worker's loop works on Python functions, and how many rows are begun at once.

What a function of a user costs is not known beforehand: a microsecond or a second per row. While a turn lasts the
worker handles no message, no barrier and no stop. So work on functions is left off when a turn has lasted `TURN_S`, to
go on in the next one; and of what cannot be left off where one likes only so much is begun as `Pace` says. The records
of one read are such a thing, as a source stands at an offset only once all before it are through; the rows of one call
of `map_batches` are another.

`Pace` doubles while its rows are done in less than `SHORT_S`; when they take longer than `LONG_S`, it takes as many as
would have taken half of that. A function may take its time once per call, however many rows it gets: then fewer rows
would gain nothing and cost everything. So the time is split into what grows with the rows and what does not, by the
last two sizes, and is judged by the first.

Invariants
    - At least one row is begun, whatever it costs, so work goes on.
    - Where time stands still, as in simulations, everything is done in the turn that it comes in.

Pure; the clock is given.
Source: docs/design/0004-python-functions.md.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.ports import Clock

TURN_S = 0.1
"""Work on functions is left off when a turn has lasted so long."""
GRACE_S = 0.05
"""How much longer a piece that is under way may take: the rows that are made for it would have to be made again."""
SHORT_S, LONG_S = 0.05, 0.2
ROWS_FIRST = 32
ROWS_MAX = 1 << 20
"""More than a batch ever has."""


Mark = Callable[[str | None], None]
"""Notes what is about to be called, in the form of runtime/vitals.py; None when it has returned."""


def unmarked(_: str | None) -> None:
    """Note nothing."""


class Turn:
    """The turn that is under way. Without a clock time stands still, and no turn is ever over."""

    def __init__(self, clock: Clock | None = None, mark: Mark = unmarked) -> None:
        self.mark = mark
        self._clock = clock
        self._until = 0.0

    def begin(self) -> None:
        """A turn begins."""
        self._until = self.now() + TURN_S

    def over(self) -> bool:
        """Return whether it has lasted long enough."""
        return self._clock is not None and self._clock.monotonic() >= self._until

    def overdue(self) -> bool:
        """Return whether it has lasted so long that also what costs to break off has to end."""
        return self._clock is not None and self._clock.monotonic() >= self._until + GRACE_S

    def now(self) -> float:
        """Return the time, in seconds since some start."""
        return 0.0 if self._clock is None else self._clock.monotonic()

    def pace(self) -> Pace:
        """Return a pace that learns from this clock; without one there is no limit."""
        return Pace(ROWS_MAX if self._clock is None else ROWS_FIRST)


class Pace:
    """How many rows to begin at once, learnt from how long earlier ones took."""

    def __init__(self, rows: int = ROWS_FIRST) -> None:
        self.rows = rows
        self._before: tuple[int, float] | None = None
        """The last rows, and seconds, of another size."""
        self._last: tuple[int, float] | None = None

    def took(self, rows: int, seconds: float) -> None:
        """Learn from rows that were begun at once; fewer than `rows`, for want of more, tell only of being slow."""
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
        """Take fewer if that is what shortens the time, more if it costs next to nothing."""
        by_rows = seconds
        if self._before is not None:
            others, took = self._before
            by_rows = min(seconds, max(0.0, rows * (seconds - took) / (rows - others)))
        fixed = seconds - by_rows
        if by_rows > max(LONG_S, fixed):
            self.rows = max(1, int(rows * LONG_S / 2 / by_rows))
        elif by_rows < fixed / 2:
            self.rows = min(2 * rows, ROWS_MAX)
