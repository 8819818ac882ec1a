"""Runs a seed: the production loops in a failing world, watched by the checkers.

Invariants
    - The same seed gives the same run, event by event; the trace hash proves it.
    - Every world heals, and the job must then finish in bounded virtual time (liveness).

Source: DESIGN section 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.chaos.sim import bounds
from holdfast.chaos.sim.checks.checkers import Checks
from holdfast.chaos.sim.faults.faults import Fault, Strike
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.jobs.branches.registry import BRANCHES
from holdfast.chaos.sim.jobs.workload import scenario
from holdfast.chaos.sim.world import World
from holdfast.runtime.config.settings import MICROBATCH

FINISH_WITHIN_S = 60.0
"""Virtual seconds within which the job must finish after the world has healed."""
AFTERMATH_S = 15.0
"""Virtual seconds after the end in which zombies may still do harm."""
EVENTS_MAX = 400_000
JOURNAL_LINES = 60


@dataclass(frozen=True)
class Run:
    """The result of one seed."""

    seed: int
    violations: tuple[str, ...]
    trace: str
    """Hash over every event, its time and its process."""
    events: int
    virtual_s: float
    armed: frozenset[Fault]
    fired: Mapping[Fault, int]
    counts: Mapping[str, int]
    hits: Mapping[tuple[str, Point], int] = field(repr=False, default_factory=dict)
    """By row of the coverage table and protocol point."""
    strikes: tuple[Strike, ...] = field(repr=False, default=())
    """In order of occurrence; a strike's number is its index here."""
    journal: tuple[str, ...] = field(repr=False, default=())

    @property
    def passed(self) -> bool:
        """Return whether everything held."""
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        """Return the run without its journal."""
        return {
            "seed": self.seed,
            "passed": self.passed,
            "violations": list(self.violations),
            "trace": self.trace,
            "events": self.events,
            "virtual_s": round(self.virtual_s, 3),
            "fired": {fault.value: count for fault, count in sorted(self.fired.items())},
            "counts": dict(self.counts),
        }


def simulate(seed: int, journal_lines: int = JOURNAL_LINES, *, keep_journal: bool = False) -> Run:
    """Run one seed to its end, or to the first violation.

    Args:
        keep_journal: Keep the last events even if everything held.
    """
    return play(World(scenario(seed)), journal_lines, keep_journal=keep_journal)


def play(world: World, journal_lines: int = JOURNAL_LINES, *, keep_journal: bool = False) -> Run:
    """Run a world to its end, or to the first violation."""
    with bounds.small(world.scenario.small_bounds):
        return _played(world, journal_lines, keep_journal)


def _played(world: World, journal_lines: int, keep_journal: bool) -> Run:
    checks, schedule = world.checks, world.schedule
    limit = world.scenario.heal_at + FINISH_WITHIN_S
    world.begin()
    ended_at: float | None = None
    while not checks.violations and not world.over() and not world.damage.ended:
        if checks.finished and ended_at is None:
            ended_at = world.elapsed
        if ended_at is not None and world.elapsed > ended_at + AFTERMATH_S:
            break
        if ended_at is None and (world.elapsed > limit or schedule.events > EVENTS_MAX):
            checks.fail("I11 progress", f"not finished {FINISH_WITHIN_S} virtual seconds after the world healed")
            break
        _noting(checks, schedule.step)
    if not checks.violations and not world.damage.ended:
        _noting(checks, checks.at_end)
    return Run(
        seed=world.scenario.seed,
        violations=tuple(checks.violations),
        trace=schedule.journal.hash,
        events=schedule.events,
        virtual_s=world.elapsed,
        armed=frozenset(world.scenario.armed),
        fired=dict(world.faults.fired),
        hits=dict(world.faults.hits),
        strikes=tuple(world.faults.made),
        counts=_counts(world),
        journal=tuple(schedule.journal.last(journal_lines)) if checks.violations or keep_journal else (),
    )


def _noting(checks: Checks, action: Callable[[], object]) -> None:
    """Run a step; the loops refuse by value, so an exception is a finding of this seed."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - recorded and reported with the seed
        checks.raised(error)


def _counts(world: World) -> dict[str, int]:
    history = world.checks.history
    return {
        "records": world.scenario.records,
        "epochs_triggered": history.triggers,
        "epochs_completed": len(history.cuts),
        "savepoints": len(history.savepoints),
        "rewinds": len(history.bases),
        "targets_repaired": world.checks.repairs,
        "generations": history.generation,
        "generations_that_completed": history.generations_that_completed,
        "drivers": len(world.drivers),
        "drivers_fenced": world.checks.outcomes.get("fenced", 0),
        "workers": len(world.workers),
        "checkpoints_restored": len(world.checks.restored),
        "folders_reused": world.disk.reused,
        "images_current": world.machines.taken["current"],
        "images_brought_up": world.machines.taken["older"],
        "ledgers": int(world.scenario.ledger),
        "regrouped": int(world.scenario.regroups),
        "partitions_discovered": world.checks.assigned.discovered,
        "ended_damaged": int(world.damage.ended),
        "texts": int(world.scenario.texts),
        **{name: int(name in world.scenario.branches) for name in BRANCHES},
        "tasks": world.tasks_made,
        "tasks_accepted": world.checks.attempts.accepted,
        "finishes_in_batches": world.checks.requests[MICROBATCH, "finish"],
        "rewinds_in_batches": world.checks.requests[MICROBATCH, "rewind"],
        "sources_waited_for_memory": world.checks.sources_waited_for_memory,
        "sources_waited_for_others": world.checks.aligned.waited,
        "barriers_wanted_early": world.checks.barriers_wanted_early,
        "standbys_promoted": world.checks.promotions,
    }
