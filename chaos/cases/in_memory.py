"""An app under the test driver with crashes at seeded moments, compared with an undisturbed run.

Rows are pushed in slices of seeded sizes. Workers and drivers die between slices and in the middle of checkpoints,
and in every run at least once while rows are processed that no checkpoint holds.
The delivered rows must be the same as in a run without crashes, each equally often. Floats may differ in the ninth
digit, because sums depend on their order.

Invariants
    - Every requested kind of fault fires at least once.
    - The verdict is "held" only if some record was read again: otherwise every fault found all rows committed.
    - A row is pushed once; the rows of a partition are pushed in order.

Source: DESIGN section 13 (`TestDriver`); PROTOCOL P8, P10, P18.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.chaos.cases.outcome import Case, Outcome
from holdfast.errors import JobFailed
from holdfast.runtime.api.app import App
from holdfast.runtime.testing.driver import TestDriver

SLICES_MAX = 8
"""Most pieces that the rows of a partition are cut into."""
FAULTS_MAX = 3
"""Faults of each kind."""
STEPS_MAX = 20
"""A crash comes within this many steps of each worker into a checkpoint; a checkpoint takes about fifteen."""
ROWS_SHOWN = 3
FLOATS_DIFFER = 1e-9
"""Relative tolerance of floats; absolute around zero, where sums cancel."""
Push = tuple[str, int, Sequence[Any]]


def play(case: Case, build: Callable[[], App], seed: int, again: str) -> Outcome:
    """Run the app twice, with and without crashes, and compare."""
    calm = _Played(build(), case.parallelism, seed)
    pushes = _cut(case.rows, random.Random(f"{seed}/slices"))
    expected_rows = calm.run([(lambda push=push: calm.push(push)) for push in pushes])  # type: ignore[misc]
    trial = _Played(build(), case.parallelism, seed)
    rng = random.Random(f"{seed}/faults")
    steps: list[Callable[[], None]] = [(lambda push=push: trial.push(push)) for push in pushes]  # type: ignore[misc]
    nonempty_steps = [step for step, (_, _, rows) in zip(steps, pushes, strict=True) if len(rows)]
    at_stake = random.Random(f"{seed}/at-stake")
    for kind in sorted(case.faults):
        for _ in range(rng.randint(1, FAULTS_MAX)):
            steps.insert(rng.randint(0, len(steps)), lambda kind=kind: trial.strike_late(kind, rng))  # type: ignore[misc]
    if nonempty_steps:
        _after_a_push(
            steps, nonempty_steps, at_stake, lambda: trial.strike(at_stake.choice(sorted(case.faults)), at_stake)
        )
    try:
        delivered = trial.run(steps)
    except JobFailed as error:
        return Outcome("violated", (str(error),), seed, trial.fired, trial.recoveries, None, None, again)
    return _compared(case, expected_rows, delivered, trial, seed, again)


def _after_a_push(
    steps: list[Callable[[], None]],
    pushes: Sequence[Callable[[], None]],
    rng: random.Random,
    strike: Callable[[], None],
) -> None:
    """Let a fault strike right after one of the pushes, before its rows could be committed."""
    steps.insert(steps.index(rng.choice(pushes)) + 1, strike)


class _Played:
    """One run of the app."""

    def __init__(self, app: App, parallelism: int, seed: int) -> None:
        self.driver = TestDriver(app, parallelism, seed)
        self.parallelism = parallelism
        self.fired: Counter[str] = Counter()
        self.recoveries = 0

    def run(self, steps: Sequence[Callable[[], None]]) -> dict[str, list[dict[str, Any]]]:
        """Take the steps, let the job finish, and return the delivered rows by sink."""
        with self.driver as driver:
            for step in steps:
                step()
            driver.finish()
            return {sink: driver.rows(sink) for sink in driver.sinks}

    def push(self, push: Push) -> None:
        """Push a slice."""
        source, partition, rows = push
        self.driver.push(source, rows, partition)

    def strike_late(self, kind: str, rng: random.Random) -> None:
        """Cause a fault, perhaps in the middle of a checkpoint or of another recovery."""
        cluster = self.driver.cluster
        if rng.random() < 0.3:
            self.driver.checkpoint()
        cluster.clock.now += cluster.rules.checkpoint_every * rng.choice((0, 1, 1, 1))
        for _ in range(rng.randint(0, STEPS_MAX * self.parallelism)):
            cluster.step()
        self.strike(kind, rng)

    def strike(self, kind: str, rng: random.Random) -> None:
        """Cause a fault now."""
        cluster, driver = self.driver.cluster, self.driver
        before = cluster.driver.state.job.generation
        if kind == "driver-kill":
            cluster.replace_driver()
        else:
            victims = rng.sample(range(self.parallelism), rng.choice((1, 1, min(2, self.parallelism))))
            for victim in victims:
                driver.crash(victim)
        self.fired[kind] += 1
        driver.recover()
        self.recoveries += cluster.driver.state.job.generation - before


def _cut(rows: Mapping[str, Any], rng: random.Random) -> list[Push]:
    """Cut the rows of every partition into slices, and interleave the partitions."""
    queues = []
    for source, given in rows.items():
        for partition, all_rows in (given if isinstance(given, Mapping) else {0: given}).items():
            cuts = sorted(rng.randint(0, len(all_rows)) for _ in range(rng.randint(0, SLICES_MAX - 1)))
            bounds = [0, *cuts, len(all_rows)]
            queues.append([(source, partition, all_rows[a:b]) for a, b in itertools.pairwise(bounds)])
    pushes = []
    while queues := [queue for queue in queues if queue]:
        pushes.append(rng.choice(queues).pop(0))
    return pushes


def _compared(
    case: Case,
    expected: Mapping[str, list[dict[str, Any]]],
    delivered: Mapping[str, list[dict[str, Any]]],
    played: _Played,
    seed: int,
    again: str,
) -> Outcome:
    lost_count = duplicate_count = 0
    reasons = []
    for sink, rows in expected.items():
        missing, spare = unmatched(rows, delivered[sink])
        for what, rest in (("missing from", missing), ("too many in", spare)):
            if rest:
                shown = ", ".join(list(dict.fromkeys(map(_text, rest)))[:ROWS_SHOWN])
                reasons.append(f"{len(rest)} rows {what} {sink!r}: {shown}")
        lost_count += len(missing)
        duplicate_count += len(spare)
    if not any(expected.values()) and not reasons:
        return Outcome(
            "not_proven",
            ("no row was delivered, so nothing was compared",),
            seed,
            played.fired,
            played.recoveries,
            None,
            None,
            again,
            delivered,
        )
    if not reasons and not any(source.read_again for source in played.driver.sources.values()):
        return Outcome(
            "not_proven",
            ("no record was read again, so no fault put any record at risk",),
            seed,
            played.fired,
            played.recoveries,
            lost_count,
            duplicate_count,
            again,
            delivered,
        )
    verdict: Any = "violated" if reasons else "held"
    return Outcome(
        verdict, tuple(reasons), seed, played.fired, played.recoveries, lost_count, duplicate_count, again, delivered
    )


def unmatched(wanted: Sequence[Any], found: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the missing rows and the surplus rows.

    Two rows are the same if they differ only in floats, and in each float by no more than the order of a sum can
    change. Rounding them first would not work: values on either side of a tie round apart.
    """
    missing, candidates = _without(wanted, found), _without(found, wanted)
    spare: dict[str, list[Any]] = {}
    for row in candidates:
        spare.setdefault(_text(row, floats=False), []).append(row)
    left = []
    for row in missing:
        alike = spare.get(_text(row, floats=False), [])
        place = next((place for place, other in enumerate(alike) if _close(row, other)), None)
        if place is None:
            left.append(row)
        else:
            alike.pop(place)
    return left, [row for rows in spare.values() for row in rows]


def _without(rows: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Return the rows that are not among the others, each as often as it is surplus."""
    there = Counter(map(_text, others))
    left = []
    for row in rows:
        text = _text(row)
        if there[text]:
            there[text] -= 1
        else:
            left.append(row)
    return left


def _close(row: Any, other: Any) -> bool:
    """Return whether two rows that differ only in floats agree in these too."""
    return all(
        a == b or math.isclose(a, b, rel_tol=FLOATS_DIFFER, abs_tol=FLOATS_DIFFER) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(_floats(row), _floats(other), strict=True)
    )


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _floats(each)


def _text(value: Any, *, floats: bool = True) -> str:
    """Return a text that is equal for equal values; without floats, also for values that differ only in floats."""
    if isinstance(value, float):
        return repr(value) if floats else "~"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(value[key], floats=floats)}" for key in value) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(each, floats=floats) for each in value) + "]"
    return repr(value)
