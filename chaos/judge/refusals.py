"""Decides whether a job handled damage as it must: refuse the damaged object by name, or do without it.

While a bit of an object of the newest checkpoint is wrong, a driver may end because of it, and only because of it. A
driver that started while the bit was wrong may still do so for a moment after the bit was restored; one that started
later may not.

Invariant
    - A driver that ends for any other reason than the damaged object is not excused.

Pure: receives the times, in seconds of one clock.
Source: docs/decisions/0016-live-chaos.md; PROTOCOL P16.
"""

from __future__ import annotations

import math

from holdfast.chaos.judge.driver_ends import GAVE_UP
from holdfast.chaos.judge.findings import Finding

REFUSED_WITHIN_S = 30.0
"""How long after the damage a driver that started during it may still be seen to end because of it."""


class Refusals:
    """The refusals of one damaged object after another."""

    def __init__(self) -> None:
        self._object: str | None = None
        self._began = self._healed = -math.inf
        self.drivers = 0
        """How many drivers refused the object."""

    def damaged(self, path: str, now: float) -> None:
        """A bit of this object is wrong from now on."""
        self._object, self._began, self._healed, self.drivers = path, now, math.inf, 0

    def healed(self, now: float) -> None:
        """The bit is restored."""
        self._healed = now

    def excuses(self, status: int, said: str, started: float, now: float) -> bool:
        """Return whether a driver that ended refused the object, and count it.

        Args:
            said: The driver's whole output.
            started: When the driver started.
        """
        in_time = started < self._healed and now < self._healed + REFUSED_WITHIN_S
        refused = self._object is not None and status in GAVE_UP and in_time and self._object in said
        self.drivers += refused
        return refused

    def shown(self, epoch_seen: float) -> bool:
        """Return whether the job has shown how it handles the damage.

        Args:
            epoch_seen: When the newest epoch was seen to be complete.
        """
        return self.drivers > 0 or epoch_seen > self._began

    def finding(self, epoch_seen: float) -> Finding | None:
        """Return the violation after the job's time is up, None if there is none."""
        if self.shown(epoch_seen):
            return None
        said = f"{self._object} was damaged; no driver refused it, and no epoch was completed without it"
        return Finding("damage", False, "I12", detail=said)
