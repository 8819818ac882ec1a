"""The machine of microbatch mode: triggers, jobs, results, what becomes of an epoch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.bases import Thresholds
from holdfast.errors import ErrorReport
from holdfast.model import (
    NO_EPOCH,
    Barrier,
    Cut,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Timeline,
    WorkerId,
    Writer,
)
from holdfast.runtime.microbatch import machine
from holdfast.runtime.microbatch.blocks import Attempt, Result
from holdfast.runtime.microbatch.machine import Acked, Batches, BatchIdle, BatchRunning
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker.protocol import QueueOutput

GENERATION = Generation(3)
PLACES = (("in", 0), ("in", 1))
UNTIL = {("in", 0): 10, ("in", 1): 20}
PASSING = ErrorReport(kind="unavailable", what="an executor was lost", not_done="", next="")


def deploy(subtask: int, **changed: Any) -> m.Deploy:
    at = SourcePosition("in", subtask, 0)
    handle = SnapshotHandle(Subtask(subtask), (subtask * 4, subtask * 4 + 4), (), NO_EPOCH, ())
    peers = tuple(m.Peer(Subtask(number), WorkerId(f"w{number}"), ("here", 0)) for number in range(2))
    role = m.ActiveRole(Subtask(subtask))
    given = JobUuid("job"), GENERATION, Timeline(1), Epoch(5), NO_EPOCH, role, peers, handle, (at,), (), ()
    return msgspec.structs.replace(m.Deploy(*given), **changed)


def begun(**changed: Any) -> Batches:
    return machine.start([deploy(1), deploy(0)], **changed)


def trigger(epoch: int, committed: int = 0, *, last: bool = False, **changed: Any) -> m.Trigger:
    return m.Trigger(GENERATION, Barrier(Epoch(epoch), Epoch(committed), last), **changed)


def ref(name: str, size: int = 100) -> ObjectRef:
    return ObjectRef(name, size, "hash")


def result(layer: int, subtask: int, epoch: int = 5, name: str = "a", reads: str = "a") -> Result:
    """Return the result of a task of a job with two layers and two subtasks."""
    before = tuple(Attempt(0, Subtask(number), reads) for number in range(2)) if layer else ()
    segment = SegmentRef(Epoch(epoch), NO_EPOCH, ref(f"segment-{layer}-{subtask}")) if layer else None
    positions = () if layer else (SourcePosition("in", subtask, UNTIL["in", subtask]),)
    staged = {"out": Staged((ref(f"staged-{layer}-{subtask}"),), 2)}
    return Result(Attempt(layer, Subtask(subtask), name), before, positions, segment, staged)


def results(**changed: Any) -> list[Result]:
    return [result(layer, subtask, **changed) for layer in range(2) for subtask in range(2)]


def kinds(effects: list[machine.Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def acked(state: Batches | None = None, epoch: int = 5) -> Batches:
    state, _ = machine.triggered(state or begun(), trigger(epoch), UNTIL)
    state, _ = machine.finished(state, state.job, results(epoch=epoch), 2)
    assert isinstance(state.phase, Acked)
    return state


class TestJobs:
    def test_a_trigger_starts_one_job_although_every_subtask_gets_it(self) -> None:
        state, effects = machine.triggered(begun(), trigger(5), UNTIL)
        assert effects == [machine.StartJob(1, trigger(5), UNTIL)]
        assert machine.triggered(state, trigger(5), {}) == (state, [])

    def test_a_trigger_of_another_generation_starts_none(self) -> None:
        other = msgspec.structs.replace(trigger(5), generation=Generation(2))
        assert machine.triggered(begun(), other, UNTIL)[1] == []

    def test_a_later_epoch_ends_the_job_of_one_that_was_given_up(self) -> None:
        state, _ = machine.triggered(begun(), trigger(5), UNTIL)
        state, effects = machine.triggered(state, trigger(6), UNTIL)
        assert effects == [machine.CancelJob(1), machine.StartJob(2, trigger(6), UNTIL)]
        assert machine.finished(state, 1, results(), 2) == (state, [])

    def test_the_last_barrier_is_remembered(self) -> None:
        assert machine.triggered(begun(), trigger(5, last=True), UNTIL)[0].halted

    def test_numbers_of_jobs_go_on_over_generations(self) -> None:
        state, effects = machine.triggered(begun(jobs=7), trigger(5), UNTIL)
        assert effects == [machine.StartJob(8, trigger(5), UNTIL)] and state.job == 8

    def test_a_job_that_fails_runs_again_from_the_same_offsets_and_then_fails_the_generation(self) -> None:
        state, _ = machine.triggered(begun(), trigger(5), UNTIL)
        for _ in range(machine.ATTEMPTS_MAX - 1):
            state, effects = machine.failed_job(state, state.job, PASSING)
            assert effects == [machine.StartJob(state.job, trigger(5), UNTIL)]
        state, effects = machine.failed_job(state, state.job, PASSING)
        assert effects == [machine.FailGeneration(PASSING, permanent=False)]
        assert isinstance(state.phase, BatchIdle)

    def test_an_error_that_would_recur_is_not_tried_again(self) -> None:
        state, _ = machine.triggered(begun(), trigger(5), UNTIL)
        failed = Result(Attempt(0, Subtask(0), "a"), error=PASSING, permanent=True)
        assert machine.finished(state, 1, [failed], 2)[1] == [machine.FailGeneration(PASSING, permanent=True)]

    def test_tasks_that_a_source_or_the_root_refuses_wait_ever_longer_and_fail_no_generation(self) -> None:
        state, _ = machine.triggered(begun(), trigger(5), UNTIL)
        refused, waits = Result(Attempt(0, Subtask(0), "a"), error=PASSING), []
        for _ in range(2 * machine.ATTEMPTS_MAX):
            state, effects = machine.finished(state, state.job, [refused], 2)
            assert [effect.until for effect in effects if isinstance(effect, machine.StartJob)] == [UNTIL]
            waits += [effect.after_s for effect in effects if isinstance(effect, machine.StartJob)]
        assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
        assert isinstance(state.phase, BatchRunning) and state.phase.refused == PASSING.what

    def test_the_end_of_an_older_job_changes_nothing(self) -> None:
        state, _ = machine.triggered(begun(), trigger(5), UNTIL)
        state, _ = machine.failed_job(state, 1, PASSING)
        assert machine.failed_job(state, 1, PASSING) == (state, [])
        assert machine.finished(state, 1, results(), 2) == (state, [])


class TestResults:
    def test_all_results_become_one_part_per_subtask(self) -> None:
        state, _ = machine.triggered(begun(), trigger(5), UNTIL)
        state, effects = machine.finished(state, 1, results(), 2)
        parts = [effect.part for effect in effects if isinstance(effect, machine.AckPart)]
        assert [part.subtask for part in parts] == [0, 1]
        assert [at.offset for at in parts[0].positions] == [10]
        assert parts[1].staged["out"] == Staged((ref("staged-0-1"), ref("staged-1-1")), 4)

    def test_segments_of_several_layers_are_all_named(self) -> None:
        state, _ = machine.triggered(begun(), trigger(5), UNTIL)
        third = [
            msgspec.structs.replace(
                result(1, subtask),
                attempt=Attempt(2, Subtask(subtask), "a"),
                segment=SegmentRef(Epoch(5), NO_EPOCH, ref(f"deeper-{subtask}")),
            )
            for subtask in range(2)
        ]
        state, effects = machine.finished(state, 1, [*results(), *third], 3)
        part = next(effect.part for effect in effects if isinstance(effect, machine.AckPart))
        assert part.segment is not None and part.segment.object.path == "segment-1-0"
        assert [each.object.path for each in part.further] == ["deeper-0"]
        state, _ = machine.committed(state, Cut(Epoch(5), "hash"))
        assert [each.object.path for each in state.handles[0].segments] == ["segment-1-0", "deeper-0"]

    @pytest.mark.parametrize(
        "wrong",
        [
            [*results()[:3]],
            [*results(), result(1, 0, name="b")],
            [*results()[:3], result(1, 1, reads="b")],
            [*results(name="b")[:1], *results()[1:]],
        ],
        ids=[
            "a result is missing",
            "two attempts of one task",
            "another attempt was read",
            "only some read the second",
        ],
    )
    def test_results_that_do_not_fit_together_run_the_job_again(self, wrong: list[Result]) -> None:
        state, _ = machine.triggered(begun(), trigger(5), UNTIL)
        state, effects = machine.finished(state, 1, wrong, 2)
        assert effects == [machine.StartJob(2, trigger(5), UNTIL)]
        assert isinstance(state.phase, BatchRunning)


class TestOutcome:
    def test_positions_and_state_advance_with_the_commit(self) -> None:
        state = acked()
        assert {at.offset for at in state.positions.values()} == {0}
        assert {at.offset for at in state.reached.values()} == {10, 20}
        state, effects = machine.committed(state, Cut(Epoch(5), "hash"))
        assert {at.offset for at in state.positions.values()} == {10, 20}
        assert [each.object.path for each in state.handles[1].segments] == ["segment-1-1"]
        assert kinds(effects) == ["QueueOutput", "QueueOutput"]
        assert state.cut == Cut(Epoch(5), "hash") and isinstance(state.phase, BatchIdle)

    def test_a_barrier_may_be_the_first_to_tell_of_the_commit(self) -> None:
        state, effects = machine.triggered(acked(), trigger(6, committed=5), UNTIL)
        assert kinds(effects) == ["QueueOutput", "QueueOutput", "StartJob"]
        state, effects = machine.committed(state, Cut(Epoch(5), "hash"))
        assert effects == [] and state.cut.manifest == "hash"

    def test_an_epoch_that_was_given_up_leaves_nothing(self) -> None:
        state, effects = machine.triggered(acked(), trigger(6), UNTIL)
        assert kinds(effects) == ["StartJob"]
        assert {at.offset for at in state.positions.values()} == {0}
        assert all(handle.segments == () for handle in state.handles)

    def test_an_older_commit_changes_nothing(self) -> None:
        state, _ = machine.committed(acked(), Cut(Epoch(5), "hash"))
        assert machine.committed(state, Cut(Epoch(5), "hash")) == (state, [])
        assert machine.committed(state, Cut(Epoch(4), "other")) == (state, [])

    def test_delivers_under_the_tag_of_the_epoch(self) -> None:
        _, effects = machine.committed(acked(), Cut(Epoch(5), "hash"))
        pending = [effect.pending for effect in effects if isinstance(effect, QueueOutput)]
        assert [each.writer for each in pending] == [Writer("out", Subtask(0)), Writer("out", Subtask(1))]
        assert {each.tag.epoch for each in pending} == {5}

    def test_partitions_that_the_trigger_assigned_begin_behind_the_epoch(self) -> None:
        new = m.Assigned(SourcePosition("in", 2, -1), Subtask(1))
        state, _ = machine.triggered(begun(), trigger(5, assignment=(new,)), UNTIL)
        assert ("in", 2) not in state.reached
        state, _ = machine.finished(state, 1, results(), 2)
        state, _ = machine.committed(state, Cut(Epoch(5), "hash"))
        assert state.positions["in", 2] == SourcePosition("in", 2, -1, subtask=Subtask(1))

    def test_closed_is_the_last_epoch_whose_parts_are_complete(self) -> None:
        assert begun().closed == NO_EPOCH
        state = acked()
        assert state.closed == 5
        state, _ = machine.committed(state, Cut(Epoch(5), "hash"))
        assert state.closed == 5
        assert machine.triggered(state, trigger(6, committed=5), UNTIL)[0].closed == NO_EPOCH


class TestMerges:
    LIMITS = Thresholds(bytes_max=150, segments_max=64)

    def after(self, epochs: int) -> tuple[Batches, list[machine.Effect]]:
        state, effects = begun(limits=self.LIMITS), list[machine.Effect]()
        for epoch in range(5, 5 + epochs):
            state = acked(state, epoch)
            state, effects = machine.committed(state, Cut(Epoch(epoch), "hash"))
        return state, effects

    def test_a_merge_begins_when_it_is_due_and_is_not_begun_twice(self) -> None:
        state, effects = self.after(2)
        assert [effect.subtask for effect in effects if isinstance(effect, machine.CompactSubtask)] == [0, 1]
        state = acked(state, 7)
        assert "CompactSubtask" not in kinds(machine.committed(state, Cut(Epoch(7), "hash"))[1])

    def test_a_merge_goes_into_every_ack_until_one_of_their_epochs_completes(self) -> None:
        state, _ = self.after(2)
        merged = SegmentRef(Epoch(6), NO_EPOCH, ref("base"))
        state = machine.compacted(state, Subtask(0), merged)
        for epoch in (7, 8):  # 7 is given up
            state = acked(state, epoch)
            assert isinstance(state.phase, Acked) and state.phase.parts[0].compacted == merged
        state, _ = machine.committed(state, Cut(Epoch(8), "hash"))
        assert state.handles[0].base == (ref("base"),) and state.merged == {}
        assert [each.epoch for each in state.handles[0].segments] == [8]
        assert [each.epoch for each in state.handles[1].segments] == [5, 6, 8]


def test_the_error_that_others_follow_from_is_reported() -> None:
    state, _ = machine.triggered(begun(), trigger(5), UNTIL)
    bad = ErrorReport(kind="job-failed", what="a record is bad", not_done="", next="")
    missing = Result(Attempt(1, Subtask(0), "b"), error=PASSING)
    cause = Result(Attempt(0, Subtask(1), "a"), error=bad, permanent=True)
    _, effects = machine.finished(state, state.job, [result(0, 0), missing, cause], 2)
    assert effects == [machine.FailGeneration(bad, permanent=True)]
