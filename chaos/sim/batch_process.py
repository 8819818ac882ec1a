"""A driver in microbatch mode in the simulated world, with a Spark that runs the tasks of its jobs.

The driver is that of driver_process.py; the production host answers it in place of workers. Spark runs a stage of tasks
per layer and repeats failed tasks. It runs a task again if its output was lost after others had read it, and may run a
task twice. A task that it has cancelled or presumed lost may continue for a while and write objects: a zombie.

Invariants
    - An attempt runs within one event. It may end at any of its port calls, and before it has reported.
    - If a task has two attempts, the first to report counts; rows that others have read before are not taken back.
    - Rows that one task sends to another arrive in any order.

Source: PROTOCOL P26; docs/decisions/0047-microbatch.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from holdfast.chaos.sim.driver_process import Launching, SimulatedDriver
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.images import SimulatedMachines
from holdfast.chaos.sim.ports.stores import ProcessStore
from holdfast.chaos.sim.ports.targets import ProcessSink
from holdfast.chaos.sim.worker_process import LIMITS, ProcessClock
from holdfast.errors import Unavailable
from holdfast.model import Generation, Subtask, WorkerId
from holdfast.ports import Lane
from holdfast.runtime.config.settings import MICROBATCH
from holdfast.runtime.driver.state import Site
from holdfast.runtime.microbatch.blocks import Attempt, Parcel, result_in
from holdfast.runtime.microbatch.host import Host
from holdfast.runtime.microbatch.machine import BatchRunning
from holdfast.runtime.microbatch.task import Batch, TaskPorts, run_task
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import Network
from holdfast.runtime.worker.local.opened import MemoryState
from holdfast.runtime.worker.local.warm import WarmState

FAILURES_MAX = 4
"""How often a task may fail before Spark fails its job."""
GIVEN_UP_AFTER_S = 0.8
"""After this long without a report Spark considers the executor of an attempt lost, and runs another attempt."""
ORPHANED_S = (0.05, 1.0, 6.0)
CANCELLED_S = (0.0, 0.1, 2.0)
"""How long the tasks of a dead driver, and those of a cancelled job, may continue."""
Place = tuple[int, Subtask]
"""Layer and subtask of a task."""


class Batching(Launching, Protocol):
    """The world as a driver in microbatch mode sees it."""

    machines: SimulatedMachines

    def new_task(self, spark: Spark, job: int, batch: Batch, attempt: Attempt) -> TaskProcess:
        """Return an attempt that Spark starts."""


class TaskProcess(Process):
    """One attempt of a task."""

    def __init__(self, world: Batching, name: str, spark: Spark, job: int, batch: Batch, attempt: Attempt) -> None:
        super().__init__(name, world.schedule.journal)
        self._world, self._spark, self.job, self._batch, self.attempt = world, spark, job, batch, attempt
        self.generation: Generation = batch.deploys[0].generation
        self._clock = ProcessClock(world, self)
        self.reported = False

    @property
    def place(self) -> Place:
        """Return which task it is an attempt of."""
        return self.attempt.layer, self.attempt.subtask

    def run(self, incoming: Iterable[bytes]) -> None:
        """Do everything; the report follows later."""
        world, clock = self._world, self._clock
        plan = world.functions.bound(self._batch.plan, self.name, lambda: world.points_of(self), clock.spend)
        sinks = tuple(replace(spec, sink=ProcessSink(world, self, spec)) for spec in plan.sinks)
        batch = replace(self._batch, plan=replace(plan, sinks=sinks))
        store = ProcessStore(world, self)
        local = WarmState(clock, clock.spend, world.machines.of(self.attempt))
        ports = TaskPorts(clock, store, local, clock.spend)
        parcels = list(run_task(batch, ports, self.attempt, incoming))
        result = result_in(parcels[-1].data)
        assert result is not None
        world.checks.attempts.made((self._spark.driver.name, self.job), result)
        world.schedule.after(self._spark.delay(), self, "", lambda: self._report(parcels))

    def _report(self, sent: list[Parcel]) -> None:
        self.reported = True
        self._world.schedule.after(0.0, self._spark.driver, "", lambda: self._spark.ended(self, sent))
        self.end("done")

    def crashed(self) -> None:
        """See Process.crashed."""
        self._world.hit(Fault.WORKER_CRASH, (*self.crashed_at, Point.BATCH))
        super().crashed()

    def ended(self, why: str) -> None:
        """Spark notices that the process has ended."""
        if not self.reported:
            delay = self._world.random.choice((0.01, 0.1, 0.5))
            self._world.schedule.after(delay, self._spark.driver, "", lambda: self._spark.lost(self))


@dataclass
class _Job:
    number: int
    batch: Batch
    layer: int = 0
    sent: dict[Place, list[Parcel]] = field(default_factory=dict)
    """By the task whose attempt reported first."""
    running: list[TaskProcess] = field(default_factory=list)
    waiting: list[TaskProcess] = field(default_factory=list)
    """Attempts whose input was lost before they could read it."""
    failures: Counter[Place] = field(default_factory=Counter)


class Spark:
    """Runs the jobs of one driver; see microbatch.host.Jobs. A job that was cancelled may end before Spark ends it."""

    def __init__(
        self, world: Batching, driver: Process, ended: Callable[[int, list[bytes] | Unavailable], None]
    ) -> None:
        self._world, self.driver, self._ended = world, driver, ended
        self._jobs: dict[int, _Job] = {}

    @property
    def busy(self) -> bool:
        """Return whether a job runs."""
        return bool(self._jobs)

    def run(self, job: int, batch: Batch) -> None:
        """See Jobs.run."""
        self._jobs[job] = _Job(job, batch)
        self._world.schedule.journal.say(self.driver.name, f"job {job} runs epoch {batch.barrier.epoch}")
        self._begin_layer(self._jobs[job])

    def cancel(self, job: int) -> None:
        """See Jobs.cancel."""
        if (cancelled := self._jobs.get(job)) is not None:
            delay = self._world.random.choice(CANCELLED_S)
            self._world.schedule.after(delay, None, "", lambda: self._leave(cancelled))

    def orphan(self) -> None:
        """The driver has ended; its tasks continue for a while."""
        for job in self._jobs.values():
            delay = self._world.random.choice(ORPHANED_S)
            self._world.schedule.after(delay, None, "", partial(self._leave, job))

    def delay(self) -> float:
        """Return how long Spark takes to start a task, or to learn of its end."""
        slow = self._world.faults.strikes(Fault.LANE_SLOW, _at, self.driver.name)
        return self._world.random.choice((0.05, 0.3, 1.5)) if slow else self._world.random.uniform(0.0005, 0.02)

    def ended(self, task: TaskProcess, sent: list[Parcel]) -> None:
        """An attempt reports the parcels that it sent; too late if another one has reported."""
        job = self._current(task)
        if job is None:
            return
        job.running.remove(task)
        if task.place in job.sent:
            return
        if self._world.faults.strikes(Fault.JOB_FAILED, _at):
            self._fail(job, f"task {task.place} was lost with its executor, too often")
            return
        job.sent[task.place] = sent
        waiting, job.waiting = job.waiting, []
        for other in waiting:
            self._world.schedule.after(0.0, other, "", partial(self._start, job, other))
        width, depth = len(job.batch.deploys), len(job.batch.layers)
        if any((job.layer, Subtask(s)) not in job.sent for s in range(width)):
            return
        if job.layer + 1 < depth:
            job.layer += 1
            self._begin_layer(job)
            return
        last = [parcel.data for s in range(width) for parcel in job.sent[job.layer, Subtask(s)]]
        self._finish(job, last)

    def lost(self, task: TaskProcess) -> None:
        """An attempt ended without a report."""
        job = self._current(task)
        if job is None:
            return
        job.running.remove(task)
        job.waiting = [each for each in job.waiting if each is not task]
        job.failures[task.place] += 1
        if job.failures[task.place] >= FAILURES_MAX:
            self._fail(job, f"task {task.place} failed {FAILURES_MAX} times")
        elif task.place not in job.sent and not any(each.place == task.place for each in job.running):
            self._launch(job, task.place)

    def _begin_layer(self, job: _Job) -> None:
        for subtask in range(len(job.batch.deploys)):
            place = job.layer, Subtask(subtask)
            self._launch(job, place)
            if self._world.faults.strikes(Fault.TASK_TWICE, _at, self.driver.name):
                self._launch(job, place)

    def _launch(self, job: _Job, place: Place) -> None:
        attempt = Attempt(*place, f"{self._world.random.getrandbits(48):012x}")
        task = self._world.new_task(self, job.number, job.batch, attempt)
        job.running.append(task)
        self._world.schedule.after(self.delay(), task, f"starts as task {place}", partial(self._start, job, task))
        self._world.schedule.after(GIVEN_UP_AFTER_S, self.driver, "", lambda: self._give_up(task))

    def _start(self, job: _Job, task: TaskProcess) -> None:
        """Hand an attempt its input, unless a part of that is lost: then its sender runs again first."""
        before = [place for place in job.sent if place[0] == task.attempt.layer - 1]
        if before and job.number in self._jobs and self._world.faults.strikes(Fault.OUTPUT_LOST, _at, self.driver.name):
            lost = self._world.random.choice(before)
            before.remove(lost)
            del job.sent[lost]
            self._launch(job, lost)
        if task.attempt.layer and len(before) < len(job.batch.deploys):
            job.waiting.append(task)
            return
        parcels = [p for place in before for p in job.sent[place] if p.to == task.attempt.subtask]
        drawn = sorted((self._world.random.random(), i) for i in range(len(parcels)))
        task.run([parcels[i].data for _, i in drawn])

    def _give_up(self, task: TaskProcess) -> None:
        """Treat the executor of an attempt as lost; the attempt may still run, as a zombie."""
        job = self._current(task)
        if job is not None and not task.reported and task.place not in job.sent:
            self._launch(job, task.place)

    def _fail(self, job: _Job, why: str) -> None:
        self._finish(job, Unavailable(why, not_done="the epoch was not completed", next_step="its job runs again"))

    def _finish(self, job: _Job, end: list[bytes] | Unavailable) -> None:
        """Report the end of a job; attempts that it no longer needs continue for a while."""
        del self._jobs[job.number]
        delay = self._world.random.choice(CANCELLED_S)
        self._world.schedule.after(delay, None, "", lambda: self._leave(job))
        self._ended(job.number, end)

    def _leave(self, job: _Job) -> None:
        self._jobs.pop(job.number, None)
        for task in job.running:
            task.reported = True  # nothing waits for it
            task.end("cancelled")

    def _current(self, task: TaskProcess) -> _Job | None:
        job = self._jobs.get(task.job)
        return job if job is not None and task in job.running else None


class BatchDriver(SimulatedDriver):
    """One run of the job in microbatch mode."""

    mode = MICROBATCH

    def __init__(self, world: Batching, name: str) -> None:
        super().__init__(world, name)
        self.spark = Spark(world, self, lambda job, sent: self._post(lambda: self._host.ended(job, sent)))
        self._host = Host(
            replace(world.plan_of(self.owner), sinks=self.sinks),
            _HostPorts(self),
            _WatchedJobs(self),
            self._post,
            self._answered,
            self._registration,
            world.scenario.checkpoint_every,
            world.scenario.rate,
            LIMITS.staged_bytes_max,
        )
        self._closed = False

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """See DriverPorts.send."""
        self.note(message)
        if isinstance(message, m.Deploy):
            self._world.checks.deployed()
        self._host.send(worker, message)

    def look_at_epoch(self, batch: Batch) -> None:
        """Show the reads of an epoch to the checkers; later jobs of the epoch have the offsets of the first."""
        state, outlook = self._host._batches, self._host._outlook
        assert state is not None and isinstance(state.phase, BatchRunning) and outlook is not None
        if state.phase.tries == 1 and not state.phase.waits and not self._host._deliveries.full():
            given = state.positions, outlook.readable(), state.phase.until, batch.silent
            self._world.checks.aligned.epoch(*given)

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """See DriverPorts.launch."""
        self._host.launch(number)

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """See DriverPorts.dismiss."""
        self._host.dismiss(worker)

    def cancel(self, launch: int) -> None:
        """There is no launch that has not registered."""

    def ended(self, why: str) -> None:
        """Spark ends the tasks sooner or later."""
        self.spark.orphan()

    def turned(self) -> None:
        """See SimulatedDriver.turned."""
        self._host.turn()

    def _look(self) -> None:
        super()._look()
        if self.left and not self._closed:
            self._closed = True
            self._host.close()

    def _post(self, event: Callable[[], None]) -> None:
        def happens() -> None:
            if not self.left:
                event()
                self._look()

        self._world.schedule.after(self._world.random.uniform(0.0001, 0.001), self, "", happens)

    def _answered(self, message: m.FromWorker) -> None:
        self.loop.received(message)

    def _registration(self, worker: WorkerId, launch: int) -> m.Register:
        return m.Register(worker, launch, "simulated", launch, "boot", ("simulated", 0))


class _WatchedJobs:
    """The jobs of a driver, under the eyes of the checkers."""

    def __init__(self, driver: BatchDriver) -> None:
        self._driver = driver

    def run(self, job: int, batch: Batch) -> None:
        self._driver.look_at_epoch(batch)
        self._driver.spark.run(job, batch)

    def cancel(self, job: int) -> None:
        self._driver.spark.cancel(job)

    def stalled(self) -> str:
        return ""


class _HostPorts:
    """The driver's ports, for the host."""

    network: Network

    def __init__(self, driver: BatchDriver) -> None:
        self._driver = driver
        self.clock, self.store = driver.clock, driver.store
        self.local = MemoryState()

    def send(self, message: m.FromWorker) -> None:
        """The host answers through the function that it was given."""
        raise AssertionError(message)

    def lane(self, name: str) -> Lane:
        return self._driver.lane(name)


def _at() -> tuple[Point, ...]:
    return (Point.BATCH,)
