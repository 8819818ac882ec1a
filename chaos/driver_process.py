"""A driver's process in the simulated world: the production loop, and around it what runtime/run.py does.

It reads the job log, takes the job over, hosts the control streams and launches workers. Several
drivers may be alive at once; none knows of the others but through the job log.

Source: DESIGN sections 3 and 4; PROTOCOL P4, P5, P6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.chaos import points
from holdfast.chaos.faults import Fault
from holdfast.chaos.points import Point
from holdfast.chaos.schedule import Process
from holdfast.chaos.stores import ProcessStore
from holdfast.chaos.targets import ProcessSink
from holdfast.chaos.worker_process import ProcessClock, ProcessLane, WorkerProcess
from holdfast.checkpoint import joblog
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, Unavailable
from holdfast.model import Epoch, Generation, WorkerId
from holdfast.ports import Clock, Lane
from holdfast.runtime import messages as m
from holdfast.runtime.driver import DriverLoop
from holdfast.runtime.master import RewindWanted
from holdfast.runtime.rewinding import no_way_back

if TYPE_CHECKING:
    from holdfast.chaos.world import World

POLL_S = 0.07
PULSE_S = 0.35
START_RETRY_S = 0.1
ASKED_AGAIN_S = 0.3
SPARK_STARTS_S = (0.001, 0.05, 0.3, 1.0)
"""Between reading the log and taking the job over a driver starts Spark; others may append meanwhile."""
ZOMBIE_GRACE_S = 3.0
"""How long a dismissed worker is left alone before its Spark task is cancelled."""


@dataclass(frozen=True)
class Errand:
    """What `holdfast rewind` starts a driver for: go back by so many checkpoints, repair, end."""

    back: int
    delay: float


class DriverProcess(Process):
    """One run of the job, or one rewind of it. It is its own DriverPorts."""

    def __init__(self, world: World, name: str, errand: Errand | None = None) -> None:
        super().__init__(name, world.schedule.journal)
        self._world, self._errand = world, errand
        self.clock: Clock = ProcessClock(world, self)
        self.repository = Repository(ProcessStore(world, self))
        # The driver does nothing to a sink that is written at once.
        self.sinks = tuple(
            spec if spec.path is not None else replace(spec, sink=ProcessSink(world, self, spec.name))
            for spec in world.plan.sinks
        )
        self.owner = f"{world.random.getrandbits(128):032x}"
        self.loop = DriverLoop(world.new_rules(), self.owner, self, PULSE_S)
        self._workers: dict[WorkerId, WorkerProcess] = {}
        self._launched: dict[int, WorkerProcess] = {}
        self._lanes: dict[str, ProcessLane] = {}
        self._begun = False

    def start(self) -> None:
        """Read the log and take the job over; the store may be away for a while."""
        try:
            job = self.repository.read_log()
        except Unavailable:
            self._world.schedule.after(START_RETRY_S, self, "reads the log again", self.start)
            return
        except Damaged as error:  # it ends, and says which record; somebody starts the next one
            self._world.checks.driver_over(self.name, self.owner, "failed", error.as_json())
            self.end(error.what)
            return
        if job is not None and job.finished:
            self.end("the job is finished")
            return
        if self._errand is not None:
            self._run_errand(job, self._errand)
            return
        delay = self._world.random.choice(SPARK_STARTS_S)
        self._world.schedule.after(delay, self, "takes the job over", lambda: self._begin(job))

    def _begin(self, job: joblog.Job | None) -> None:
        self._begun = True
        self.loop.begin(job, "started")
        self._poll()

    def _run_errand(self, job: joblog.Job | None, errand: Errand) -> None:
        epoch = None if job is None else back_from(job, errand.back)
        if job is None or epoch is None:
            self.end("there is nothing to go back to")
            return

        def begin() -> None:
            self._begun = True
            self.loop.rewind(job, RewindWanted(epoch, True))
            self._poll()

        self._world.schedule.after(errand.delay, self, f"goes back to epoch {epoch}", begin)

    @property
    def generation(self) -> Generation:
        """Return the generation that the driver is in."""
        return self.loop.state.job.generation

    # Ports of the loop

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """See DriverPorts.send."""
        if isinstance(message, m.Trigger):
            self._world.checks.triggered(message.generation, message.barrier, self.owner)
        process = self._workers.get(worker)
        if process is not None:
            self.call(lambda: process.stream.to_worker(message), lambda: points.of_message(message))

    def launch(self, number: int) -> None:
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
            lane = SweepLane if name == "sweep" else ProcessLane
            self._lanes[name] = lane(self._world, self, name, self._look)
        return self._lanes[name]

    # Events

    def received(self, message: m.FromWorker) -> None:
        """A worker said something."""
        if isinstance(message, m.Register):
            process = self._launched.get(message.launch)
            if process is None or process.id != message.worker:
                return
            self._workers[message.worker] = process
        if not self.left:
            self.loop.received(message)
            self._look()

    def stream_closed(self, worker: WorkerProcess, why: str) -> None:
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
        """A request for a savepoint came; refused by a driver that is not that far, it is not repeated."""
        if self._begun and not self.left and (job := self.loop.state.log.job) is not None:
            self._asked("savepoint", {"name": savepoint}, job.generation)

    def asked_to_rewind(self, back: int) -> None:
        """A request to go back by so many checkpoints came."""
        if self._begun and not self.left and (job := self.loop.state.log.job) is not None:
            epoch = back_from(job, back)
            if epoch is not None:
                args = {"epoch": epoch, "timeline": job.timeline, "stop": back % 2 == 0}
                self._asked("rewind", args, job.generation)

    def asked_to_end(self, how: str | None) -> None:
        """A request came to stop, to finish, or to end now."""
        if self._begun and not self.left and (job := self.loop.state.log.job) is not None:
            self._asked("stop", {} if how is None else {"how": how}, job.generation)

    def _asked(self, kind: str, args: Mapping[str, Any], generation: Generation) -> None:
        """Carry a request out; one that cannot be judged yet is looked at again, as long as the run goes on."""
        if self.left:
            return
        answer = self.loop.asked(kind, args, generation, generation)
        if answer is None:
            again = lambda: self._asked(kind, args, generation)
            self._world.schedule.after(ASKED_AGAIN_S, self, f"looks at a {kind} again", again)
            return
        self._world.checks.answered(self.owner, kind, args, answer)
        self._look()

    @property
    def lanes(self) -> tuple[ProcessLane, ...]:
        """Return its lanes."""
        return tuple(self._lanes.values())

    @property
    def decides(self) -> bool:
        """Return whether there is a master that knows something."""
        return self.loop._master is not None

    def alive_workers(self) -> list[WorkerProcess]:
        """Return the workers that speak with it."""
        return [worker for worker in self._workers.values() if worker.alive]

    def crashed(self) -> None:
        """See Process.crashed."""
        self._world.hit(Fault.DRIVER_CRASH, self.crashed_at)
        super().crashed()

    def ended(self, why: str) -> None:
        """The streams break, and Spark ends what it ran for this driver, sooner or later."""
        for worker in self._launched.values():
            worker.stream.driver_ended()
            self._cancel(worker, self._world.random.choice((0.05, 1.0, 6.0)))

    def _poll(self) -> None:
        if self.left:
            return
        self.loop.turn()
        self._look()
        self._world.schedule.after(POLL_S, self, "", self._poll)

    def _look(self) -> None:
        """See whether the run is over."""
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
    """A driver's lane for sweeps; the checkers look at what each leaves, before anything else happens."""

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """See Lane.submit."""
        assert isinstance(self._process, DriverProcess)
        job = self._process.loop.state.job

        def watched() -> object:
            result = work()
            retained = [each.body.epoch for each in job.retained]
            self._world.checks.history.swept(job.generation, retained, self._world.objects)
            return result

        # One that waited for another is of a log that was shorter; of which one, nobody knows here.
        super().submit(work if self.hands_over else watched, done)


def back_from(job: joblog.Job, back: int) -> Epoch | None:
    """Return the checkpoint so many before the last one that the job can go back to, or the first of them."""
    possible = [each.body.epoch for each in job.completed if no_way_back(job, each.body.epoch) is None]
    return possible[max(0, len(possible) - 1 - back)] if possible else None
