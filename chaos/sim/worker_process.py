"""A worker's process in the simulated world: the production loop with the surroundings of runtime/processes/host.py.

The loop gets its turns, its messages and its lanes' results as events. Heartbeats and the session
timeout are as on a real host. A process that left may still have work in its lanes, like the
threads of a Python worker that Spark keeps: that work continues for a while.

Invariants
    - The loop handles one event at a time; a crash ends it between any two port calls.
    - Memory dies with the process; its writes to the store and to targets do not.

Source: DESIGN section 3; PROTOCOL P2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from holdfast.chaos.sim.checks.aligned import HeldPartition
from holdfast.chaos.sim.faults import points
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.jobs.functions import Functions
from holdfast.chaos.sim.ports.disks import Disk, DiskState
from holdfast.chaos.sim.ports.ends import DriverEnd, WorkerEnd
from holdfast.chaos.sim.ports.immediate import ProcessTable
from holdfast.chaos.sim.ports.network import Endpoint, Networked
from holdfast.chaos.sim.ports.stores import ProcessStore
from holdfast.chaos.sim.ports.streams import ControlStream
from holdfast.chaos.sim.ports.targets import ProcessSink
from holdfast.model import NO_EPOCH, Epoch, Generation, WorkerId
from holdfast.ports import Lane, ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.testing.lanes import InlineLane
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import Network
from holdfast.runtime.worker.local.opened import LocalState, MemoryState
from holdfast.runtime.worker.loop import Limits, WorkerLoop
from holdfast.runtime.worker.subtask import Active

HEARTBEAT_S = 0.35
SESSION_TIMEOUT_S = 2.0
POLL_S = 0.1
LIMITS = Limits()
LINGER_S = 2.0
"""How long the threads of a process that left may survive."""


class Inhabited(Networked, Protocol):
    """The world, as a process sees it."""

    @property
    def plan(self) -> Plan: ...
    @property
    def functions(self) -> Functions: ...
    @property
    def disk(self) -> Disk: ...

    def new_port(self) -> int:
        """Return a port that no other process has."""

    def points_of(self, process: Process) -> frozenset[Point]:
        """Return the protocol points at which a process is."""

    def hit(self, fault: Fault, at: Iterable[Point]) -> None:
        """A process that was assigned this fault ends at these points."""


class ProcessClock:
    """One process's view of time: its own origin, and a wall clock that may jump (P3)."""

    def __init__(self, world: Inhabited, process: Process) -> None:
        self._world, self._process = world, process
        self._offset = world.random.uniform(0.0, 1_000.0)

    def monotonic(self) -> float:
        """Monotonic seconds."""
        return self._world.schedule.now + self._offset

    def spend(self, seconds: float) -> None:
        """Let time pass for this process alone, within one event, while it computes."""
        self._offset += seconds

    def wall_us(self) -> int:
        """Microseconds since 1970; jumps by up to an hour."""
        jumps = self._world.faults.strikes(Fault.CLOCK_JUMP, lambda: self._world.points_of(self._process))
        jump = self._world.random.randint(-3_600, 3_600) if jumps else 0
        return self._world.schedule.clock.wall_us() + jump * 1_000_000


class ProcessLane(InlineLane):
    """A lane whose work is one event and whose result is delivered in a later one."""

    def __init__(self, world: Inhabited, process: Process, name: str, handed_over: Callable[[], None]) -> None:
        super().__init__()
        self._world, self._process, self.name = world, process, name
        self._handed_over = handed_over
        self.busy = self.worked = False
        """Whether there is work, and whether it is done but its result not handed over yet."""
        self.hands_over = False

    def submit(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        """See Lane.submit."""
        super().submit(work, done)
        self._start()

    def _start(self) -> None:
        if self.jobs and not self.busy:
            self.busy = True
            self._world.schedule.after(self._delay(), self._process, "", self._work)

    def _work(self) -> None:
        self._process.on_lane = self.name
        hand_over = self.work()
        self._process.on_lane, self.worked = "", True
        self._world.schedule.after(self._delay(), self._process, "", lambda: self._done(hand_over))

    def _done(self, hand_over: Callable[[], None]) -> None:
        self.busy = self.worked = False
        self._start()
        if not self._process.left:
            self.hands_over = True
            hand_over()
            self.hands_over = False
            self._handed_over()

    def _delay(self) -> float:
        slow = self._world.faults.strikes(Fault.LANE_SLOW, lambda: points.of_lane(self.name))
        return self._world.random.choice((0.05, 0.3, 1.5)) if slow else self._world.random.uniform(0.0002, 0.004)


class WorkerPorts:
    """The world as the loop sees it."""

    def __init__(self, world: Inhabited, process: WorkerProcess) -> None:
        self._world, self._process = world, process
        self.clock = ProcessClock(world, process)
        self.store: ObjectStore = ProcessStore(world, process)
        self.network: Network = process.endpoint
        self.local: LocalState = DiskState(world.disk, process) if world.scenario.folders else MemoryState()

    def send(self, message: m.FromWorker) -> None:
        """See Ports.send."""
        if isinstance(message, m.Ready):
            self._world.checks.ready(message)
        self._process.call(lambda: self._process.stream.to_driver(message), lambda: points.of_message(message))

    def lane(self, name: str) -> Lane:
        """See Ports.lane."""
        return self._process.lane(name)


class WorkerProcess(WorkerEnd):
    """One worker, from its launch to its end."""

    def __init__(self, world: Inhabited, name: str, driver: DriverEnd, launch: int, plan: Plan) -> None:
        super().__init__(name, world.schedule.journal)
        self._world, self.driver, self.launch = world, driver, launch
        self.id = WorkerId(f"{name}-{world.random.getrandbits(24):06x}")
        self.address = ("simulated", world.new_port())
        self._lanes: dict[str, ProcessLane] = {}
        self.endpoint = Endpoint(world, self)
        world.endpoints[self.address] = self.endpoint
        self.ports = WorkerPorts(world, self)
        spend = self.ports.clock.spend
        plan = world.functions.bound(plan, name, lambda: world.points_of(self), spend)
        sinks = tuple(
            replace(spec, sink=ProcessSink(world, self, spec) if spec.path is None else ProcessTable(world, self))
            for spec in plan.sinks
        )
        total = world.scenario.state_memory
        budget = None if total is None else Budget(total, channels=0)
        copied = world.scenario.copied_per_turn or LIMITS.copied_per_turn
        image_from = 1 if launch % 3 else LIMITS.image_from
        limits = replace(
            LIMITS, merging=world.scenario.merging, budget=budget, copied_per_turn=copied, image_from=image_from
        )
        limits = replace(limits, max_records_per_second=world.scenario.rate, upload_from=world.scenario.upload_from)
        self.loop = WorkerLoop(self.id, replace(plan, sinks=sinks), self.ports, limits)
        self.stream = ControlStream(world, self, driver)
        self._heard = world.schedule.now
        self._turn_due = math.inf

    def start(self) -> None:
        """Register and start."""
        self._heard = self._world.schedule.now
        self.stream.register(m.Register(self.id, self.launch, "simulated", self.launch, "boot", self.address))
        self._world.schedule.after(HEARTBEAT_S, self, "", self._watch)
        self.wake(0.0)

    @property
    def generation(self) -> Generation:
        """Return the worker's generation."""
        return self.loop.heartbeat().generation

    def received(self, message: m.FromDriver) -> None:
        """A message from the driver arrived."""
        self._heard = self._world.schedule.now
        if self.left:
            return
        if isinstance(message, m.Pulse):
            self.loop.received(message)
            return
        if isinstance(message, m.Deploy):
            self._world.checks.deployed()
        if isinstance(message, m.HoldBack):
            self._world.checks.aligned.received(self.name, message, self.ports.clock.monotonic())
        self.loop.received(message)
        self.wake(0.0)

    def stream_closed(self, why: str) -> None:
        """The control stream closed."""
        self.loop.leave(why)
        self.wake(0.0)

    def wake(self, delay: float) -> None:
        """Schedule a turn of the loop soon, unless one is due earlier."""
        due = self._world.schedule.now + delay + self._world.random.uniform(0.0001, 0.002)
        if due < self._turn_due and self.alive and not self.left:
            self._turn_due = due
            self._world.schedule.at(due, self, "", lambda: self._turn(due))

    def lane(self, name: str) -> Lane:
        """Return the lane of this name."""
        if name not in self._lanes:
            self._lanes[name] = ProcessLane(self._world, self, name, lambda: self.wake(0.0))
        return self._lanes[name]

    @property
    def lanes(self) -> tuple[ProcessLane, ...]:
        """Return its lanes."""
        return tuple(self._lanes.values())

    def writes_unflushed(self) -> bool:
        """Return whether its local folder has writes that a kill could still undo."""
        return self._world.scenario.folders and self._world.disk.unflushed(self) > 0

    def crashed(self) -> None:
        """See Process.crashed."""
        self._world.hit(Fault.WORKER_CRASH, self.crashed_at)
        super().crashed()

    def ended(self, why: str) -> None:
        """The driver notices by the stream, by Spark, or by silence."""
        self._world.disk.lost(self)
        self.endpoint.process_ended()
        self.stream.hang_up(why)
        delay = self._world.random.choice((0.01, 0.5, 3.0))
        self._world.schedule.after(delay, self.driver, "", lambda: self.driver.launch_ended(self.launch, why))

    def _turn(self, due: float) -> None:
        if due != self._turn_due:
            return
        self._turn_due = math.inf
        for _ in range(self._world.random.randint(1, 3)):
            if self.loop.exited is not None:
                self._leave(self.loop.exited)
                return
            is_busy = self.loop.turn()
            if (active := self.loop._active) is not None:
                now, generation = self.ports.clock.monotonic(), active.deploy.generation
                self._world.checks.aligned.turned(self.name, generation, now, _held_back(active))
            if not is_busy:
                idle = self.loop.idle_s()
                self.wake(idle if idle < 0.05 else POLL_S)
                return
        self.wake(0.0)

    def _watch(self) -> None:
        if self.left:
            return
        silent = self._world.schedule.now - self._heard
        if silent > SESSION_TIMEOUT_S:
            self.end(f"no word from the driver for {silent:.1f} s")
            return
        self.ports.send(self.loop.heartbeat())
        self.loop.take_stock()
        self._world.checks.took_stock(self.loop.heartbeat())
        self._world.checks.holds(self.name, *self._epochs_held())
        self._world.schedule.after(HEARTBEAT_S, self, "", self._watch)

    def _epochs_held(self) -> tuple[Epoch, set[Epoch]]:
        """Return the last epoch that it knows to be committed, and the epochs for which it keeps something."""
        active = self.loop._active
        if active is None:
            return NO_EPOCH, set()
        machine, written = active.machine, self.loop._deliveries.immediate._positions
        kept = (machine.positions, machine.counts, machine.sealing, machine.sealed, machine.acked, active.run._closed)
        return machine.committed, {epoch for each in (*kept, written) for epoch in each}

    def _leave(self, why: str) -> None:
        """The loop ended; threads of its lanes may still run."""
        self.left = True
        self.journal.say(self.name, f"leaves: {why}")
        self.loop.close()
        self.stream.hang_up(why)
        linger = self._world.random.choice((0.0, 0.1, LINGER_S))
        self._world.schedule.after(linger, self, "", lambda: self.end("the process ended"))


def _held_back(active: Active) -> Iterator[HeldPartition]:
    """Yield the partitions that wait for others in event time."""
    for reading in active.run._readings:
        if not reading.caught_up() and active.run._is_held_back(reading):
            part = active.run._times[reading.fragment]._minimum.parts[reading.partition]
            unread = reading.opened.end_offsets()[reading.partition] > reading.offset
            yield HeldPartition((reading.source, reading.partition), part, unread)
