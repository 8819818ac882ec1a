"""A limit on the rows of a function that has ended its process holds until an epoch has moved a source."""

from __future__ import annotations

import pytest

from holdfast.model import Subtask
from holdfast.runtime.driver import killing
from holdfast.runtime.driver.state import Kills
from holdfast.runtime.microbatch.task import Batch
from holdfast.runtime.wire.messages import Killer, Suspect
from holdfast.testing import TestDriver
from tests.unit.runtime.microbatch.test_jobs import app, visit

KILLERS = (Killer(7, "exit status 3"),)
SHUFFLED = Suspect("f", 1, killers=KILLERS)
SOURCE = Suspect("f", 1, 0, 77, 80)


def test_is_lifted_behind_a_shuffle_once_an_epoch_is_completed_and_rows_stay_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = list[tuple[Suspect, ...]]()

    def suspects(_kills: Kills, _subtask: Subtask) -> tuple[Suspect, ...]:
        return SHUFFLED, SOURCE

    monkeypatch.setattr(killing, "suspects", suspects)
    with TestDriver(app()) as t:
        assert t.cluster.batches is not None
        jobs = t.cluster.batches.jobs
        run = jobs.run

        def noted(job: int, batch: Batch) -> None:
            given.extend(each.suspects for each in batch.deploys)
            run(job, batch)

        monkeypatch.setattr(jobs, "run", noted)
        for number in range(2):
            t.push("visits", [visit(number)])
            t.checkpoint()
    first, second = given[: len(given) // 2], given[len(given) // 2 :]
    assert set(first) == {(SHUFFLED, SOURCE)}
    assert set(second) == {(Suspect("f", killers=KILLERS), SOURCE)}
