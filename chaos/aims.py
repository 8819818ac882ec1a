"""Faults that wait for a process to come to a point of the protocol, and strike there.

What strikes at a random moment mostly finds records flowing. The points between which everything is decided last a
millisecond, so a part of the seeds aims at them: at the n-th time that some process comes to the point.

Source: research section 2b, priority cells; docs/design/0019-coverage.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.chaos.faults import Fault
from holdfast.chaos.points import Point
from holdfast.chaos.schedule import Process

AIMED_SHARE = 0.3


@dataclass(frozen=True)
class Aim:
    """A fault, the point at which it strikes, and at the how-many-th coming of any process there, from 1."""

    fault: Fault
    point: Point
    nth: int
    seconds: float
    """How long it lasts where that means anything."""

    @property
    def at_driver(self) -> bool:
        """Return whether it waits for a driver, not for a worker."""
        return self.fault.name.startswith("DRIVER") or self.fault is Fault.RESCALED


TARGETS: tuple[tuple[Fault, tuple[Point, ...]], ...] = (
    (Fault.WORKER_PAUSED, (Point.UPLOAD, Point.ACK, Point.DELIVER, Point.CONFIRM)),
    (Fault.WORKER_KILLED, (Point.ALIGN, Point.APPLY, Point.ACK, Point.DELIVER, Point.RECOVER)),
    (Fault.DRIVER_KILLED, (Point.COMMIT, Point.DELIVER, Point.SWEEP, Point.RECOVER)),
    (Fault.DRIVER_PAUSED, (Point.COMMIT, Point.SWEEP)),
    (Fault.DRIVER_DOUBLED, (Point.COMMIT, Point.RECOVER)),
    (Fault.RESCALED, (Point.RECOVER,)),
)


def draw(rng: random.Random) -> tuple[Aim, ...]:
    """Choose what a seed aims at, if anything."""
    if rng.random() >= AIMED_SHARE:
        return ()
    cells = [(fault, point) for fault, points in TARGETS for point in points]
    nths = {Point.SWEEP: (1, 1, 2)}  # it takes a few epochs to come there once
    return tuple(
        Aim(fault, point, rng.choice(nths.get(point, (1, 1, 1, 2, 4))), rng.choice((0.6, 1.5, 3.0, 8.0)))
        for fault, point in rng.sample(cells, rng.choice((1, 2, 3)))
    )


def draw_at_calls(rng: random.Random) -> tuple[Aim, ...]:
    """Choose which call of a function fails while a barrier is awaited; it is made in an event, not between two."""
    return (Aim(Fault.FUNCTION_FAILED, Point.ALIGN, rng.choice((1, 1, 1, 2, 4)), 0.0),)


class Aiming:
    """Watches processes until every aim has struck, but for those at calls of functions.

    Args:
        points_of: Returns the points at which a process is.
        strike: Called with the number of an aim, the aim and its victim.
    """

    def __init__(
        self,
        aims: tuple[Aim, ...],
        points_of: Callable[[Process], frozenset[Point]],
        strike: Callable[[int, Aim, Process], None],
    ) -> None:
        self._left = {n: (aim, aim.nth) for n, aim in enumerate(aims) if aim.fault is not Fault.FUNCTION_FAILED}
        self._points_of, self._strike = points_of, strike
        self._were: dict[str, frozenset[Point]] = {}

    def look(self, process: Process, is_driver: bool) -> None:
        """An event of the process is over."""
        if not self._left:
            return
        now, before = self._points_of(process), self._were.get(process.name, frozenset())
        self._were[process.name] = now
        for number, (aim, more) in list(self._left.items()):
            if aim.at_driver != is_driver or aim.point not in now - before:
                continue
            if more > 1:
                self._left[number] = aim, more - 1
            else:
                del self._left[number]
                self._strike(number, aim, process)
            return
