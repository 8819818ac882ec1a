"""Whether a job did with damage what it has to: refuse what was damaged, by name, or do without it.

While a bit of an object of the newest checkpoint is wrong, a driver may end because of it, and only because of it. One
that was started while the bit was wrong may still do so for a moment after it was put back; one that was started later
has no excuse.

Invariant
    - A driver that ends for anything else than the damaged object is not excused.

Pure: is told the times, in seconds of one clock.
Source: docs/design/0016-live-chaos.md; PROTOCOL P16.
"""

from __future__ import annotations

import math

from holdfast.chaos.driver_ends import GAVE_UP
from holdfast.chaos.findings import Finding

REFUSED_WITHIN_S = 30.0
"""How long after the damage a driver of its time may still be seen to have ended for it."""


class Refusals:
    """Of one damaged object after the other."""

    def __init__(self) -> None:
        self._object: str | None = None
        self._began = self._healed = -math.inf
        self.drivers = 0
        """How many refused the object."""

    def damaged(self, path: str, now: float) -> None:
        """A bit of this object is wrong from now on."""
        self._object, self._began, self._healed, self.drivers = path, now, math.inf, 0

    def healed(self, now: float) -> None:
        """It is right again."""
        self._healed = now

    def excuses(self, status: int, said: str, started: float, now: float) -> bool:
        """Return whether a driver that ended refused the object, and count it.

        Args:
            said: All that the driver said.
            started: When the driver was.
        """
        in_time = started < self._healed and now < self._healed + REFUSED_WITHIN_S
        refused = self._object is not None and status in GAVE_UP and in_time and self._object in said
        self.drivers += refused
        return refused

    def shown(self, epoch_seen: float) -> bool:
        """Return whether the job has shown what it does with the damage.

        Args:
            epoch_seen: When the newest epoch was found complete.
        """
        return self.drivers > 0 or epoch_seen > self._began

    def finding(self, epoch_seen: float) -> Finding | None:
        """Return what is wrong once the job had all the time that it may take, None if nothing is."""
        if self.shown(epoch_seen):
            return None
        said = f"{self._object} was damaged; no driver refused it, and no epoch was completed without it"
        return Finding("damage", False, "I12", detail=said)
