"""A driver's process in the simulated world: the production loop with the surroundings that resident.py gives it.

It reads the job log, takes the job over, hosts the control streams and launches workers. Several
drivers may be alive at the same time; they know of each other only through the job log.

Source: DESIGN sections 3 and 4; PROTOCOL P4, P5, P6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.chaos.sim.faults import points
from holdfast.chaos.sim.faults.draws import Chance
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.ports.ends import DriverEnd, WorkerEnd
from holdfast.chaos.sim.ports.sources import ListedSource
from holdfast.chaos.sim.ports.stores import ProcessStore
from holdfast.chaos.sim.ports.targets import ProcessSink
from holdfast.chaos.sim.worker_process import Inhabited, ProcessClock, ProcessLane, WorkerProcess
from holdfast.checkpoint import joblog
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, Unavailable
from holdfast.model import Epoch, Generation, WorkerId
from holdfast.ports import Clock, Lane, ObjectStore
from holdfast.runtime.config.settings import CONTINUOUS
from holdfast.runtime.driver.invariants import validate
from holdfast.runtime.driver.loop import DriverLoop
from holdfast.runtime.driver.requests import ways_back
from holdfast.runtime.driver.state import RewindWanted, Rules, Site
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.wire import messages as m

POLL_S = 0.07
PULSE_S = 0.35
START_RETRY_S = 0.1
ASKED_AGAIN_S = 0.3
SPARK_STARTS_S = (0.001, 0.05, 0.3, 1.0)
"""A driver starts Spark between reading the log and taking the job over; others may append meanwhile."""
ZOMBIE_GRACE_S = 3.0
"""How long after its dismissal a worker's Spark task is cancelled."""


@dataclass(frozen=True)
class RewindCommand:
    """The task of a driver that `holdfast rewind` starts: go back by a number of checkpoints, repair, end."""

    back: int
    delay: float


class Launching(Inhabited, Protocol):
    """The world as a driver sees it."""

    def new_worker(self, driver: SimulatedDriver, launch: int) -> WorkerProcess:
        """Return a process that a driver launched and that has not started yet."""

    def chance_of(self, name: str) -> Chance:
        """Return numbers of the seed that nothing else draws."""

    def new_rules(self, owner: str) -> Rules:
        """Return the rules that a driver starts with."""

    def plan_of(self, owner: str) -> Plan:
        """Return the plan of a driver that has its rules."""


class SimulatedDriver(DriverEnd):
    """One run of the job, or one rewind; implements DriverPorts itself."""

    mode = CONTINUOUS

    def __init__(self, world: Launching, name: str, rewind_command: RewindCommand | None = None) -> None:
        super().__init__(name, world.schedule.journal)
        self._world, self._rewind_command = world, rewind_command
        self.clock: Clock = ProcessClock(world, self)
        self.store: ObjectStore = ProcessStore(world, self)
        self.repository = Repository(self.store)
        self.sources, self.changelog = world.plan.sources, world.plan.changelog
        if world.scenario.grows:
            self.sources = tuple(replace(spec, source=ListedSource(world, self, spec.source)) for spec in self.sources)
        self.owner = f"{world.random.getrandbits(128):032x}"
        self.listing_chance = world.chance_of(f"listings/{name}")
        rules = world.new_rules(self.owner)
        # The driver never touches a sink with immediate writes.
        mine = {spec.name: spec for spec in world.plan_of(self.owner).sinks}
        self.sinks = tuple(
            spec if spec.path is not None else replace(spec, sink=ProcessSink(world, self, mine[spec.name]))
            for spec in world.plan.sinks
        )
        self.loop = DriverLoop(rules, self.owner, self, PULSE_S, validate)
        self._workers: dict[WorkerId, WorkerProcess] = {}
        self._launched: dict[int, WorkerProcess] = {}
        self._lanes: dict[str, ProcessLane] = {}
        self._begun = False

    def start(self) -> None:
        """Read the log and take the job over; the store may be unreachable for a while."""
        try:
            job = self.repository.read_log()
        except Unavailable:
            self._world.schedule.after(START_RETRY_S, self, "reads the log again", self.start)
            return
        except Damaged as error:  # it ends and names the record; the next driver is started from outside
            self._world.checks.driver_over(self.name, self.owner, "failed", error.report())
            self.end(error.what)
            return
        if job is not None and job.finished:
            self.end("the job is finished")
            return
        if self._rewind_command is not None:
            self._run_rewind_command(job, self._rewind_command)
            return
        delay = self._world.random.choice(SPARK_STARTS_S)
        self._world.schedule.after(delay, self, "takes the job over", lambda: self._begin(job))

    def _begin(self, job: joblog.Job | None) -> None:
        self._begun = True
        self.loop.begin(job, "started")
        self._poll()

    def _run_rewind_command(self, job: joblog.Job | None, rewind_command: RewindCommand) -> None:
        epoch = None if job is None else back_from(job, rewind_command.back)
        if job is None or epoch is None:
            self.end("there is nothing to go back to")
            return

        def begin() -> None:
            self._begun = True
            self.loop.rewind(job, RewindWanted(epoch, True))
            self._poll()

        self._world.schedule.after(rewind_command.delay, self, f"rewinds to epoch {epoch}", begin)

    @property
    def generation(self) -> Generation:
        """Return the driver's generation."""
        return self.loop.state.job.generation

    # Ports of the loop

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """See DriverPorts.send."""
        self.note(message)
        process = self._workers.get(worker)
        if process is not None:
            self.call(lambda: process.stream.to_worker(message), lambda: points.of_message(message))

    def note(self, message: m.FromDriver) -> None:
        """Show a message of the driver to the checkers."""
        if isinstance(message, m.Trigger):
            self._world.checks.triggered(message, self.owner)
        if isinstance(message, m.Deploy):
            self._world.checks.assigned.deployed(message)
        if isinstance(message, m.HoldBack):
            state = self.loop.state
            reports = [hosted.heartbeat.progress for hosted in state.workers.values() if hosted.subtask is not None]
            self._world.checks.aligned.sent(message, reports, state.rules.until)

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """See DriverPorts.launch."""
        if self._world.faults.strikes(Fault.LAUNCH_FAILED, lambda: (Point.RECOVER,)):
            self._world.schedule.after(0.2, self, "", lambda: self.launch_ended(number, "no slot"))
            return
        worker = self._world.new_worker(self, number)
        self._launched[number] = worker
        delay = self._world.random.uniform(0.01, 0.1)
        self._world.schedule.after(delay, worker, f"starts for {self.name}", worker.start)

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """See DriverPorts.dismiss."""
        process = self._workers.pop(worker, None)
        if process is not None:
            process.stream.dismiss()
            self._cancel(process, ZOMBIE_GRACE_S)

    def cancel(self, launch: int) -> None:
        """See DriverPorts.cancel."""
        self._cancel(self._launched[launch], 0.05)

    def lane(self, name: str) -> Lane:
        """See DriverPorts.lane."""
        if name not in self._lanes:
            kind = {"sweep": SweepLane, "sources": ListingLane}.get(name, ProcessLane)
            self._lanes[name] = kind(self._world, self, name, self._look)
        return self._lanes[name]

    # Events

    def received(self, message: m.FromWorker) -> None:
        """A worker's message arrived."""
        if isinstance(message, m.Register):
            process = self._launched.get(message.launch)
            if process is None or process.id != message.worker:
                return
            self._workers[message.worker] = process
        if not self.left:
            self.loop.received(message)
            self._look()

    def stream_closed(self, worker: WorkerEnd, why: str) -> None:
        """A worker's stream closed."""
        if not self.left and self._workers.get(worker.id) is worker:
            self.loop.stream_closed(worker.id, why)
            self._look()

    def launch_ended(self, number: int, why: str) -> None:
        """The Spark job of a worker ended."""
        if self._begun and not self.left:
            self.loop.launch_ended(number, why)
            self._look()

    def asked_for(self, savepoint: str) -> None:
        """A request for a savepoint arrived; if the driver is not ready and refuses, it is not repeated."""
        if self._begun and not self.left and (job := self.loop.state.log.job) is not None:
            self._asked("savepoint", {"name": savepoint}, job.generation)

    def asked_to_rewind(self, back: int) -> None:
        """A request to go back by a number of checkpoints arrived."""
        if self._begun and not self.left and (job := self.loop.state.log.job) is not None:
            epoch = back_from(job, back)
            if epoch is not None:
                args = {"epoch": epoch, "timeline": job.timeline, "stop": back % 2 == 0}
                self._asked("rewind", args, job.generation)

    def asked_to_end(self, how: str | None) -> None:
        """A request to stop, to finish, or to end now arrived."""
        if self._begun and not self.left and (job := self.loop.state.log.job) is not None:
            self._asked("stop", {} if how is None else {"how": how}, job.generation)

    def _asked(self, kind: str, args: Mapping[str, Any], generation: Generation) -> None:
        """Carry out a request; one that cannot be decided yet is tried again for as long as the run lasts."""
        if self.left:
            return
        answer = self.loop.asked(kind, args, generation, generation)
        if answer is None:
            again = lambda: self._asked(kind, args, generation)
            self._world.schedule.after(ASKED_AGAIN_S, self, f"tries a {kind} again", again)
            return
        self._world.checks.answered(self.owner, kind, args, answer)
        if answer["accepted"]:
            self._world.checks.requests[self.mode, str(args.get("how", kind))] += 1
        self._look()

    @property
    def lanes(self) -> tuple[ProcessLane, ...]:
        """Return its lanes."""
        return tuple(self._lanes.values())

    @property
    def decides(self) -> bool:
        """Return whether the driver has a master."""
        return self.loop._master is not None

    def alive_workers(self) -> list[WorkerProcess]:
        """Return the live workers connected to it."""
        return [worker for worker in self._workers.values() if worker.alive]

    def crashed(self) -> None:
        """See Process.crashed."""
        self._world.hit(Fault.DRIVER_CRASH, self.crashed_at)
        super().crashed()

    def ended(self, why: str) -> None:
        """The streams break, and Spark sooner or later ends the tasks of this driver."""
        for worker in self._launched.values():
            worker.stream.driver_ended()
            self._cancel(worker, self._world.random.choice((0.05, 1.0, 6.0)))

    def _poll(self) -> None:
        if self.left:
            return
        self.loop.turn()
        self.turned()
        self._look()
        self._world.schedule.after(POLL_S, self, "", self._poll)

    def turned(self) -> None:
        """The loop has had its turn."""

    def _look(self) -> None:
        """Check whether the run is over."""
        if self.loop.outcome is None or self.left:
            return
        self.left = True
        outcome, error = self.loop.outcome
        self.journal.say(self.name, f"is over: {outcome}")
        self._world.checks.driver_over(self.name, self.owner, outcome, error)
        self._world.schedule.after(0.1, self, "", lambda: self.end(outcome))

    def _cancel(self, worker: WorkerProcess, delay: float) -> None:
        self._world.schedule.after(delay, None, "", lambda: worker.end("cancelled"))


class SweepLane(ProcessLane):
    """A driver's lane for sweeps; after each sweep, the checkers inspect the remaining objects immediately."""

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """See Lane.submit."""
        assert isinstance(self._process, SimulatedDriver)
        job = self._process.loop.state.job

        def watched() -> object:
            result = work()
            retained = [each.body.epoch for each in job.retained]
            self._world.checks.history.swept(job.generation, retained, self._world.objects)
            return result

        # A sweep that waited for another began with a shorter log, and which one is unknown here.
        super().submit(work if self.hands_over else watched, done)


class ListingLane(ProcessLane):
    """A driver's lane for listings of the sources. Its delays come from numbers of its own, in every seed."""

    def _delay(self) -> float:
        assert isinstance(self._process, SimulatedDriver)
        own, grows = self._process.listing_chance, self._world.scenario.grows
        if grows and self._world.faults.strikes(Fault.LANE_SLOW, lambda: points.of_lane(self.name)):
            return own.choice((0.05, 0.3, 1.5))
        return own.uniform(0.0002, 0.02 if grows else 0.004)


def back_from(job: joblog.Job, back: int) -> Epoch | None:
    """Return the checkpoint `back` places before the newest that the job can go back to, or the oldest of them."""
    possible = [each.body.epoch for each in ways_back(job)]
    return possible[max(0, len(possible) - 1 - back)] if possible else None
