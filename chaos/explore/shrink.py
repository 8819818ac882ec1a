"""Shrinks a failure to the fewest strikes, features, records and workers that still break the same rule.

Strikes are dropped by the minimising form of delta debugging: all, then kind by kind, then ever smaller parts, until no
single one can be dropped. The rest is tried with less of everything else. A step is rejected if it breaks another rule
or only trades a feature for a longer run.

Invariants
    - The result was played and broke the same rule.
    - The number of runs is limited.

Pure: no clock, thread, random or I/O; the caller plays the runs.
Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002; docs/decisions/0019-coverage.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

REPLAYS_MAX = 150
"""Most runs to shrink one failure; a run takes about 0.1 s."""
HEALED_AFTER_S = (0.5, 1.0, 2.0, 3.0, 4.5)
"""The earliest time at which the world may heal, in virtual seconds."""


@dataclass(frozen=True)
class Reduction:
    """The parts left out of a run; default values leave nothing out."""

    strikes: tuple[int, ...] | None = None
    """The numbers of the strikes that may happen; None: all."""
    records: int | None = None
    """Records of each partition."""
    workers: int | None = None
    heal_at: float | None = None
    without: tuple[str, ...] = ()
    """Features of the scenario, by their field names."""

    def __str__(self) -> str:
        parts = []
        if self.strikes is not None:
            parts.append("strikes=" + ",".join(map(str, self.strikes)))
        less = {"records": self.records, "workers": self.workers, "heal_at": self.heal_at}
        parts += [f"{name}={value}" for name, value in less.items() if value is not None]
        return "/".join([*parts, *(["without=" + ",".join(self.without)] if self.without else [])])


NOTHING_LEFT_OUT = Reduction()


def parsed(text: str) -> Reduction:
    """Parse a reduction from its text.

    Raises:
        ValueError: the text is not a reduction.
    """
    reduction = Reduction()
    for part in filter(None, text.split("/")):
        name, _, value = part.partition("=")
        match name:
            case "strikes":
                reduction = replace(reduction, strikes=tuple(int(each) for each in value.split(",") if each))
            case "records":
                reduction = replace(reduction, records=int(value))
            case "workers":
                reduction = replace(reduction, workers=int(value))
            case "heal_at":
                reduction = replace(reduction, heal_at=float(value))
            case "without":
                reduction = replace(reduction, without=tuple(value.split(",")))
            case _:
                raise ValueError(f"{part!r} is not part of a schedule")
    for name in ("records", "workers", "heal_at"):
        given = getattr(reduction, name)
        if given is not None and not given > 0:
            raise ValueError(f"{name}={given} leaves nothing to play")
    return reduction


class FailedRun(Protocol):
    """The part of a run's result that decides whether it is the same failure."""

    @property
    def violations(self) -> tuple[str, ...]: ...
    @property
    def events(self) -> int: ...


@dataclass(frozen=True)
class Shrunk:
    """A smaller failure."""

    reduction: Reduction
    replays: int


def rule_of(run: FailedRun) -> str | None:
    """Return the first rule that a run broke, None if everything held."""
    return run.violations[0].partition(":")[0] if run.violations else None


def shrink(
    failed: FailedRun,
    kinds: Sequence[str],
    features: Sequence[str],
    play: Callable[[Reduction], FailedRun],
    replays_max: int = REPLAYS_MAX,
) -> Shrunk:
    """Return the smallest reduction found that still breaks the same rule.

    Args:
        failed: The run of the unchanged seed.
        kinds: The kind of each of its strikes.
        features: The features that its scenario can be played without.
        play: Plays it with a reduction.
    """
    return _Shrinking(failed, kinds, play, replays_max).result(features)


class _Shrinking:
    def __init__(
        self, failed: FailedRun, kinds: Sequence[str], play: Callable[[Reduction], FailedRun], replays_max: int
    ) -> None:
        self._rule, self._events = rule_of(failed), failed.events
        assert self._rule is not None, "there is nothing to shrink"
        self._kinds, self._play, self._replays_max = kinds, play, replays_max
        self._replays = 0
        self._best = Reduction()

    def result(self, features: Sequence[str]) -> Shrunk:
        self._drop_strikes(tuple(range(len(self._kinds))))
        for feature in features:
            self._try(replace(self._best, without=(*self._best.without, feature)))
        for records in (1, 2, 3, 6, 12):
            if self._try(replace(self._best, records=records)):
                break
        for workers in (1, 2):
            if self._try(replace(self._best, workers=workers)):
                break
        for heal_at in HEALED_AFTER_S:
            if self._try(replace(self._best, heal_at=heal_at)):
                break
        if self._best.strikes:
            self._drop_strikes(self._best.strikes)
        return Shrunk(self._best, self._replays)

    def _try(self, reduction: Reduction) -> bool:
        if self._replays >= self._replays_max or reduction == self._best:
            return False
        self._replays += 1
        run = self._play(reduction)
        fewer_strikes = reduction.strikes != self._best.strikes
        if rule_of(run) != self._rule or (run.events > self._events and not fewer_strikes):
            return False
        self._best, self._events = reduction, run.events
        return True

    def _fails_with(self, strikes: tuple[int, ...]) -> bool:
        return self._try(replace(self._best, strikes=strikes))

    def _drop_strikes(self, left: tuple[int, ...]) -> None:
        if not left or self._fails_with(()):
            return
        for kind in sorted({self._kinds[number] for number in left}):
            fewer = tuple(number for number in left if self._kinds[number] != kind)
            if len(fewer) < len(left) and self._fails_with(fewer):
                left = fewer
        parts = 2
        while len(left) > 1:
            size = -(-len(left) // parts)
            for start in range(0, len(left), size):
                fewer = left[:start] + left[start + size :]
                if self._fails_with(fewer):
                    left, parts = fewer, max(parts - 1, 2)
                    break
            else:
                if size == 1:
                    return
                parts = min(2 * parts, len(left))
