"""A deployment costs as many steps as there are subtasks, and each worker gets what is its own."""

from __future__ import annotations

from counted import instructions

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import (
    NO_EPOCH,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    WorkerId,
    Writer,
)
from holdfast.runtime.driver import master
from holdfast.runtime.driver.deployment import deployments
from holdfast.runtime.driver.state import Hosted
from holdfast.runtime.wire import messages as m
from holdfast.state.keys.keygroups import range_of

UUID, GROUPS = JobUuid("u" * 32), 1_024


def ranges(width: int) -> tuple[tuple[int, int], ...]:
    return tuple(range_of(i, width, GROUPS) for i in range(width))


def blob(name: str) -> ObjectRef:
    return ObjectRef(name, 10, "0" * 64)


def base_of(width: int) -> Manifest:
    """Return a checkpoint of so many subtasks, each with two segments, a partition and undelivered output."""
    state = tuple(
        SnapshotHandle(
            Subtask(i),
            owned,
            (blob(f"base/{i}"),),
            Epoch(5),
            tuple(SegmentRef(Epoch(e), Epoch(e - 1), blob(f"segments/{e}/{i}")) for e in (6, 7)),
        )
        for i, owned in enumerate(ranges(width))
    )
    at = tuple(SourcePosition("s", i, 100 + i, subtask=Subtask(i)) for i in range(width))
    tag = Tag(Timeline(1), Epoch(7))
    pending = tuple(Pending(Writer("out", Subtask(i)), tag, Staged((blob(f"staged/{i}"),), 1)) for i in range(width))
    return Manifest(UUID, Generation(1), Timeline(1), Epoch(7), Epoch(6), width, GROUPS, at, state, pending, (), ())


def state_of(width: int, base: Manifest) -> master.Master:
    """Return a master with a worker for each of so many subtasks."""
    rules = master.Rules(
        name="job",
        job_uuid=UUID,
        host="here",
        key_groups=GROUPS,
        key_ranges=ranges(width),
        partitions={"s": tuple(range(base.parallelism))},
        operators=(),
        checkpoint_every=10.0,
        silent_after=5.0,
        epoch_deadline=30.0,
        redeploy_every=10.0,
        restart_failures_max=3,
        restart_window=60.0,
        restart_backoff_first=0.5,
        restart_backoff_max=4.0,
    )
    job = joblog.Job(UUID, "job", GROUPS, 0, next_seq=9, generation=Generation(2), owner="d", first_epoch=Epoch(108))
    workers = {
        WorkerId(f"w{i}"): Hosted(("here", i), "here", i, i, 0.0, role=m.Active(Subtask(i))) for i in range(width)
    }
    phase = master.Running(base, 0.0, coordinator.start(width, NO_EPOCH, Epoch(108)), 0.0, base)
    return master.Master(rules, append.Quiet("d", job), phase, workers)


def cost(width: int, before: int) -> int:
    base = base_of(before)
    state = state_of(width, base)
    return instructions(lambda: deployments(state, base, state.workers))


class TestDeployments:
    def test_each_worker_gets_its_own_state_partitions_and_output(self) -> None:
        base = base_of(4)
        found = deployments(state_of(4, base), base, [WorkerId("w2"), WorkerId("w0")])
        assert [worker for worker, _ in found] == ["w2", "w0"]
        deploy = found[0][1]
        assert deploy.handle == base.state[2]
        assert deploy.positions == (SourcePosition("s", 2, 102),)
        assert [item.writer.subtask for item in deploy.pending] == [2]
        assert deploy.lineage == {}
        assert len(deploy.peers) == 4

    def test_after_a_rescale_all_state_partitions_and_output_are_assigned_once(self) -> None:
        base = base_of(6)
        state = state_of(4, base)
        found = [deploy for _, deploy in deployments(state, base, state.workers)]
        assert sorted(at.partition for deploy in found for at in deploy.positions) == list(range(6))
        assert sorted(item.writer.subtask for deploy in found for item in deploy.pending) == list(range(6))
        assert {piece.object.path for deploy in found for piece in deploy.handle.segments} >= {
            f"segments/{e}/{i}" for e in (6, 7) for i in range(6)
        }

    def test_twice_as_many_workers_take_twice_as_many_steps(self) -> None:
        """Four times as many where the handles of all workers were built for each."""
        assert cost(80, 80) < 2.2 * cost(40, 40)

    def test_a_rescale_takes_no_more_steps_per_worker(self) -> None:
        assert cost(80, 60) < 2.2 * cost(40, 30)

    def test_one_late_worker_of_many_does_not_cost_a_step_per_pair(self) -> None:
        base = base_of(80)
        state = state_of(80, base)
        late = instructions(lambda: deployments(state, base, [WorkerId("w7")]))
        assert late < cost(80, 80)
