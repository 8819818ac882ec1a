"""Virtual time: a heap of events, each belonging to a process that may be dead or stopped by then.

One event runs at a time, to its end. The events of a stopped process wait, in order, until the
process resumes, as after a SIGSTOP. A dead process's events are dropped.

Invariants
    - Events run in the order of their time, then of their creation; a seed has one order of events.
    - Time never goes back, and moves only between events.

Source: DESIGN section 10; the simulators of FoundationDB and TigerBeetle.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

import xxhash

from holdfast.chaos.sim.faults.points import Point
from holdfast.runtime.testing.lanes import VirtualClock

JOURNAL_LINES_MAX = 4_000
T = TypeVar("T")
Action = Callable[[], None]


class Crash(BaseException):
    """The process ends here. Only the schedule catches this: a lane must not treat it as a result."""


class EventJournal:
    """The journal of a run: the last lines as text, and a hash over all of them."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._hash = xxhash.xxh3_64()
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=JOURNAL_LINES_MAX)

    def say(self, who: str, what: str) -> None:
        """Record an event worth reading."""
        self._hash.update(f"{self._clock.now:.6f} {who} {what}\n".encode())
        self._lines.append((self._clock.now, who, what))

    def tick(self, who: str) -> None:
        """Hash an event that is not worth a line."""
        self._hash.update(f"{self._clock.now:.6f} {who}\n".encode())

    @property
    def hash(self) -> str:
        """Return the hash of all events so far."""
        return self._hash.hexdigest()

    def last(self, lines: int) -> list[str]:
        """Return the last lines, with times since the start of the run."""
        chosen = list(self._lines)[-lines:] if lines else []
        return [f"{at - VirtualClock().now:9.4f}  {who:<8} {what}" for at, who, what in chosen]


class Process:
    """A unit that lives and dies as one: a driver, a worker."""

    def __init__(self, name: str, journal: EventJournal) -> None:
        self.name, self.journal = name, journal
        self.alive, self.paused = True, False
        self.left = False
        """Its loop has ended; only background work continues."""
        self.backlog: list[tuple[str, Action]] = []
        self.on_lane = ""
        """The lane that it is working on; empty: its loop."""
        self.calls = 0
        self.crashed_at: tuple[Point, ...] = ()
        self.crash_at: int | None = None
        """The port call at which the process ends; odd numbers end it before the effect, even ones after."""

    def call(self, effect: Callable[[], T], at: Callable[[], Iterable[Point]]) -> T:
        """Carry out a port call, unless the process ends just before or just after it.

        Args:
            at: Returns the protocol points that the call is at.
        """
        self._step(at)
        result = effect()
        self._step(at)
        return result

    def _step(self, at: Callable[[], Iterable[Point]]) -> None:
        self.calls += 1
        if self.calls == self.crash_at:
            self.crashed_at = tuple(at())
            raise Crash

    def end(self, why: str) -> None:
        """End the process: none of its events happens from now on."""
        if self.alive:
            self.alive = False
            self.backlog.clear()
            self.journal.say(self.name, f"ENDS: {why}")
            self.ended(why)

    def ended(self, why: str) -> None:
        """Inform the surroundings of the end."""

    def crashed(self) -> None:
        """A port call did not return."""
        self.end(f"crashed at port call {self.calls // 2 + 1}")


class Schedule:
    """The heap of events."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.journal = EventJournal(self.clock)
        self.events = 0
        self.running = "world"
        """The process whose event is happening."""
        self.deciding = ""
        """The fault that is being decided."""
        self.watch: Callable[[Process], None] | None = None
        """Called with a process after each of its events."""
        self.under_way = 0
        """How many effects are still to land that their sender gave up or did not survive."""
        self._heap: list[tuple[float, int, Process | None, str, Action]] = []
        self._made = 0

    @property
    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.clock.now

    def after(self, delay: float, owner: Process | None, what: str, action: Action) -> float:
        """Schedule an event after a delay; `what` is its journal line, empty for none."""
        return self.at(self.clock.now + delay, owner, what, action)

    def at(self, due: float, owner: Process | None, what: str, action: Action) -> float:
        """Schedule an event at a time."""
        self._made += 1
        heapq.heappush(self._heap, (due, self._made, owner, what, action))
        return due

    def land(self, delay: float, what: str, action: Action) -> None:
        """Schedule an effect that lands even if its sender dies; a run is not over before it."""

        def landing() -> None:
            self.under_way -= 1
            action()

        self.under_way += 1
        self.after(delay, None, what, landing)

    def step(self) -> bool:
        """Run the next event; return False if there is none."""
        if not self._heap:
            return False
        due, _, owner, what, action = heapq.heappop(self._heap)
        self.clock.now = max(self.clock.now, due)
        if owner is not None:
            if not owner.alive:
                return True
            if owner.paused:
                owner.backlog.append((what, action))
                return True
        self.events += 1
        who = self.running = "world" if owner is None else owner.name
        if what:
            self.journal.say(who, what)
        else:
            self.journal.tick(who)
        try:
            action()
        except Crash:
            assert owner is not None, "only processes make port calls"
            owner.crashed()
        if self.watch is not None and owner is not None and owner.alive:
            self.watch(owner)
        return True

    def pause(self, process: Process) -> None:
        """Stop a process; its events wait."""
        process.paused = True
        self.journal.say(process.name, "PAUSED")

    def resume(self, process: Process) -> None:
        """Resume a process and its waiting events, in order."""
        if not process.paused:
            return
        process.paused = False
        self.journal.say(process.name, f"RESUMED, {len(process.backlog)} events waiting")
        waiting, process.backlog = process.backlog, []
        for what, action in waiting:
            self.at(self.clock.now, process, what, action)
