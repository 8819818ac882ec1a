"""Microbatch mode in one thread: the production host and tasks, with a Spark that tests can break.

A task runs as a whole when the seed picks it. Messages between tasks are kept encoded and delivered in any order, as
Spark's shuffle may do. With `losses` the output of a task that has ended may be lost, so that it runs again while
others have read its first output; with `twice` a task may run twice, and either attempt may win.

Source: docs/decisions/0047-microbatch.md; PROTOCOL P26.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import Subtask, WorkerId
from holdfast.ports import Lane, ObjectStore
from holdfast.runtime.microbatch.blocks import Attempt, Parcel
from holdfast.runtime.microbatch.host import Host
from holdfast.runtime.microbatch.task import Batch, TaskPorts, run_task
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.testing.lanes import InlineLanes, VirtualClock
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import Network
from holdfast.runtime.worker.local.opened import LocalState, MemoryState
from holdfast.sinks.protocol.delivery import BACKLOG_BYTES_MAX

_PLACE = "here"


@dataclass
class TaskFaults:
    """Probabilities of faults in the tasks of a job, between 0 and 1."""

    losses: float = 0.0
    """The output of a task is lost after another one has read it, so that it runs again."""
    twice: float = 0.0
    """A task runs twice, and the second attempt ends first."""
    fails: float = 0.0
    """A job ends with an error."""
    happened: dict[str, int] = field(default_factory=lambda: {"lost": 0, "twice": 0, "failed": 0})


@dataclass
class _BatchJob:
    number: int
    batch: Batch
    sent: dict[tuple[int, Subtask], list[Parcel]] = field(default_factory=dict)
    """By the task that sent it."""


class StepJobs:
    """Runs the tasks of one job after another, one per step; see microbatch.host.Jobs."""

    def __init__(
        self,
        clock: VirtualClock,
        store: ObjectStore,
        local: Callable[[], LocalState],
        rng: random.Random,
        ended: Callable[[int, Sequence[bytes] | HoldfastError], None],
    ) -> None:
        self._clock, self._store, self._local, self._random, self._ended = clock, store, local, rng, ended
        self._job: _BatchJob | None = None
        self.faults = TaskFaults()
        self.budget: Budget | None = None
        """Memory budget for the state of a task."""

    def run(self, job: int, batch: Batch) -> None:
        """See Jobs.run."""
        assert self._job is None, "two jobs at a time"
        self._job = _BatchJob(job, batch)

    def cancel(self, job: int) -> None:
        """See Jobs.cancel."""
        if self._job is not None and self._job.number == job:
            self._job = None

    def stalled(self) -> str:
        """See Jobs.stalled."""
        return ""

    @property
    def waiting(self) -> bool:
        """Return whether there is a task to run."""
        return self._job is not None

    def step(self) -> bool:
        """Run one task of the first layer that is not complete."""
        job = self._job
        assert job is not None
        if self._chance(self.faults.fails, "failed"):
            self._job = None
            self._ended(job.number, _executor_lost())
            return True
        width, depth = len(job.batch.deploys), len(job.batch.layers)
        todo = [
            (layer, Subtask(s)) for layer in range(depth) for s in range(width) if (layer, Subtask(s)) not in job.sent
        ]
        here = [place for place in todo if place[0] == todo[0][0]]
        layer, subtask = self._random.choice(here)
        if layer and self._chance(self.faults.losses, "lost"):
            again = layer - 1, Subtask(self._random.randrange(width))
            job.sent[again] = self._play(job, *again)
        if self._chance(self.faults.twice, "twice"):
            self._play(job, layer, subtask)
        job.sent[layer, subtask] = self._play(job, layer, subtask)
        if len(todo) == 1:
            self._job = None
            last = [parcel for s in range(width) for parcel in job.sent[depth - 1, Subtask(s)]]
            self._ended(job.number, [parcel.data for parcel in last])
        return True

    def _play(self, job: _BatchJob, layer: int, subtask: Subtask) -> list[Parcel]:
        before = [parcel for (at, _), sent in job.sent.items() if at == layer - 1 for parcel in sent]
        mine = [parcel.data for parcel in before if parcel.to == subtask]
        self._random.shuffle(mine)
        attempt = Attempt(layer, subtask, f"{self._random.getrandbits(48):012x}")
        ports = TaskPorts(self._clock, self._store, self._local(), self._clock.pass_by, budget=self.budget)
        return list(run_task(job.batch, ports, attempt, mine))

    def _chance(self, share: float, what: str) -> bool:
        if share == 0.0 or self._random.random() >= share:
            return False
        self.faults.happened[what] += 1
        return True


class BatchMembers:
    """All subtasks of a job in microbatch mode, as `Cluster` hosts them."""

    def __init__(
        self,
        plan: Plan,
        clock: VirtualClock,
        store: ObjectStore,
        rng: random.Random,
        post: Callable[[Callable[[], None]], None],
        answer: Callable[[m.FromWorker], None],
        every_s: float,
        local: Callable[[], LocalState] = MemoryState,
    ) -> None:
        self._plan, self._store = plan, store
        self.ports = _InlineHostPorts(clock, store)
        self.jobs = StepJobs(clock, store, local, rng, lambda *end: post(lambda: self.host.ended(*end)))
        limits = every_s, None, BACKLOG_BYTES_MAX
        self.host = Host(plan, self.ports, self.jobs, post, answer, _registered, *limits)

    def get_committed(self, operator: int, key: tuple[object, ...]) -> dict[str, object] | None:
        """Return the committed state of a key, None if it has none: restored from the root, as a task does."""
        for deploy in self.host.deploys():
            opened = MemoryState().open(self._plan, deploy, WorkerId("reader"), self._store)
            if (found := opened.store.get_committed(operator, key)) is not None:
                return found
        return None


class _InlineHostPorts:
    network: Network

    def __init__(self, clock: VirtualClock, store: ObjectStore) -> None:
        self.clock, self.store, self.local = clock, store, MemoryState()
        self.lanes = InlineLanes()

    def send(self, message: m.FromWorker) -> None:
        """The host answers through the function that it was given."""
        raise AssertionError(message)

    def lane(self, name: str) -> Lane:
        return self.lanes.lane(name)


def _registered(worker: WorkerId, launch: int) -> m.Register:
    return m.Register(worker, launch, _PLACE, launch, "boot", (_PLACE, launch))


def _executor_lost() -> Unavailable:
    return Unavailable(
        "the Spark job failed: an executor was lost",
        not_done="the epoch was not completed",
        next_step="it runs again from the same offsets",
    )
