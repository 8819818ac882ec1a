"""Warns before sources remove records that the job has not read, on a lane of the driver.

Nothing of the job depends on it. A source that gives no answer is asked again at the next look; whether it is reachable
is for the workers to report.

Invariants
    - One look at a time, with separate connections, which only the lane uses.
    - No alarm before looks cover half of the window: the pace is unknown until then.
    - One warning per partition and alarm.

Source: docs/decisions/0108-loss-alarm.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import HoldfastError
from holdfast.ports import Lane
from holdfast.runtime.plan.loss import PartitionLook, Risk, at_risk, described
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import Kept, OpenSource

LOOK_EVERY_S = 10.0
WINDOW_S = 120.0
"""Over how long a pace is measured, at least."""
INTERVALS_MIN = 3
"""How many intervals between checkpoints that takes: positions move with checkpoints only."""
Place = tuple[str, int]
"""Source and partition."""
log = logging.getLogger("holdfast.driver")


class LossAlarm:
    """The alarm of one run.

    Args:
        lane: Returns the lane of the looks.
        within_s: Warn of records that are removed within this time; 0: never look.
        every_s: Time between two checkpoints.
    """

    def __init__(
        self, sources: Sequence[SourceSpec], lane: Callable[[], Lane], within_s: float, every_s: float
    ) -> None:
        self._sources = tuple(spec for spec in sources if within_s and spec.source.traits.removes_old)
        self._lane, self._within_s = lane, within_s
        self._window_s = max(WINDOW_S, INTERVALS_MIN * every_s)
        self._opened: dict[str, OpenSource] = {}
        self._looks: dict[Place, deque[PartitionLook]] = {}
        self._manifest: Manifest | None = None
        self._busy, self._look_at = False, 0.0
        self.kept: Mapping[Place, Kept] = {}
        """Records that the partitions keep, as of the last look."""
        self.risks: Mapping[Place, Risk] = {}
        """The alarms now."""

    @property
    def within_s(self) -> float:
        """Return the time of the alarm."""
        return self._within_s

    def turn(self, now_s: float, manifest: Manifest | None) -> None:
        """Look at the sources, if it is time to.

        Args:
            manifest: The last completed checkpoint; None: as before, while the job recovers.
        """
        self._manifest = self._manifest if manifest is None else manifest
        if not self._sources or self._manifest is None or self._busy or now_s < self._look_at:
            return
        self._busy, self._look_at = True, now_s + LOOK_EVERY_S
        positions = {(at.source, at.partition): at.offset for at in self._manifest.positions}
        self._lane().submit(self._look, lambda result: self._looked(now_s, positions, result))

    def close(self) -> None:
        """Close the connections, after a look that is under way."""
        if self._sources:
            self._lane().submit(self._close, lambda _: None)

    def _look(self) -> dict[Place, Kept]:
        retention_by_place: dict[Place, Kept] = {}
        for spec in self._sources:
            try:
                if spec.name not in self._opened:
                    self._opened[spec.name] = spec.source.open()
                kept = self._opened[spec.name].kept(self._within_s)
            except HoldfastError:
                continue
            retention_by_place |= {(spec.name, partition): each for partition, each in kept.items()}
        return retention_by_place

    def _looked(self, now_s: float, positions: Mapping[Place, int], result: object) -> None:
        self._busy = False
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, dict)
        self.kept = result
        risks: dict[Place, Risk] = {}
        for place, kept in self.kept.items():
            if (
                place in positions
                and (risk := self._risk(place, PartitionLook(now_s, positions[place], kept))) is not None
            ):
                risks[place] = risk
                if place not in self.risks:
                    log.warning("%s", described(place[0], place[1], risk, f"{self._within_s:,.0f} s"))
        self.risks = risks

    def _risk(self, place: Place, look: PartitionLook) -> Risk | None:
        looks = self._looks.setdefault(place, deque())
        if looks and look.position < looks[-1].position:  # after a rewind
            looks.clear()
        looks.append(look)
        while look.at_s - looks[0].at_s > self._window_s:
            looks.popleft()
        if look.at_s - looks[0].at_s < self._window_s / 2:
            return None
        return at_risk(looks[0], look, self._within_s)

    def _close(self) -> None:
        for opened in self._opened.values():
            opened.close()
        self._opened.clear()
