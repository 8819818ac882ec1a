"""Faults that wait until a process reaches a point of the protocol, and strike there.

A fault at a random moment mostly strikes while records flow. The points at which everything is decided last a
millisecond, so some of the seeds aim at them: at the n-th time that a process reaches the point.

Source: research section 2b, priority cells; docs/decisions/0019-coverage.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process

AIMED_SHARE = 0.3


@dataclass(frozen=True)
class Aim:
    """A fault, the point at which it strikes, and how many times a process must reach that point first, from 1."""

    fault: Fault
    point: Point
    nth: int
    seconds: float
    """Duration, for faults that last."""

    @property
    def at_driver(self) -> bool:
        """Return whether it waits for a driver rather than a worker."""
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
    """Choose the aims of a seed, if any."""
    if rng.random() >= AIMED_SHARE:
        return ()
    cells = [(fault, point) for fault, points in TARGETS for point in points]
    nths = {Point.SWEEP: (1, 1, 2)}  # one arrival there takes a few epochs
    return tuple(
        Aim(fault, point, rng.choice(nths.get(point, (1, 1, 1, 2, 4))), rng.choice((0.6, 1.5, 3.0, 8.0)))
        for fault, point in rng.sample(cells, rng.choice((1, 2, 3)))
    )


def draw_at_calls(rng: random.Random) -> tuple[Aim, ...]:
    """Choose which call of a function fails during alignment; the call happens within an event, not between two."""
    return (Aim(Fault.FUNCTION_FAILED, Point.ALIGN, rng.choice((1, 1, 1, 2, 4)), 0.0),)


def draw_at_partitions(rng: random.Random) -> tuple[Aim, ...]:
    """Choose the aims at the moments between the listing of a new partition and its first checkpoint, if any."""
    if rng.random() < 0.5:
        return ()
    faults = (Fault.WORKER_KILLED, Fault.WORKER_PAUSED, Fault.DRIVER_KILLED, Fault.DRIVER_PAUSED, Fault.DRIVER_DOUBLED)
    return tuple(
        Aim(fault, Point.PARTITIONS, rng.choice((1, 1, 2, 3, 5)), rng.choice((0.6, 1.5, 3.0)))
        for fault in rng.sample(faults, rng.choice((1, 2)))
    )


def draw_at_batches(rng: random.Random) -> tuple[Aim, ...]:
    """Choose the aims at tasks, before they begin or before they report, and at drivers whose job runs, if any."""
    if rng.random() < 0.4:
        return ()
    faults = (Fault.WORKER_KILLED, Fault.WORKER_PAUSED, Fault.DRIVER_KILLED, Fault.DRIVER_PAUSED, Fault.DRIVER_DOUBLED)
    return tuple(
        Aim(fault, Point.BATCH, rng.choice((1, 2, 3, 5, 8)), rng.choice((0.6, 1.5, 3.0)))
        for fault in rng.sample(faults, rng.choice((1, 2, 3)))
    )


class Aiming:
    """Watches processes until every aim has struck, except aims at calls of functions.

    Args:
        points_of: Returns the points at which a process is.
        strike: Called with the aim's number, the aim and its victim.
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
        """The process has finished an event."""
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
