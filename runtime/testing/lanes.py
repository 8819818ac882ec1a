"""Time and background work of a job in one thread: time advances on request, work runs when the scheduler picks it.

Source: DESIGN section 13 (`TestDriver`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.errors import is_failure
from holdfast.ports import Lane


class VirtualClock:
    """Time that advances only when `now` is set."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.wall_behind_s = 0.0
        """How far the wall clock is behind; a test may set it to let that clock go back."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return self.now

    def wall_us(self) -> int:
        """Microseconds since 1970, UTC."""
        return 1_700_000_000_000_000 + round((self.now - self.wall_behind_s) * 1_000_000)

    def pass_by(self, seconds: float) -> None:
        """Let time pass: a task waits."""
        self.now += seconds


class InlineLanes:
    """Lanes whose work runs when the scheduler picks it; in order within a lane."""

    def __init__(self) -> None:
        self._lanes: dict[str, InlineLane] = {}

    def lane(self, name: str) -> Lane:
        """Return the lane of this name."""
        return self._lanes.setdefault(name, InlineLane())

    def waiting(self) -> list[InlineLane]:
        """Return the lanes that have work waiting."""
        return [lane for lane in self._lanes.values() if lane.jobs]


class InlineLane:
    """One lane's waiting work."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """Queue the work."""
        self.jobs.append((work, done))

    def step(self) -> None:
        """Do the next piece of work and hand over its result."""
        self.work()()

    def work(self) -> Callable[[], None]:
        """Do the next piece of work; return a function that hands over its result."""
        work, callback = self.jobs.popleft()
        result: object
        try:
            result = work()
        except BaseException as error:  # handed to the loop, as a real lane does
            if not is_failure(error):
                raise
            result = error
        return lambda: callback(result)
