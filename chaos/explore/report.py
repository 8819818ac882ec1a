"""The summary of many runs, as text and as JSON.

A run proves something only if its armed faults have struck, so they are counted by kind. A kind that was armed often
and never struck makes the whole summary fail (I13, non-vacuity).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast.chaos.explore.coverage import as_json, empty_cells, table_lines
from holdfast.chaos.explore.replays import Original
from holdfast.chaos.explore.shrink import NOTHING_LEFT_OUT, Reduction, Shrunk
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.simulator import Run

COVERED_AFTER = 400
"""Runs in which every cell that must be hit is hit."""
VACUOUS_AFTER = 20
"""A fault that was armed in this many runs and never fired proves nothing."""


@dataclass
class Summary:
    """Counts over runs, added one by one."""

    runs: int = 0
    failed: list[Run] = field(default_factory=list)
    armed: Counter[Fault] = field(default_factory=Counter)
    fired: Counter[Fault] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    hits: Counter[tuple[str, Point]] = field(default_factory=Counter)
    events: int = 0
    virtual_s: float = 0.0

    def add(self, run: Run) -> None:
        """Count a run."""
        self.runs += 1
        self.events += run.events
        self.virtual_s += run.virtual_s
        self.armed.update(run.armed)
        self.fired.update(run.fired)
        self.counts.update(run.counts)
        self.hits.update(run.hits)
        if not run.passed:
            self.failed.append(run)

    @property
    def vacuous(self) -> list[Fault]:
        """Return the faults that were armed often and never struck."""
        return [fault for fault in Fault if self.armed[fault] >= VACUOUS_AFTER and not self.fired[fault]]

    @property
    def passed(self) -> bool:
        """Return whether everything held and every fault was real."""
        return not self.failed and not self.vacuous and not (self.runs >= COVERED_AFTER and self.empty)

    @property
    def empty(self) -> list[str]:
        """Return the cells of the coverage table that must be hit and were not."""
        return empty_cells(self.hits)

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON-able values."""
        return {
            "passed": self.passed,
            "seeds": self.runs,
            "failed": [run.as_json() for run in self.failed],
            "vacuous": [fault.value for fault in self.vacuous],
            "events": self.events,
            "virtual_s": round(self.virtual_s, 1),
            "counts": dict(self.counts),
            "coverage": as_json(self.hits),
            "empty": self.empty,
            "faults": {f.value: {"armed_seeds": self.armed[f], "fired": self.fired[f]} for f in Fault},
        }


def verdict_line(summary: Summary, seeds: int | None = None) -> str:
    """Return the verdict in one line.

    Args:
        seeds: How many were requested; None: as many as were played.
    """
    seed_count, cut_short = f"{summary.runs:,} seeds", seeds is not None and summary.runs < seeds
    if summary.failed:
        rest = f"; interrupted, {seeds:,} were requested" if cut_short else ""
        return f"VIOLATED: {len(summary.failed):,} of {seed_count} failed{rest}"
    if cut_short:
        return f"INTERRUPTED after {summary.runs:,} of {seeds:,} seeds: nothing is known about the others"
    if not summary.passed:
        why = "faults were armed and never struck" if summary.vacuous else "points that must be hit were not"
        return f"NOT PROVEN: {seed_count} held, but {why}"
    return f"HELD: {seed_count}"


def summary_lines(summary: Summary) -> list[str]:
    """Return the summary as text."""
    size = f"{summary.runs} seeds, {summary.events} events, {summary.virtual_s:.0f} virtual seconds"
    lines = [
        f"{size}: {len(summary.failed)} failed",
        "  " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in summary.counts.items()),
        "  fault                                                  armed in   struck",
    ]
    lines += [f"  {fault.value:<55}{summary.armed[fault]:>8} {summary.fired[fault]:>8}" for fault in Fault]
    lines += ["  strikes by fault and protocol point:", *table_lines(summary.hits)]
    lines += [f"  must be hit and was not: {cell}" for cell in summary.empty]
    lines += [f"  armed and never struck: {fault.value}" for fault in summary.vacuous]
    return lines


def shrunk_lines(original: Original, shrunk: Shrunk, mutant: str | None = None) -> list[str]:
    """Return the shrunk failure and the command that plays it."""
    strikes, reduction = original.run.strikes, shrunk.reduction
    left = range(len(strikes)) if reduction.strikes is None else reduction.strikes
    return [
        f"shrunk by {shrunk.replays} runs, from {len(strikes)} strikes to {len(left)}:",
        *(f"  strike {number}: {strikes[number].who}: {strikes[number].fault}" for number in left),
        f"play that: {replay_command(original.run.seed, mutant, reduction)}",
    ]


def failure_lines(run: Run) -> list[str]:
    """Return a failed run: its last events, the violations, and the command that replays it."""
    return [
        f"seed {run.seed} failed; its last events (virtual seconds, process, what):",
        *(f"  {line}" for line in run.journal),
        *(f"FAILED  {violation}" for violation in run.violations),
        f"play it again: {replay_command(run.seed)}",
    ]


def brief_line(run: Run) -> str:
    """Return a failed run in one line; its seed is all that a replay needs."""
    return f"seed {run.seed} failed: {' '.join(run.violations[0].split()):.200}"


def replay_command(seed: int, mutant: str | None = None, reduction: Reduction = NOTHING_LEFT_OUT) -> str:
    """Return the command that replays a seed, with the reduction."""
    schedule = "" if reduction == NOTHING_LEFT_OUT else f" --schedule {reduction}"
    return f"holdfast chaos replay --seed {seed}{schedule}" + (f" --mutant {mutant}" if mutant else "")
