"""The faults that the simulated world knows, and which of them a run has.

Swarm testing: each seed arms its own subset at its own rates, because faults that happen all the
time hide each other. Whatever strikes is counted, so that a summary can tell a fault that was
survived from one that never happened.

Source: Groce et al., Swarm Testing, 2012; research on peers' fault matrices (F1 to F24).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum


class Fault(StrEnum):
    """One way in which the world fails."""

    MESSAGE_DELAYED = "control message delayed"
    MESSAGE_LOST = "control message lost"
    MESSAGE_REPEATED = "control message repeated"
    STREAM_BROKEN = "control stream broken"
    STREAM_SILENT = "control stream silent"
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
    LANE_SLOW = "background work slow"
    SINK_REFUSED = "sink refused"
    SINK_ROLLED_BACK = "sink rolled back"
    SINK_REPLY_LOST = "delivered, reply lost"
    SINK_LATE = "delivery lands late"
    CLOCK_JUMP = "wall clock jumped"


PER_CALL: Mapping[Fault, float] = {
    Fault.MESSAGE_DELAYED: 0.2,
    Fault.MESSAGE_LOST: 0.12,
    Fault.MESSAGE_REPEATED: 0.1,
    Fault.STREAM_BROKEN: 0.02,
    Fault.FRAME_DELAYED: 0.2,
    Fault.CHANNEL_BROKEN: 0.03,
    Fault.CHANNEL_HALF_BROKEN: 0.03,
    Fault.LAUNCH_FAILED: 0.3,
    Fault.READ_REFUSED: 0.1,
    Fault.WRITE_REFUSED: 0.25,
    Fault.WRITE_REPLY_LOST: 0.25,
    Fault.WRITE_LATE: 0.25,
    Fault.LANE_SLOW: 0.3,
    Fault.SINK_REFUSED: 0.4,
    Fault.SINK_ROLLED_BACK: 0.3,
    Fault.SINK_REPLY_LOST: 0.3,
    Fault.SINK_LATE: 0.3,
    Fault.CLOCK_JUMP: 0.2,
}
"""Faults that may strike at every call of their kind, with the highest probability that a seed gives them."""

PER_PROCESS: Mapping[Fault, float] = {
    Fault.WORKER_CRASH: 0.6,
    Fault.DRIVER_CRASH: 0.5,
}
"""Faults that a process is born with: it ends at one of its first port calls."""

PER_RUN: Mapping[Fault, int] = {
    Fault.WORKER_KILLED: 3,
    Fault.WORKER_PAUSED: 3,
    Fault.STREAM_SILENT: 3,
    Fault.DRIVER_KILLED: 2,
    Fault.DRIVER_PAUSED: 2,
    Fault.DRIVER_DOUBLED: 2,
}
"""Faults that strike at some moments of a run, with how often at most."""


class Faults:
    """The faults of one run: what is armed, what struck."""

    def __init__(self, armed: Mapping[Fault, float], rng: random.Random) -> None:
        self.armed = dict(armed)
        self.fired: Counter[Fault] = Counter()
        self._random = rng
        self._healed = False

    def strikes(self, fault: Fault) -> bool:
        """Decide, by the seed, whether the fault happens now."""
        rate = 0.0 if self._healed else self.armed.get(fault, 0.0)
        if rate == 0.0 or self._random.random() >= rate:
            return False
        self.fired[fault] += 1
        return True

    def struck(self, fault: Fault) -> None:
        """Count a fault that the schedule brought about."""
        self.fired[fault] += 1

    def heal(self) -> None:
        """From now on nothing fails any more."""
        self._healed = True

    @property
    def healed(self) -> bool:
        """Return whether the world is healthy for good."""
        return self._healed


def draw(rng: random.Random) -> dict[Fault, float]:
    """Choose what a seed arms: mostly a few kinds, sometimes all; rates from rare to their highest."""
    share = rng.choice((0.0, 0.15, 0.3, 0.3, 0.5, 0.5, 0.8, 1.0))
    armed: dict[Fault, float] = {}
    for fault in Fault:
        if rng.random() >= share:
            continue
        if fault in PER_RUN:
            armed[fault] = float(rng.randint(1, PER_RUN[fault]))
        else:
            highest = PER_CALL[fault] if fault in PER_CALL else PER_PROCESS[fault]
            armed[fault] = highest * rng.choice((0.1, 0.3, 1.0))
    return armed
