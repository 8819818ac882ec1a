"""A deployment costs as many steps as there are subtasks, and each worker gets what is its own."""

from __future__ import annotations

from control_plane import manifest_of, master_of
from counted import instructions
from master_runs import UUID, A, B, acked, blob, completed, opened, running

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import Epoch, SegmentRef, SnapshotHandle, SourcePosition, Subtask, WorkerId
from holdfast.runtime.driver.deployment import deployments
from holdfast.runtime.driver.events import CreateRecord, Send
from holdfast.runtime.wire import messages as m
from tests.unit.runtime.test_master_requests import ask

EPOCH = 600


def base_of(width: int) -> Manifest:
    """Return a checkpoint of so many subtasks, each with two segments, a partition and undelivered output."""
    return manifest_of(EPOCH, width, segments=2)


def cost(width: int, before: int) -> int:
    base = base_of(before)
    state = master_of(width, base)
    return instructions(lambda: deployments(state, base, state.workers))


class TestDeployments:
    def test_each_worker_gets_its_own_state_partitions_and_output(self) -> None:
        base = base_of(4)
        found = deployments(master_of(4, base), base, [WorkerId("w2"), WorkerId("w0")])
        assert [worker for worker, _ in found] == ["w2", "w0"]
        deploy = found[0][1]
        assert deploy.handle == base.state[2]
        assert deploy.positions == (SourcePosition("s", 2, EPOCH * 1_000),)
        assert [item.writer.subtask for item in deploy.pending] == [2]
        assert EPOCH in deploy.lineage
        assert len(deploy.peers) == 4

    def test_after_a_rescale_all_state_partitions_and_output_are_assigned_once(self) -> None:
        base = base_of(6)
        state = master_of(4, base)
        found = [deploy for _, deploy in deployments(state, base, state.workers)]
        assert sorted(at.partition for deploy in found for at in deploy.positions) == list(range(6))
        assert sorted(item.writer.subtask for deploy in found for item in deploy.pending) == list(range(6))
        assert {piece.object.path for deploy in found for piece in deploy.handle.segments} >= {
            piece.object.path for handle in base.state for piece in handle.segments
        }

    def test_twice_as_many_workers_take_twice_as_many_steps(self) -> None:
        """Four times as many where the handles of all workers were built for each."""
        assert cost(80, 80) < 2.2 * cost(40, 40)

    def test_a_rescale_takes_no_more_steps_per_worker(self) -> None:
        assert cost(80, 60) < 2.2 * cost(40, 30)

    def test_one_late_worker_of_many_does_not_cost_a_step_per_pair(self) -> None:
        base = base_of(80)
        state = master_of(80, base)
        late = instructions(lambda: deployments(state, base, [WorkerId("w7")]))
        assert late < cost(80, 80)

    def test_deployments_of_a_new_job_contain_everything_that_a_worker_needs(self) -> None:
        run = opened()
        run.pass_time(0.0)
        run.register(A)
        first, second = run.register(B)
        assert isinstance(first, Send) and isinstance(second, Send)
        peers = (m.Peer(Subtask(0), A, ("here", 97)), m.Peer(Subtask(1), B, ("here", 98)))
        handle = SnapshotHandle(Subtask(1), (64, 128), (), Epoch(0), ())
        assert isinstance(first.message, m.Deploy) and isinstance(second.message, m.Deploy)
        assert (first.worker, second.worker) == (A, B)
        reported = second.message
        assert (reported.job_uuid, reported.generation, reported.timeline) == (UUID, 1, 1)
        assert (reported.base_epoch, reported.first_epoch) == (0, 1)
        assert (reported.subtask, reported.peers, reported.handle) == (1, peers, handle)
        assert (reported.positions, reported.pending, reported.confirmed) == ((SourcePosition("s", 1, -1),), (), ())
        assert first.message.positions == (SourcePosition("s", 0, -1), SourcePosition("s", 2, -1))


class TestRecordOfAnEpoch:
    def test_has_its_sizes_and_its_name(self) -> None:
        run = running()
        completed(run, segment=SegmentRef(Epoch(1), Epoch(0), blob("segments/1")))
        ask(run, "savepoint", name="v1")
        acked(run, 2, segment=SegmentRef(Epoch(2), Epoch(1), blob("segments/2")))
        (create,) = run.store()
        assert isinstance(create, CreateRecord)
        ref = blob("manifests/2")
        assert create.record.body == joblog.CheckpointCompleted(Epoch(2), Epoch(1), ref, 9_000, 10, 20, "v1")
