from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.checkpoint.joblog import CheckpointCompleted, Completed, Finished, Job, Savepoint
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, Timeline
from holdfast.runtime.driver.requests import no_way_back
from holdfast.runtime.rewind.plan import check, plan_id, state_of
from holdfast.runtime.rewind.target import RewindPoint, target_of
from holdfast.storage.objects import MemoryObjects


def completed(epoch: int, at: int = 0) -> Completed:
    body = CheckpointCompleted(Epoch(epoch), Epoch(epoch - 1), ObjectRef(f"m{epoch}", 1, "0"), 1, 1, 1)
    return Completed(body, Generation(1), Timeline(1), at)


JOB = Job(
    JobUuid("j"),
    "hot",
    128,
    0,
    9,
    completed=(completed(3, 30), completed(7, 70), completed(9, 90)),
    savepoints=(Savepoint("kept", Epoch(3)), Savepoint("newer", Epoch(7))),
    expired_through=Epoch(6),
)


NOWHERE = Repository(MemoryObjects())
"""What is named by epoch, time or savepoint is found in the log alone."""


class TestTarget:
    def test_is_named_by_epoch_time_or_savepoint(self) -> None:
        for wanted in (RewindPoint(epoch=7), RewindPoint(at_us=89), RewindPoint(savepoint="newer")):
            assert target_of(NOWHERE, JOB, wanted).body.epoch == 7

    def test_beyond_the_horizon_is_refused_with_the_reason(self) -> None:
        for wanted in (RewindPoint(epoch=3), RewindPoint(savepoint="kept")):
            with pytest.raises(ConfigError, match="targets no longer keep before-images through epoch 6"):
                target_of(NOWHERE, JOB, wanted)
        with pytest.raises(ConfigError, match="no checkpoint from before that time"):
            target_of(NOWHERE, JOB, RewindPoint(at_us=40))

    def test_a_time_before_all_checkpoints_is_refused_with_the_oldest(self) -> None:
        longer = replace(JOB, completed=(*JOB.completed, completed(12, 120), completed(13, 130)))
        with pytest.raises(ConfigError) as refused:
            target_of(NOWHERE, longer, RewindPoint(at_us=40))
        assert "the nearest epochs it can be rewound to: 7; " in refused.value.next_step

    def test_an_unknown_savepoint_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(ConfigError) as refused:
            target_of(NOWHERE, JOB, RewindPoint(savepoint="old"))
        assert "kept, newer; " in refused.value.next_step
        with pytest.raises(ConfigError) as refused:
            target_of(NOWHERE, replace(JOB, savepoints=()), RewindPoint(savepoint="old"))
        assert "it has none; " in refused.value.next_step

    def test_an_unknown_epoch_is_refused_with_its_neighbours(self) -> None:
        with pytest.raises(ConfigError) as refused:
            target_of(NOWHERE, JOB, RewindPoint(epoch=8))
        assert "the nearest epochs it can be rewound to: 7 and 9" in str(refused.value)
        with pytest.raises(ConfigError, match="has no savepoint 'old'"):
            target_of(NOWHERE, JOB, RewindPoint(savepoint="old"))

    def test_a_finished_job_stays_finished(self) -> None:
        finished = replace(JOB, ended=Finished(Epoch(9)))
        assert no_way_back(finished, 7) == "the job has finished and cannot be rewound"


class TestPlanId:
    def test_changes_with_the_run_the_request_and_the_accepted_verdicts(self) -> None:
        ids = {
            plan_id(JOB, completed(7), [], stop=False),
            plan_id(JOB, completed(7), [], stop=True),
            plan_id(JOB, completed(9), [], stop=False),
            plan_id(JOB, completed(7), ["out:impossible"], stop=False),
            plan_id(JOB, completed(7), ["other:impossible"], stop=False),
            plan_id(replace(JOB, generation=Generation(5)), completed(7), [], stop=False),
            plan_id(replace(JOB, timeline=Timeline(2)), completed(7), [], stop=False),
        }
        assert len(ids) == 7

    def test_does_not_change_with_a_name_or_a_newer_checkpoint(self) -> None:
        shown = plan_id(JOB, completed(7), [], stop=False)
        for after in (replace(JOB, savepoints=()), replace(JOB, completed=(*JOB.completed, completed(10)))):
            assert plan_id(after, completed(7), [], stop=False) == shown


class TestState:
    def test_is_listed_by_operator_names_without_the_clocks_of_windows(self) -> None:
        operators = tuple(OperatorState(name, number, {}) for number, name in enumerate(("hours", "hours.clock"), 1))
        here = Manifest(JobUuid("j"), Generation(1), Timeline(1), Epoch(7), Epoch(3), 1, 128, (), (), (), (), operators)
        assert state_of(here) == [{"operator": "hours", "action": "restore", "bytes": 0}]


class TestCheck:
    def plan(self, available: bool | None, verdict: str | None) -> dict[str, Any]:
        source = {"name": "rows", "partition": 0, "to_offset": 5, "available": available}
        sinks = [{"name": "out", "verdict": verdict, "reason": "so"}]
        return {"job": "hot", "sources": [source], "sinks": sinks, "accept": []}

    def test_records_that_no_longer_exist_cannot_be_reread(self) -> None:
        with pytest.raises(ConfigError, match="from offset 5 on no longer exist"):
            check(self.plan(False, "overwrite"), ())

    def test_irreversible_output_is_refused_if_nothing_can_be_accepted(self) -> None:
        with pytest.raises(ConfigError, match="'out' cannot undo its output: so"):
            check(self.plan(True, "impossible"), ["out:impossible"])

    def test_irreversible_output_passes_if_exactly_that_verdict_is_accepted(self) -> None:
        plan = self.plan(True, "impossible") | {"accept": ["out:impossible"]}
        check(plan, ["out:impossible"])
        for given in ([], ["other:impossible"]):
            with pytest.raises(ConfigError, match="or accept it: --accept out:impossible"):
                check(plan, given)

    def test_unknown_and_reversible_output_passes(self) -> None:
        for available, verdict in ((None, None), (True, "overwrite"), (True, "truncate")):
            check(self.plan(available, verdict), ())
