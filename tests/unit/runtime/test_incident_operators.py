"""Incident files of jobs with further operators: all functions of aggregates, count windows, patterns, tables by time.

Each epoch of a job that is killed and rescaled goes through a file, and its replay equals the checkpoint.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import count_window_jobs
import lookup_jobs
import pattern_jobs
import pytest
import running_jobs
from job_player import rescale
from replayed_jobs import code_of, stored

import holdfast as hf
from holdfast.runtime.replay.epochs import newest
from holdfast.runtime.replay.incidents.container import IncidentWriter, Unpacked
from holdfast.runtime.replay.incidents.incident import About, read, taken, write
from holdfast.runtime.replay.incidents.making import made
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
EPOCHS = 4
PARTITIONS = 4
"""Each has its own keys, since the order of records of different partitions is not recorded, and rows in every epoch:
the test driver sets the time of partitions without any."""
Push = Callable[[TestDriver, random.Random, int], None]


def push_numbers(t: TestDriver, rng: random.Random, number: int) -> None:
    for partition in range(PARTITIONS):
        values = [(rng.choice([None, *range(5)]), rng.randint(0, 9)) for _ in range(rng.randint(1, 9))]
        rows = [
            running_jobs.row(f"{rng.choice('ab')}{partition}", 100 * number + n, v, by)
            for n, (v, by) in enumerate(values)
        ]
        t.push("rows", rows, partition)


def push_events(t: TestDriver, rng: random.Random, number: int) -> None:
    for partition in range(PARTITIONS):
        events = [
            pattern_jobs.Event(
                1000 * number + 100 * partition + n,
                f"u{partition}",
                rng.choice("abcd"),
                n,
                pattern_jobs.at(5.0 * number + n),
            )
            for n in range(rng.randint(1, 5))
        ]
        t.push("rows", events, partition)


def push_orders(t: TestDriver, rng: random.Random, number: int) -> None:
    clock = 5.0 * number
    for partition in range(PARTITIONS):
        code = f"c{partition}"
        changes = [lookup_jobs.rate(code, clock + rng.randint(0, 9), rng.choice([None, 10, 20])) for _ in range(3)]
        asked = [
            lookup_jobs.order(100 * number + 10 * partition + n, rng.choice([code, None]), clock + rng.randint(0, 9))
            for n in range(4)
        ]
        t.push("rates", changes, partition)
        t.push("orders", asked, partition)
    for source in ("orders", "rates"):
        t.watermark(source, lookup_jobs.at(clock))


JOBS: dict[str, tuple[Callable[[], hf.App], Push]] = {
    "running": (running_jobs.app_of, push_numbers),
    "counted": (lambda: count_window_jobs.app_of(3), push_numbers),
    "pattern": (lambda: pattern_jobs.app_of("some"), push_events),
    "lookup": (lookup_jobs.app_of, push_orders),
}


@pytest.mark.parametrize("job", JOBS)
def test_every_epoch_equals_its_checkpoint(job: str, seed: int = 5) -> None:
    build, push = JOBS[job]
    rng = random.Random(seed)
    files = list[bytes]()
    with TestDriver(build(), seed=seed) as t:
        for number in range(EPOCHS):
            push(t, rng, number)
            t.checkpoint()
            if number == 1:
                rescale(t, 3)
            elif number == 2:
                t.crash(0)
                t.recover()
        for epoch in newest(stored(t), EPOCHS):
            into = io.BytesIO()
            write(taken(code_of(t), epoch), IncidentWriter(into))
            files.append(into.getvalue())
        plan: Any = t._plan
    incidents = [read(Unpacked(io.BytesIO(data), "a file")) for data in files]
    proofs = [each.replayed(each.code(plan)) for each in incidents]
    assert len(files) >= 3 and sum(each.records for each in incidents) > 10
    assert [proof.differences for proof in proofs] == [()] * len(files)
    assert all(proof.exact for proof in proofs)


@pytest.mark.continuous
@pytest.mark.parametrize(("job", "columns"), [("running", ["k"]), ("counted", ["k"]), ("lookup", ["country", "code"])])
def test_with_other_keys_every_result_is_the_same(job: str, columns: list[str]) -> None:
    build, push = JOBS[job]
    rng = random.Random(1)
    with TestDriver(build(), seed=1) as t:
        for number in range(3):
            push(t, rng, number)
            t.checkpoint()
        incident, proof = made(code_of(t), newest(stored(t), 1)[0], About(), columns=columns)
    assert proof.exact and incident.start is not None and any(table.num_rows for table in incident.start.state.values())
