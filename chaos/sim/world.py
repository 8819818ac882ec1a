"""The simulated world: one store, the targets, and the live drivers and workers.

It adds only the surroundings of the runtime: a supervisor starts a driver when none is alive, faults
strike at their moments, and at some time everything heals.

Invariants
    - Only the seed decides what happens.
    - After the world has healed no call fails and no process is stopped; writes in flight still land.

Source: DESIGN section 10; research section 2b.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from holdfast.chaos.sim import whereabouts
from holdfast.chaos.sim.batch_process import BatchDriver, Spark, TaskProcess
from holdfast.chaos.sim.checks.checkers import Checks
from holdfast.chaos.sim.driver_process import RewindCommand, SimulatedDriver
from holdfast.chaos.sim.faults.aims import Aim, Aiming
from holdfast.chaos.sim.faults.damage import Damage
from holdfast.chaos.sim.faults.draws import Chance
from holdfast.chaos.sim.faults.faults import OUTAGES, Fault, Faults, Strike
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process, Schedule
from holdfast.chaos.sim.jobs import evolving
from holdfast.chaos.sim.jobs.arriving import ArrivingSource, batches_of
from holdfast.chaos.sim.jobs.functions import Functions
from holdfast.chaos.sim.jobs.tables import SharedTable
from holdfast.chaos.sim.jobs.workload import RewindAsked, Scenario, TimedFault, plan_of, with_committers
from holdfast.chaos.sim.namings import NamingProcess
from holdfast.chaos.sim.ports.disks import Disk
from holdfast.chaos.sim.ports.images import SimulatedMachines
from holdfast.chaos.sim.ports.network import Address, Endpoint
from holdfast.chaos.sim.ports.objects import WatchedObjects
from holdfast.chaos.sim.worker_process import WorkerProcess
from holdfast.errors import ErrorReport
from holdfast.model import Epoch, Generation, JobUuid, Subtask, Tag, Timeline, Writer
from holdfast.runtime.driver.state import Rules
from holdfast.runtime.microbatch.blocks import Attempt
from holdfast.runtime.microbatch.task import Batch
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.testing.cluster import rules_of
from holdfast.sinks.memory.immediate import ImmediateTable

SUPERVISE_S = 0.1
EARLIER_EPOCHS = 57
CALLS_MAX = 400
"""A crash at a port call strikes within this many first calls of a process."""


class World:
    """Everything in one run.

    Args:
        chance: Makes the source of decisions from the seed's numbers and the schedule.
        only: The strikes that may happen; None: all.
    """

    def __init__(
        self,
        scenario: Scenario,
        chance: Callable[[random.Random, Schedule], Chance] = lambda source, _: source,
        only: frozenset[Strike] | None = None,
    ) -> None:
        self.scenario = scenario
        self.schedule = Schedule()
        self.random = chance(random.Random(scenario.seed ^ 0x5EED), self.schedule)
        self.faults = Faults(scenario.armed, self.random, self.schedule, only)
        self.drivers: list[SimulatedDriver] = []
        self.workers: list[WorkerProcess] = []
        self.tasks: list[TaskProcess] = []
        self.tasks_made = 0
        self.endpoints: dict[Address, Endpoint] = {}
        self.disk, self.damage = Disk(self), Damage(self.faults, self.random)
        self.machines = SimulatedMachines()
        self.functions = Functions(self.faults, scenario.aims, scenario.call_s)
        self._start = self.schedule.now
        arrivals = tuple(tuple(self._start + at for at in times) for times in scenario.arrivals)
        clock, rows_max = self.schedule.clock, scenario.batch_rows_max
        s = scenario
        more = (s.ledger, s.regroups, s.united, s.functions, s.letters, s.texts, s.drops, s.branches)
        last = evolving.LAST_VERSION if s.evolves else 0
        versions = [
            plan_of(s.upserts, s.above, s.windowing, s.immediate, *more, v if s.evolves else None)
            for v in range(last + 1)
        ]
        plan = versions[0]
        schema = plan.sources[0].source.schema
        batches = batches_of(scenario.partitions, schema)
        appears = tuple(self._start + at if at else 0.0 for at in scenario.appears)
        given = batches, arrivals, clock, self.random, rows_max, schema
        sources = {name: ArrivingSource(*given, mine, appears) for name, mine in scenario.sources.items()}
        self.versions = [
            replace(each, sources=tuple(replace(spec, source=sources[spec.name]) for spec in each.sources))
            for each in versions
        ]
        self.plan = self.versions[0]
        self._plans: dict[str, Plan] = {}
        """The plan of every driver, by its owner token."""
        self.tables = {spec.name: SharedTable(spec.upsert_key) for spec in plan.sinks if spec.path is None}
        self.lasts = ImmediateTable(["place"])
        for spec in plan.sinks:
            (self.tables[spec.name] if spec.path is None else self.lasts).prepare(spec.schema, spec.upsert_key)
        self.checks = Checks(scenario, self.versions, self.tables, self.lasts, self.schedule.journal)
        self.checks.explained = lambda error: any(
            explains(error) for explains in (self.damage.explains, self.functions.explains, self._overtaken)
        )
        self.objects = WatchedObjects(self._landed, self.checks.history.deleted)
        self.checks.objects = self.objects
        self.checks.elapsed = lambda: self.elapsed
        if scenario.earlier_job:
            self._leave_earlier_tags()

    @property
    def elapsed(self) -> float:
        """Return the virtual seconds since the start."""
        return self.schedule.now - self._start

    def begin(self) -> None:
        """Start a driver, and let the scenario's faults strike at their moments."""
        self._supervise()
        for number, moment in enumerate(self.scenario.moments):
            strike = Strike(moment.fault, "moment", number)
            self.schedule.after(moment.at, None, "", partial(self._strike, moment, strike))
        for number, asked in enumerate(self.scenario.savepoints):
            self.schedule.after(asked.at, None, "", partial(self._want_savepoint, f"s{number}", asked.delay))
        for rewind in self.scenario.rewinds:
            self.schedule.after(rewind.at, None, "", partial(self._want_rewind, rewind))
        for end in self.scenario.ends:
            self.schedule.after(end.at, None, "", partial(self._want_end, end.how))
        for partition in sorted(self.scenario.added):
            self.schedule.after(self.scenario.appears[partition], None, f"PARTITION {partition} IS ADDED", lambda: None)
        if self.scenario.aims:
            aiming = Aiming(self.scenario.aims, self.points_of, self._strike_aimed)
            self.schedule.watch = lambda process: aiming.look(process, isinstance(process, SimulatedDriver))
        self.schedule.after(self.scenario.heal_at, None, "THE WORLD HEALS", self._heal)

    def over(self) -> bool:
        """Return whether the job is finished, and no process or write in flight can still have an effect."""
        if not self.checks.finished or self.schedule.under_way:
            return False
        return not any(p.alive for p in (*self.drivers, *self.workers, *self.tasks))

    def chance_of(self, name: str) -> Chance:
        """Return numbers of the seed that nothing else draws."""
        return random.Random(f"{self.scenario.seed}/{name}")

    def new_rules(self, owner: str) -> Rules:
        """Return the rules that a driver starts with."""
        scenario = self.scenario
        uuid = JobUuid(f"{self.random.getrandbits(128):032x}")
        partitions = scenario.sources_at(self.elapsed)
        parallelism = scenario.parallelisms[len(self.drivers) % len(scenario.parallelisms)]
        version = min(len(self.drivers), len(self.versions) - 1)
        rules = rules_of(self.versions[version], parallelism, partitions, uuid, scenario.checkpoint_every)
        self._plans[owner] = self.versions[version]
        if scenario.evolves:
            base = self.checks.last_manifest()
            self._plans[owner], operators, checked = evolving.started(self.versions[version], version, base)
            rules = replace(rules, operators=operators, checked=checked)
        if scenario.committers[len(self.drivers) % len(scenario.committers)]:
            self._plans[owner] = with_committers(self._plans[owner])
            rules = replace(rules, committed_once=tuple(sorted(self._plans[owner].committed_once())))
        once = scenario.once[len(self.drivers) % len(scenario.once)]
        if once:
            self.checks.reads_to(owner, self._arrived())
        return replace(
            rules,
            until=self._arrived() if once else None,
            standbys=scenario.standbys,
            silent_after=1.0,
            epoch_deadline=scenario.epoch_deadline,
            redeploy_every=0.5,
            restart_failures_max=10_000,
            restart_backoff_first=0.05,
            restart_backoff_max=0.4,
            retention=scenario.retention,
            discover_every=scenario.listed_every,
        )

    def _overtaken(self, error: ErrorReport | None) -> bool:
        """Return whether a driver ended because an older one with other code was faster."""
        return self.scenario.evolves and error is not None and error.what.startswith(evolving.OVERTAKEN)

    def _arrived(self) -> dict[str, dict[int, int]]:
        """Return the present end of each partition of each source, where a bounded run stops reading."""
        ends = [bisect_right(times, self.elapsed) for times in self.scenario.arrivals]
        there = self.scenario.sources_at(self.elapsed)
        return {name: {p: ends[p] for p in partitions} for name, partitions in there.items()}

    def new_worker(self, driver: SimulatedDriver, launch: int) -> WorkerProcess:
        """Return a process that a driver launched, not yet started."""
        worker = WorkerProcess(self, f"w{len(self.workers) + 1}", driver, launch, self.plan_of(driver.owner))
        self.workers.append(worker)
        self._doom(worker, Fault.WORKER_CRASH)
        return worker

    def plan_of(self, owner: str) -> Plan:
        """Return the plan of a driver."""
        return self._plans[owner]

    def new_task(self, spark: Spark, job: int, batch: Batch, attempt: Attempt) -> TaskProcess:
        """Return an attempt that Spark starts, not yet started."""
        self.tasks = [task for task in self.tasks if task.alive]
        self.tasks_made += 1
        task = TaskProcess(self, f"t{self.tasks_made}", spark, job, batch, attempt)
        self.tasks.append(task)
        self._doom(task, Fault.WORKER_CRASH)
        return task

    def new_port(self) -> int:
        """Return an unused port."""
        return len(self.endpoints) + 1

    def generation_of(self, process: Process) -> Generation:
        """Return the generation of a process."""
        assert isinstance(process, WorkerProcess | SimulatedDriver | TaskProcess)
        return process.generation

    def points_of(self, process: Process) -> frozenset[Point]:
        """Return the protocol points at which a process is."""
        if isinstance(process, WorkerProcess):
            return whereabouts.of_worker(process)
        if isinstance(process, TaskProcess):
            return whereabouts.of_task(process)
        return whereabouts.of_driver(process) if isinstance(process, SimulatedDriver) else frozenset({Point.BETWEEN})

    def hit(self, fault: Fault, at: Iterable[Point]) -> None:
        """A process that was assigned this fault ends at these points."""
        self.faults.hit(fault, at)
        self._fails_again(fault, at)

    def _fails_again(self, fault: Fault, at: Iterable[Point]) -> None:
        """Count a failure that comes while the job recovers from an earlier one (F24)."""
        if Point.RECOVER in at and self.checks.history.generation > 1:
            self.faults.hits["F24", Point.RECOVER] += 1

    def _supervise(self) -> None:
        """A user or a scheduler restarts the job until it is finished."""
        if not self.checks.finished and not any(driver.alive and not driver.paused for driver in self.drivers):
            self._start_driver()
        self.schedule.after(SUPERVISE_S, None, "", self._supervise)

    def _want_savepoint(self, name: str, delay: float | None) -> None:
        """A user asks the newest driver, or names the last checkpoint directly, whatever runs."""
        if delay is not None:
            process = NamingProcess(self, name, delay)
            self.schedule.after(0.0, process, "looks at the log", process.look)
            return
        alive = [driver for driver in self.drivers if driver.alive]
        if alive:
            driver = alive[-1]
            self.schedule.after(0.0, driver, f"is asked for savepoint {name}", lambda: driver.asked_for(name))

    def _want_rewind(self, asked: RewindAsked) -> None:
        """A user asks the newest driver to go back, or starts a separate driver for it."""
        alive = [driver for driver in self.drivers if driver.alive]
        if asked.delay is not None:
            self._start_driver(RewindCommand(asked.back, asked.delay))
        elif alive:
            driver = alive[-1]
            self.schedule.after(0.0, driver, "is asked to go back", lambda: driver.asked_to_rewind(asked.back))

    def _want_end(self, how: str | None) -> None:
        """A user asks the newest driver to end its run."""
        alive = [driver for driver in self.drivers if driver.alive]
        if alive:
            driver = alive[-1]
            self.schedule.after(0.0, driver, f"is asked to end ({how or 'stop'})", lambda: driver.asked_to_end(how))

    def _start_driver(self, rewind_command: RewindCommand | None = None) -> None:
        name, modes = f"d{len(self.drivers) + 1}", self.scenario.batches
        in_batches = modes[len(self.drivers) % len(modes)] and rewind_command is None
        driver = BatchDriver(self, name) if in_batches else SimulatedDriver(self, name, rewind_command)
        self.drivers.append(driver)
        self._doom(driver, Fault.DRIVER_CRASH)
        self.schedule.after(self.random.uniform(0.0, 0.2), driver, "starts", driver.start)

    def _doom(self, process: Process, fault: Fault) -> None:
        """Choose the port call at which a new process ends, if any."""
        if self.faults.strikes(fault, tuple, process.name):
            process.crash_at = int(math.exp(self.random.uniform(0.0, math.log(CALLS_MAX))))

    def _strike(self, moment: TimedFault, strike: Strike) -> None:
        if moment.fault in OUTAGES and not self.faults.healed:
            self._go_down(moment, strike)
        else:
            self._strike_process(moment, strike)

    def _go_down(self, moment: TimedFault, strike: Strike) -> None:
        if not self.faults.struck(strike, ()):
            return
        self.faults.outage(moment.fault, begins=True)
        self.schedule.journal.say("world", f"{moment.fault} ({moment.seconds} s)")
        self._later(moment.seconds, lambda: self.faults.outage(moment.fault, begins=False))

    def _strike_process(self, moment: TimedFault, strike: Strike) -> None:
        at_driver = moment.fault.name.startswith("DRIVER")
        tasks = [] if moment.fault is Fault.STREAM_SILENT else self.tasks
        among: list[Process] = [*self.drivers] if at_driver else [*self.workers, *tasks]
        victims = [process for process in among if process.alive and not process.paused and not process.left]
        if self.faults.healed or not victims:
            return
        self._strike_at(moment, strike, self.random.choice(victims))

    def _strike_aimed(self, number: int, aim: Aim, victim: Process) -> None:
        if not self.faults.healed and victim.alive and not victim.paused:
            moment = TimedFault(self.elapsed, aim.fault, aim.seconds)
            self._strike_at(moment, Strike(aim.fault, "aimed", number), victim)

    def _strike_at(self, moment: TimedFault, strike: Strike, victim: Process) -> None:
        victims = self._struck_with(moment.fault, victim)
        at = frozenset(point for process in victims for point in self.points_of(process))
        if not self.faults.struck(strike, at):
            return
        self._fails_again(moment.fault, at)
        match moment.fault:
            case Fault.WORKER_KILLED | Fault.DRIVER_KILLED | Fault.RESCALED:
                victim.end("killed")
            case Fault.DAEMON_KILLED | Fault.POWER_LOST:
                self._end_all(victims, moment.fault)
            case Fault.WORKER_PAUSED | Fault.DRIVER_PAUSED:
                self.schedule.pause(victim)
                self._later(moment.seconds, lambda: self.schedule.resume(victim))
            case Fault.DRIVER_DOUBLED:
                self._start_driver()
            case Fault.STREAM_SILENT:
                assert isinstance(victim, WorkerProcess)
                self._silence(victim, moment.seconds)
            case _:
                raise AssertionError(f"{moment.fault} has no moment")

    def _struck_with(self, fault: Fault, victim: Process) -> list[Process]:
        """Return all victims: with a daemon all its workers end, with the power every process."""
        workers = [process for process in (*self.workers, *self.tasks) if process.alive]
        drivers: list[Process] = [driver for driver in self.drivers if driver.alive]
        if fault is Fault.DAEMON_KILLED:
            return workers
        return [*drivers, *workers] if fault is Fault.POWER_LOST else [victim]

    def _end_all(self, struck: Iterable[Process], fault: Fault) -> None:
        if fault is Fault.POWER_LOST:
            self.disk.power_lost()  # before the kills: those keep writes that the machine had not synced
        for process in struck:
            process.end(fault.value)

    def _landed(self, path: str, data: bytes) -> None:
        self.damage.written(path)
        epochs = len(self.checks.history.cuts)
        self.checks.landed(path, data)
        completed = len(self.checks.history.cuts) > epochs
        if completed and self.faults.strikes(Fault.COMMIT_UNHEARD, lambda: (Point.DELIVER,)):
            self._cut_off()

    def _cut_off(self) -> None:
        """Silence the control streams for a moment, so that a commit goes unreported, and lose a worker."""
        workers = [worker for worker in self.workers if worker.alive and worker.stream.open]
        if not workers:
            return
        victim = self.random.choice(workers)
        for worker in workers:
            if worker is not victim:
                self._silence(worker, self.random.choice((0.03, 0.06, 0.12)))
        self.schedule.after(0.0, None, "", lambda: victim.end("killed as an epoch completed"))

    def _silence(self, worker: WorkerProcess, seconds: float) -> None:
        worker.stream.silent = True
        self.schedule.journal.say(worker.name, f"its control stream is SILENT for {seconds} s")
        self._later(seconds, lambda: setattr(worker.stream, "silent", False))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an event, at the latest when the world heals."""
        left = self.scenario.heal_at - self.elapsed
        self.schedule.after(min(seconds, max(left, 0.0)), None, "", action)

    def _heal(self) -> None:
        self.faults.heal()
        for process in (*self.drivers, *self.workers, *self.tasks):
            process.crash_at = None

    def _leave_earlier_tags(self) -> None:
        """Give the targets the tags of a deleted job of this name; its rows were removed."""
        uuid, tag = "0" * 32, Tag(Timeline(1), Epoch(EARLIER_EPOCHS))
        for name, table in self.tables.items():
            for subtask in range(max(self.scenario.parallelisms)):
                table.deliver(uuid, Writer(name, Subtask(subtask)), tag, ())
