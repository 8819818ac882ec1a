"""Draws from a seed, before the run begins, which fault strikes when.

The first round holds every fault of the scenario once, in random order, so that a short run shows them all; after
that they follow their rates. A target is drawn as a rank: the same seed strikes the same place in the list of
victims, whatever their process ids are.

Invariants
    - The same scenario and seed give the same schedule: times, kinds, ranks, durations, attributes.
    - Faults do not overlap: the next begins when the previous one is over and a pause has passed.

Pure: the random numbers come from an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.chaos.judge.kinds import KINDS, lasts_ms
from holdfast.chaos.live.faults.scenario import LiveScenario
from holdfast.errors import ConfigError

RANKS = 1_000
Chance = Callable[[], float]
"""Gives numbers in [0, 1)."""


@dataclass(frozen=True)
class Planned:
    """One planned fault."""

    id: int
    at_ms: int
    """Since the job was first seen running."""
    kind: str
    rank: int
    """Picks the victim, modulo their number."""
    lasts_ms: int
    direction: str | None = None
    attributes: tuple[tuple[str, int], ...] = ()


def schedule(scenario: LiveScenario, chance: Chance) -> tuple[Planned, ...]:
    """Return the faults of a run, in order; all begin before the scenario's duration is over.

    The exception is the first round, which is always complete: with long faults and pauses it outlasts the duration.

    Raises:
        ConfigError: the duration is too short for every fault to strike once on average; the seed does not matter.
    """
    _long_enough(scenario)
    faults: list[Planned] = []
    first = _shuffled(sorted(scenario.rates), chance)
    at = _between(scenario.every_ms, chance)
    while first or at < scenario.duration_ms:
        name = first.pop() if first else _weighted(scenario, chance)
        kind = KINDS[name]
        lasts = _between(_lasting(scenario, name), chance)
        rank = int(chance() * RANKS)
        direction = kind.directions[int(chance() * len(kind.directions))] if kind.directions else None
        attributes = tuple((key, _between(ends, chance)) for key, ends in kind.attributes.items())
        faults.append(Planned(len(faults) + 1, at, name, rank, lasts, direction, attributes))
        at += lasts + _between(scenario.every_ms, chance)
    return tuple(faults)


def _long_enough(scenario: LiveScenario) -> None:
    ends = [scenario.every_ms, *(_lasting(scenario, name) for name in scenario.rates)]
    pause, *lasting = (sum(each) / 2 for each in ends)
    least_ms = pause * len(lasting) + sum(lasting) - max(lasting)  # the duration of the last fault does not matter
    if scenario.duration_ms < least_ms:
        raise ConfigError(
            f"{scenario.duration_ms / 1000:.0f} s are too short for {len(lasting)} kinds of faults: for each to "
            f"strike once, with pauses between them, a run takes {least_ms / 1000:.0f} s on average",
            not_done="nothing was started",
            next_step="give a longer duration, a shorter pause (every), or fewer kinds of faults",
        )


def _lasting(scenario: LiveScenario, name: str) -> tuple[int, int]:
    timeouts = scenario.timeout_ms("silent_after_ms"), scenario.timeout_ms("session_timeout_ms")
    return lasts_ms(KINDS[name], *timeouts)


def _weighted(scenario: LiveScenario, chance: Chance) -> str:
    names = sorted(scenario.rates)
    left = chance() * sum(scenario.rates.values())
    for name in names:
        left -= scenario.rates[name]
        if left < 0:
            return name
    return names[-1]


def _shuffled(names: list[str], chance: Chance) -> list[str]:
    for last in range(len(names) - 1, 0, -1):
        other = int(chance() * (last + 1))
        names[last], names[other] = names[other], names[last]
    return names


def _between(ends: tuple[int, int], chance: Chance) -> int:
    low, high = ends
    return low + int(chance() * (high - low + 1))
