"""Each wrong version of keyed functions is caught by a test of whole jobs; the right one passes it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keyed_jobs
import pytest
import reminder_jobs

from holdfast.chaos.mutants.keyed_mutants import CLOCK_MUTANTS, KEYED_MUTANTS
from holdfast.chaos.mutants.mutation import Mutant, applied
from holdfast.testing import TestDriver

SEEDS_MAX = 12


def steps_of(seed: int) -> list[Any]:
    """Return pushes and watermarks, and now and then a failure."""
    rng = random.Random(seed)
    steps: list[Any] = []
    for number in range(6):
        given = [(rng.choice(keyed_jobs.KEYS), 6 * number + rng.randrange(-5, 5)) for _ in range(7)]
        steps += [("push", number % 3, given), ("watermark", 6 * number)]
        steps.append(("fail", rng.choice(keyed_jobs.KEYS), 6 * number, 8, rng.randrange(6)))
        if number % 2:
            steps.append(rng.choice([("crash", 0), ("crash", 1), ("parallelism", 3), ("parallelism", 2)]))
    return steps


def begun(t: TestDriver) -> None:
    """Begin an epoch that is not completed, so that a survivor has something to roll back."""
    t.cluster.clock.now += 1.1
    for _ in range(12):
        t.cluster.step()


def play(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("holdfast.runtime.operators.process.operator.ROUND_TIMERS", 2)
        with TestDriver(keyed_jobs.app_of(), 2, seed) as t:
            keyed_jobs.play(t, steps_of(seed), keyed_jobs.Oracle(), begun)


def play_with_clock(seed: int) -> None:
    """Play orders and waits, and now and then a failure or a clock that goes back."""
    rng = random.Random(seed)
    steps: list[Any] = []
    for _ in range(4):
        steps.append(("push", [(rng.choice(reminder_jobs.KEYS), rng.randrange(40)) for _ in range(7)]))
        steps.append(rng.choice([("wait", 2), ("outage", 0, 3), ("clock back", 3)]))
        steps.append(rng.choice([("crash", 0), ("crash", 1), ("parallelism", 3), ("parallelism", 2)]))
    with TestDriver(reminder_jobs.app_of(), 2, seed) as t:
        reminder_jobs.Player(t, begun).play(steps)


def caught(play: Callable[[int], None]) -> int | None:
    """Play seeds until one fails; return how many, None if none did."""
    for seed in range(SEEDS_MAX):
        try:
            play(seed)
        except AssertionError:
            return seed + 1
    return None


class TestKeyedMutants:
    def test_what_is_not_mutated_passes(self) -> None:
        for seed in range(3):
            play(seed)
            play_with_clock(seed)

    @pytest.mark.parametrize("mutant", KEYED_MUTANTS, ids=lambda mutant: mutant.name)
    def test_a_wrong_version_is_caught(self, mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
        with applied(mutant):
            seeds = caught(play_with_clock if mutant in CLOCK_MUTANTS else play)
        assert seeds is not None, f"{mutant.name} ({mutant.rules}) survived"
        record_property("wrong version", f"{mutant.name} {seeds}")
