"""Which fault strikes when: a schedule drawn from a seed before the run begins.

The first round holds every fault of the scenario once, in an order of chance, so that a short run shows them all; after
that they come by their rates. A target is drawn as a rank: the same seed strikes the same place in the list of what
there is, whatever process ids it has this time.

Invariants
    - The same scenario and seed give the same schedule: times, kinds, ranks, durations, attributes.
    - Faults follow each other: the next begins when the one before is over and a pause has passed.

Pure: chance comes in as a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.chaos.live_kinds import KINDS, lasts_ms
from holdfast.chaos.scenario import Scenario
from holdfast.errors import ConfigError

RANKS = 1_000
Chance = Callable[[], float]
"""Gives numbers in [0, 1)."""


@dataclass(frozen=True)
class Planned:
    """One fault to come."""

    id: int
    at_ms: int
    """Since the job was first seen running."""
    kind: str
    rank: int
    """Picks the target: modulo the number of what can be struck."""
    lasts_ms: int
    direction: str | None = None
    attributes: tuple[tuple[str, int], ...] = ()


def schedule(scenario: Scenario, chance: Chance) -> tuple[Planned, ...]:
    """Return the faults of a run, in order; they begin before the scenario's duration is over.

    But the first round is always whole: where chance draws long faults and pauses it takes longer than the duration.

    Raises:
        ConfigError: the duration is too short for every fault to strike once, on an average; the seed does not matter.
    """
    _long_enough(scenario)
    planned: list[Planned] = []
    first = _shuffled(sorted(scenario.rates), chance)
    at = _between(scenario.every_ms, chance)
    while first or at < scenario.duration_ms:
        name = first.pop() if first else _weighted(scenario, chance)
        kind = KINDS[name]
        lasts = _between(_lasting(scenario, name), chance)
        rank = int(chance() * RANKS)
        direction = kind.directions[int(chance() * len(kind.directions))] if kind.directions else None
        attributes = tuple((key, _between(ends, chance)) for key, ends in kind.attributes.items())
        planned.append(Planned(len(planned) + 1, at, name, rank, lasts, direction, attributes))
        at += lasts + _between(scenario.every_ms, chance)
    return tuple(planned)


def _long_enough(scenario: Scenario) -> None:
    ends = [scenario.every_ms, *(_lasting(scenario, name) for name in scenario.rates)]
    pause, *lasting = (sum(each) / 2 for each in ends)
    least_ms = pause * len(lasting) + sum(lasting) - max(lasting)  # how long the last one takes does not matter
    if scenario.duration_ms < least_ms:
        raise ConfigError(
            f"{scenario.duration_ms / 1000:.0f} s are too short for {len(lasting)} kinds of faults: for each to "
            f"strike once, with the pauses between them, it takes {least_ms / 1000:.0f} s on an average",
            not_done="nothing was started",
            next_step="give a longer duration, a shorter pause with every, or fewer kinds of faults",
        )


def _lasting(scenario: Scenario, name: str) -> tuple[int, int]:
    timeouts = scenario.timeout_ms("silent_after_ms"), scenario.timeout_ms("session_timeout_ms")
    return lasts_ms(KINDS[name], *timeouts)


def _weighted(scenario: Scenario, chance: Chance) -> str:
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
