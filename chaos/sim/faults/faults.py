"""The faults that the simulated world knows, and which of them a run has.

Swarm testing: each seed arms its own subset at its own rates, because faults that happen all the
time hide each other. Every strike is counted, so that a summary can distinguish a survived fault
from one that never happened.

Source: Groce et al., Swarm Testing, 2012; research on peers' fault matrices (F1 to F24).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdfast.chaos.sim.faults.draws import Chance
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Schedule


class Fault(StrEnum):
    """One way in which the world fails."""

    MESSAGE_DELAYED = "control message delayed"
    MESSAGE_LOST = "control message lost"
    MESSAGE_REPEATED = "control message repeated"
    STREAM_BROKEN = "control stream broken"
    STREAM_SILENT = "control stream silent"
    COMMIT_UNHEARD = "cut off just as an epoch completed"
    FRAME_DELAYED = "frame delayed"
    CHANNEL_BROKEN = "channel broken, both ends learn"
    CHANNEL_HALF_BROKEN = "channel broken, one end learns"
    WORKER_KILLED = "worker killed"
    WORKER_CRASH = "worker crashed at a port call"
    WORKER_PAUSED = "worker paused"
    LAUNCH_FAILED = "launch failed"
    DRIVER_KILLED = "driver killed"
    DRIVER_CRASH = "driver crashed at a port call"
    DRIVER_PAUSED = "driver paused"
    DRIVER_DOUBLED = "second driver started"
    READ_REFUSED = "read refused"
    WRITE_REFUSED = "write refused"
    WRITE_REPLY_LOST = "write done, reply lost"
    WRITE_LATE = "write lands late"
    APPEND_IN_DOUBT = "append done or late, then the store is out of reach"
    LANE_SLOW = "background work slow"
    SINK_REFUSED = "sink refused"
    SINK_ROLLED_BACK = "sink rolled back"
    SINK_REPLY_LOST = "delivered, reply lost"
    SINK_LATE = "delivery lands late"
    STORE_DOWN = "store down for a while"
    SINK_DOWN = "sinks down for a while"
    CLOCK_JUMP = "wall clock jumped"
    CREATE_CONFLICT = "create refused: another one is under way (409)"
    CREATE_TAKEN = "create done, then told that the name is taken"
    STORE_BUSY = "store refuses a process for a while (503)"
    READ_DAMAGED = "object damaged in one read"
    OBJECT_DAMAGED = "object damaged permanently"
    RECORD_DAMAGED = "record of the job log damaged"
    DISK_FULL = "disks full for a while"
    DISK_ERROR = "disk error in a write"
    DAEMON_KILLED = "all workers killed at once"
    POWER_LOST = "power lost, and what was not synced"
    RESCALED = "restarted with another parallelism in recovery"
    FUNCTION_FAILED = "a function failed"
    READ_REPLY_LOST = "read served, reply lost"
    WRITE_THEN_DARK = "write done and answered, then the store is out of reach"
    LISTING_REFUSED = "listing of a source refused"
    TASK_TWICE = "task run twice"
    OUTPUT_LOST = "output of a task lost, and its sender run again"
    JOB_FAILED = "job of an epoch failed"


PER_CALL: Mapping[Fault, float] = {
    Fault.MESSAGE_DELAYED: 0.2,
    Fault.MESSAGE_LOST: 0.3,
    Fault.MESSAGE_REPEATED: 0.1,
    Fault.STREAM_BROKEN: 0.04,
    Fault.COMMIT_UNHEARD: 0.7,
    Fault.FRAME_DELAYED: 0.2,
    Fault.CHANNEL_BROKEN: 0.1,
    Fault.CHANNEL_HALF_BROKEN: 0.1,
    Fault.LAUNCH_FAILED: 0.3,
    Fault.READ_REFUSED: 0.1,
    Fault.WRITE_REFUSED: 0.25,
    Fault.WRITE_REPLY_LOST: 0.25,
    Fault.WRITE_LATE: 0.25,
    Fault.APPEND_IN_DOUBT: 0.6,
    Fault.LANE_SLOW: 0.3,
    Fault.SINK_REFUSED: 0.4,
    Fault.SINK_ROLLED_BACK: 0.3,
    Fault.SINK_REPLY_LOST: 0.3,
    Fault.SINK_LATE: 0.3,
    Fault.CLOCK_JUMP: 0.2,
    Fault.CREATE_CONFLICT: 0.4,
    Fault.CREATE_TAKEN: 0.5,
    Fault.STORE_BUSY: 0.15,
    Fault.READ_DAMAGED: 0.4,
    Fault.OBJECT_DAMAGED: 0.4,
    Fault.RECORD_DAMAGED: 0.3,
    Fault.DISK_ERROR: 0.3,
    Fault.FUNCTION_FAILED: 0.1,
    Fault.READ_REPLY_LOST: 0.2,
    Fault.WRITE_THEN_DARK: 0.3,
    Fault.LISTING_REFUSED: 0.6,
    Fault.TASK_TWICE: 0.3,
    Fault.OUTPUT_LOST: 0.2,
    Fault.JOB_FAILED: 0.1,
}
"""Faults that may strike at every call of their kind, with the highest probability that a seed may choose."""

PER_PROCESS: Mapping[Fault, float] = {
    Fault.WORKER_CRASH: 0.6,
    Fault.DRIVER_CRASH: 0.5,
}
"""Faults assigned to a process at its start: it ends at one of its first port calls."""

PER_RUN: Mapping[Fault, int] = {
    Fault.WORKER_KILLED: 6,
    Fault.WORKER_PAUSED: 3,
    Fault.STREAM_SILENT: 3,
    Fault.DRIVER_KILLED: 3,
    Fault.DRIVER_PAUSED: 2,
    Fault.DRIVER_DOUBLED: 3,
    Fault.STORE_DOWN: 2,
    Fault.SINK_DOWN: 3,
    Fault.DISK_FULL: 3,
    Fault.DAEMON_KILLED: 3,
    Fault.POWER_LOST: 2,
}
"""Faults that strike at chosen moments of a run, with the most strikes per run."""

OUTAGES = (Fault.STORE_DOWN, Fault.SINK_DOWN, Fault.DISK_FULL)
LATER = frozenset({*PER_PROCESS, *OUTAGES})
"""Faults that are decided first and take effect later, or never: a process may end before its fatal call."""

CODES: Mapping[Fault, tuple[str, ...]] = {
    Fault.WORKER_KILLED: ("F1",),
    Fault.WORKER_CRASH: ("F1",),
    Fault.DRIVER_KILLED: ("F4",),
    Fault.DRIVER_CRASH: ("F4",),
    Fault.WORKER_PAUSED: ("F5",),
    Fault.DRIVER_PAUSED: ("F5",),
    Fault.DRIVER_DOUBLED: ("F5",),
    Fault.READ_REFUSED: ("F7",),
    Fault.WRITE_REFUSED: ("F7",),
    Fault.STORE_DOWN: ("F7",),
    Fault.SINK_DOWN: ("F7",),
    Fault.SINK_REFUSED: ("F7",),
    Fault.SINK_ROLLED_BACK: ("F7", "F17"),  # the timeout of a transaction rolls it back, too
    Fault.LAUNCH_FAILED: ("F7",),
    Fault.WRITE_REPLY_LOST: ("F8",),
    Fault.APPEND_IN_DOUBT: ("F8",),
    Fault.SINK_REPLY_LOST: ("F8", "F18"),
    Fault.SINK_LATE: ("F18",),
    Fault.WRITE_LATE: (),
    Fault.CHANNEL_BROKEN: ("F15",),
    Fault.CHANNEL_HALF_BROKEN: ("F15",),
    Fault.STREAM_BROKEN: ("F15",),
    Fault.STREAM_SILENT: ("F15",),
    Fault.FRAME_DELAYED: ("F15",),
    Fault.MESSAGE_DELAYED: ("F16",),
    Fault.MESSAGE_LOST: ("F16",),
    Fault.MESSAGE_REPEATED: ("F16",),
    Fault.COMMIT_UNHEARD: ("F16",),
    Fault.CLOCK_JUMP: ("F21",),
    Fault.LANE_SLOW: ("F22",),
    Fault.CREATE_CONFLICT: ("F11",),
    Fault.CREATE_TAKEN: ("F8", "F11"),
    Fault.STORE_BUSY: ("F11",),
    Fault.READ_DAMAGED: ("F10",),
    Fault.OBJECT_DAMAGED: ("F10",),
    Fault.RECORD_DAMAGED: ("F10",),
    Fault.DISK_FULL: ("F12",),
    Fault.DISK_ERROR: ("F13",),
    Fault.DAEMON_KILLED: ("F2", "F3"),
    Fault.POWER_LOST: ("F14",),
    Fault.RESCALED: ("F23",),
    Fault.FUNCTION_FAILED: ("F6",),
    Fault.READ_REPLY_LOST: ("F7", "F8"),
    Fault.WRITE_THEN_DARK: ("F7",),
    Fault.LISTING_REFUSED: ("F7",),
    Fault.TASK_TWICE: ("F9",),
    Fault.OUTPUT_LOST: ("F3",),
    Fault.JOB_FAILED: ("F6",),
}
"""Rows in which a fault counts. F9 and F24 are counted where they are observed."""


RATES = (0.05, 0.2, 0.6, 1.0)
"""From rare to the highest rate: a world that always fails completes no epoch that could be corrupted."""


@dataclass(frozen=True)
class Strike:
    """Identifies one possible strike within a run, also in a replay that differs elsewhere."""

    fault: Fault
    who: str
    """The process in whose event it is decided, or its cause."""
    nth: int
    """The number of that process's decision about this fault, from 0."""


class Faults:
    """The faults of one run: armed and struck.

    Args:
        armed: Probability, or number of moments, by fault.
        chance: Makes the decisions.
        schedule: Knows in whose event a decision is made, and records the strikes.
        only: The strikes that may happen; None: all that the seed decides.
    """

    def __init__(
        self,
        armed: Mapping[Fault, float],
        chance: Chance,
        schedule: Schedule,
        only: frozenset[Strike] | None = None,
    ) -> None:
        self.armed = dict(armed)
        self.fired: Counter[Fault] = Counter()
        """How often each caused a failure; a fault that was decided and never took effect has not struck."""
        self.hits: Counter[tuple[str, Point]] = Counter()
        """By row of the coverage table and protocol point."""
        self.made: list[Strike] = []
        """In order of occurrence; a strike's number is its index here."""
        self._chance, self._schedule, self._only = chance, schedule, only
        self._decisions: Counter[tuple[Fault, str]] = Counter()
        self._healed = False
        self._down: Counter[Fault] = Counter()
        self._felt: set[Fault] = set()

    def strikes(self, fault: Fault, at: Callable[[], Iterable[Point]], who: str | None = None) -> bool:
        """Decide by the seed whether the fault happens now; `who` names the victim if this is another process's event.

        Args:
            at: Returns the protocol points that it strikes at.
        """
        rate = 0.0 if self._healed else self.armed.get(fault, 0.0)
        if rate == 0.0:
            return False
        who = who or self._schedule.running
        nth = self._decisions[fault, who]
        self._decisions[fault, who] += 1
        self._schedule.deciding = fault.name
        decided = self._chance.random() < rate
        self._schedule.deciding = ""
        return decided and self.struck(Strike(fault, who, nth), at())

    def struck(self, strike: Strike, at: Iterable[Point]) -> bool:
        """Let a decided fault strike; return False if this one may not happen.

        It is counted immediately, or when it takes effect.
        """
        if self._only is not None and strike not in self._only:
            return False
        self.fired[strike.fault] += strike.fault not in LATER
        self._schedule.journal.say(strike.who, f"FAULT {len(self.made)}: {strike.fault}")
        self.made.append(strike)
        self._hit(strike.fault, at)
        return True

    def hit(self, fault: Fault, at: Iterable[Point]) -> None:
        """Count the effect of a fault that was decided earlier, and its protocol points."""
        assert fault in LATER
        first = self.down(fault) and fault not in self._felt  # in an outage; a store can be unreachable without one
        self._felt.add(fault)
        self.fired[fault] += fault not in OUTAGES or first
        self._hit(fault, at)

    def _hit(self, fault: Fault, at: Iterable[Point]) -> None:
        points = tuple(at)
        for code in CODES[fault]:
            self.hits.update((code, point) for point in points)

    def outage(self, fault: Fault, begins: bool) -> None:
        """An external system goes down, or comes back; outages may overlap."""
        self._down[fault] += 1 if begins else -1
        self._felt.discard(fault)

    def down(self, fault: Fault) -> bool:
        """Return whether the external system is down now."""
        return self._down[fault] > 0

    def heal(self) -> None:
        """From now on nothing fails."""
        self._healed = True

    @property
    def healed(self) -> bool:
        """Return whether the world has healed permanently."""
        return self._healed


CELLS: tuple[tuple[Fault, ...], ...] = (
    (Fault.COMMIT_UNHEARD, Fault.MESSAGE_DELAYED),
    (Fault.COMMIT_UNHEARD, Fault.SINK_DOWN, Fault.WORKER_KILLED),
    (Fault.APPEND_IN_DOUBT,),
    (Fault.APPEND_IN_DOUBT, Fault.DRIVER_CRASH, Fault.WRITE_LATE),
    (Fault.DRIVER_DOUBLED, Fault.LANE_SLOW),
    (Fault.DRIVER_DOUBLED, Fault.DRIVER_PAUSED, Fault.WRITE_REFUSED),
    (Fault.WRITE_REFUSED, Fault.WRITE_REPLY_LOST, Fault.MESSAGE_LOST),
    (Fault.FRAME_DELAYED, Fault.CHANNEL_BROKEN),
    (Fault.WORKER_PAUSED, Fault.STREAM_SILENT, Fault.SINK_LATE),
    (Fault.SINK_DOWN, Fault.SINK_REPLY_LOST, Fault.WORKER_KILLED),
    (Fault.SINK_LATE, Fault.SINK_ROLLED_BACK, Fault.MESSAGE_REPEATED),
    (Fault.DRIVER_KILLED, Fault.WORKER_KILLED),
    (Fault.SINK_REFUSED, Fault.WORKER_KILLED),
)
"""Faults that are worst in combination: at the commit point, at the fence, at the retry."""


MORE_CELLS: tuple[tuple[Fault, ...], ...] = (
    (Fault.CREATE_CONFLICT, Fault.CREATE_TAKEN, Fault.STORE_BUSY),
    (Fault.CREATE_TAKEN, Fault.DRIVER_KILLED),
    (Fault.READ_DAMAGED, Fault.WORKER_KILLED),
    (Fault.READ_DAMAGED, Fault.DAEMON_KILLED),
    (Fault.OBJECT_DAMAGED, Fault.WORKER_KILLED),
    (Fault.DISK_FULL, Fault.DISK_ERROR),
    (Fault.DISK_ERROR, Fault.DAEMON_KILLED),
    (Fault.POWER_LOST, Fault.DISK_FULL),
)
MORE_SHARE, FUNCTIONS_SHARE, RECORDS_SHARE, AFTER_SHARE = 0.25, 0.08, 0.06, 0.12
NOT_IN_SWARM = frozenset(
    {
        Fault.CREATE_CONFLICT,
        Fault.CREATE_TAKEN,
        Fault.STORE_BUSY,
        Fault.READ_DAMAGED,
        Fault.OBJECT_DAMAGED,
        Fault.DISK_FULL,
        Fault.DISK_ERROR,
        Fault.DAEMON_KILLED,
        Fault.POWER_LOST,
        Fault.RESCALED,
        Fault.FUNCTION_FAILED,
        Fault.RECORD_DAMAGED,
        Fault.READ_REPLY_LOST,
        Fault.WRITE_THEN_DARK,
        Fault.LISTING_REFUSED,
        Fault.TASK_TWICE,
        Fault.OUTPUT_LOST,
        Fault.JOB_FAILED,
    }
)
"""Chosen from a separate stream of numbers, so that a seed's other draws stay the same."""
SWARM = tuple(fault for fault in Fault if fault not in NOT_IN_SWARM)


def draw(rng: random.Random) -> dict[Fault, float]:
    """Choose the faults of a seed: a combination at high rates, or a few kinds, rarely all, from rare to frequent."""
    if rng.random() < 0.5:
        return {fault: _highest(fault) * rng.choice((0.6, 1.0)) for fault in rng.choice(CELLS)}
    share = rng.choice((0.08, 0.12, 0.15, 0.2, 0.2, 0.3, 0.5, 1.0))
    return {fault: _highest(fault) * rng.choice(RATES) for fault in SWARM if rng.random() < share}


def draw_more(rng: random.Random) -> dict[Fault, float]:
    """Choose the additional faults of a seed, if any, from those outside the swarm."""
    if rng.random() >= MORE_SHARE:
        return {}
    return {fault: _highest(fault) * rng.choice((0.3, 0.6, 1.0)) for fault in rng.choice(MORE_CELLS)}


def draw_functions(rng: random.Random) -> dict[Fault, float]:
    """Choose whether the job has Python functions, which then fail."""
    if rng.random() >= FUNCTIONS_SHARE:
        return {}
    return {Fault.FUNCTION_FAILED: _highest(Fault.FUNCTION_FAILED) * rng.choice((0.2, 0.4, 1.0))}


def draw_records(rng: random.Random) -> dict[Fault, float]:
    """Choose whether records of the job log are read damaged."""
    if rng.random() >= RECORDS_SHARE:
        return {}
    return {Fault.RECORD_DAMAGED: _highest(Fault.RECORD_DAMAGED) * rng.choice((0.1, 0.3, 1.0))}


def draw_after(rng: random.Random) -> dict[Fault, float]:
    """Choose whether the store fails right after it has carried out a request."""
    if rng.random() >= AFTER_SHARE:
        return {}
    read, write = Fault.READ_REPLY_LOST, Fault.WRITE_THEN_DARK
    kinds = rng.choice(((read,), (write,), (read, write)))
    return {fault: _highest(fault) * rng.choice((0.2, 0.5, 1.0)) for fault in kinds}


def draw_batches(rng: random.Random) -> dict[Fault, float]:
    """Choose how Spark treats the tasks of jobs in microbatch mode."""
    kinds = (Fault.TASK_TWICE, Fault.OUTPUT_LOST, Fault.JOB_FAILED)
    return {fault: _highest(fault) * rng.choice((0.3, 0.6, 1.0)) for fault in kinds if rng.random() < 0.6}


def times(armed: Mapping[Fault, float], fault: Fault) -> int:
    """Return how often a fault of PER_RUN strikes."""
    return math.ceil(armed.get(fault, 0.0))


def _highest(fault: Fault) -> float:
    if fault in PER_RUN:
        return float(PER_RUN[fault])
    return PER_CALL[fault] if fault in PER_CALL else PER_PROCESS[fault]
