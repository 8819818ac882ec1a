"""Replays a seed with something left out: strikes of faults, features, records, workers.

The seed is played once unchanged, and its draws are recorded; then once more with the remaining strikes only, and with
the same draws wherever the same question is asked (chaos/sim/faults/draws.py).

Invariants
    - A seed and a reduction give one run.
    - With nothing left out the replay is the run of the seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from holdfast.chaos.explore.shrink import NOTHING_LEFT_OUT, Reduction, Shrunk, shrink
from holdfast.chaos.sim.faults.draws import Chance, Noted, Notes, Noting
from holdfast.chaos.sim.faults.schedule import Schedule
from holdfast.chaos.sim.jobs.branches.registry import BRANCHES
from holdfast.chaos.sim.jobs.workload import Scenario, scenario
from holdfast.chaos.sim.simulator import JOURNAL_LINES, Run, play
from holdfast.chaos.sim.world import World
from holdfast.checkpoint.bases import Thresholds
from holdfast.checkpoint.catalogue import Retention

PLAIN: dict[str, Any] = {
    "ledger": False,
    "regroups": False,
    "letters": False,
    "rewinds": (),
    "savepoints": (),
    "ends": (),
    "once": (False,),
    "rests": (),
    "windowing": None,
    "immediate": False,
    "folders": False,
    "aims": (),
    "merging": Thresholds(),
    "retention": Retention(),
    "above": None,
    "earlier_job": False,
    "appears": (),
    "texts": False,
    "state_memory": None,
    "copied_per_turn": None,
    "batches": (False,),
}
"""A scenario without a feature, by its name; branches have their own names."""
FEATURES = (*PLAIN, *BRANCHES)


@dataclass(frozen=True)
class Original:
    """An unchanged seed and its draws."""

    run: Run
    notes: Notes


def noted(seed: int) -> Original:
    """Play a seed and record its draws."""
    notings: list[Noting] = []

    def chance(source: random.Random, schedule: Schedule) -> Chance:
        notings.append(Noting(source, lambda: _asking(schedule)))
        return notings[0]

    run = play(World(scenario(seed), chance))
    return Original(run, dict(notings[0].notes))


def replay(
    original: Original, reduction: Reduction, journal_lines: int = JOURNAL_LINES, *, keep_journal: bool = False
) -> Run:
    """Play a seed again with something left out."""
    seed = original.run.seed
    if reduction == NOTHING_LEFT_OUT:
        return play(World(scenario(seed)), journal_lines, keep_journal=keep_journal)
    strikes = original.run.strikes
    left = range(len(strikes)) if reduction.strikes is None else reduction.strikes
    only = frozenset(strikes[number] for number in left)

    def chance(_: random.Random, schedule: Schedule) -> Chance:
        return Noted(seed, original.notes, lambda: _asking(schedule))

    world = World(reduced(scenario(seed), reduction), chance, only)
    return play(world, journal_lines, keep_journal=keep_journal)


def smallest(seed: int) -> tuple[Original, Shrunk]:
    """Shrink the failure of a seed."""
    original, whole = noted(seed), scenario(seed)
    kinds = [strike.fault.name for strike in original.run.strikes]
    features = [name for name, plain in PLAIN.items() if getattr(whole, name) != plain] + [*whole.branches]
    return original, shrink(original.run, kinds, features, lambda reduction: replay(original, reduction, 0))


def reduced(whole: Scenario, reduction: Reduction) -> Scenario:
    """Return the reduced scenario."""
    records, workers = reduction.records, reduction.workers
    if "windowing" in reduction.without:
        whole = replace(whole, regroups=False, branches=())
    if {"windowing", "rests"} & {*reduction.without} or records is not None:
        whole = replace(whole, rests=())
    return replace(
        whole,
        partitions=tuple(each[:records] for each in whole.partitions),
        arrivals=tuple(each[:records] for each in whole.arrivals),
        parallelisms=tuple(n if workers is None else min(n, workers) for n in whole.parallelisms),
        heal_at=whole.heal_at if reduction.heal_at is None else min(reduction.heal_at, whole.heal_at),
        branches=tuple(name for name in whole.branches if name not in reduction.without),
        **{name: PLAIN[name] for name in reduction.without if name in PLAIN},
    )


def _asking(schedule: Schedule) -> str:
    return f"{schedule.running} {schedule.deciding}"
