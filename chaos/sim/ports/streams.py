"""The control stream between one worker and its driver, with its faults.

Like a TCP connection it keeps the order of each direction. But messages may be lost, repeated or
late; the stream may break, noticed by both ends or only by one; and it may fall silent for a while.

Invariants
    - Messages pass through their wire form.
    - The first message, the registration, opens the stream.

Source: DESIGN section 3 (control plane); PROTOCOL P2, P9; research F15, F16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.chaos.sim.faults import points
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.ends import DriverEnd, WorkerEnd
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.runtime.wire import messages as m

_UP = msgspec.msgpack.Decoder(m.FromWorker)
_DOWN = msgspec.msgpack.Decoder(m.FromDriver)
_ENCODER = msgspec.msgpack.Encoder()


class ControlStream:
    """One worker's stream."""

    def __init__(self, world: Surroundings, worker: WorkerEnd, driver: DriverEnd) -> None:
        self._world, self._worker, self._driver = world, worker, driver
        self.open, self.silent, self._dismissed = True, False, False
        self.ack_unheard = self.deploying = False
        """An ack was sent, or a subtask assigned, that the driver has not received yet."""
        self._last = {True: 0.0, False: 0.0}

    def register(self, message: m.Register) -> None:
        """Open the stream."""
        self._arrive(True, message, self._delay(message))

    def to_driver(self, message: m.FromWorker) -> None:
        """Send to the driver."""
        self._send(True, message)

    def to_worker(self, message: m.FromDriver) -> None:
        """Send to the worker."""
        self._send(False, message)

    def dismiss(self) -> None:
        """The driver closes its end and receives nothing more."""
        self._dismissed = True
        if self.open:
            self.open = False
            self._tell_worker("the driver closed the stream")

    def hang_up(self, why: str) -> None:
        """The worker's end closes, because the worker closed it or its process ended."""
        if self.open:
            self.open = False
            self._tell_driver(why)

    def driver_ended(self) -> None:
        """The driver's process has ended; the worker may notice, or only miss its pulse."""
        if self.open:
            self.open = False
            if self._world.random.random() < 0.7:
                self._tell_worker("the driver has ended")

    def _send(self, up: bool, message: Any) -> None:
        faults = self._world.faults
        if not self.open:
            return
        self._note_sent(message)
        at = partial(points.of_message, message)
        if faults.strikes(Fault.STREAM_BROKEN, at):
            self._break()
        elif self.silent or faults.strikes(Fault.MESSAGE_LOST, at):
            if not isinstance(message, m.Pulse):
                self._world.schedule.journal.say(self._sender(up), f"LOST {shown(message)}")
        else:
            delay = self._delay(message)
            self._arrive(up, message, delay)
            if faults.strikes(Fault.MESSAGE_REPEATED, at):
                self._arrive(up, message, delay + self._world.random.choice((0.0, 0.05, 1.0)))

    def _arrive(self, up: bool, message: Any, delay: float) -> None:
        data = _ENCODER.encode(message)
        self._last[up] = max(self._last[up], self._world.schedule.now + delay)
        what = "" if isinstance(message, m.Pulse | m.Heartbeat) else f"hears {shown(message)} of {self._sender(up)}"
        if up:
            self._world.schedule.at(self._last[up], self._driver, what, lambda: self._heard_by_driver(data))
        else:
            worker = self._worker
            self._world.schedule.at(self._last[up], worker, what, lambda: worker.received(_DOWN.decode(data)))

    def _heard_by_driver(self, data: bytes) -> None:
        if not self._dismissed:
            message = _UP.decode(data)
            if isinstance(message, m.Ack):
                self.ack_unheard = False
            elif isinstance(message, m.Ready):
                self.deploying = False
            self._driver.received(message)

    def _note_sent(self, message: Any) -> None:
        if isinstance(message, m.Ack):
            self.ack_unheard = True
        elif isinstance(message, m.Deploy):
            self.deploying, self.ack_unheard = True, False

    def _break(self) -> None:
        self.open = False
        ends: tuple[Callable[[str], None], ...] = (self._tell_driver, self._tell_worker)
        learning = self._world.random.choice((ends, ends, ends[:1], ends[1:]))
        for tell in learning:
            tell("the stream broke")

    def _tell_worker(self, why: str) -> None:
        if not self.silent:
            self._later(False, self._worker, lambda: self._worker.stream_closed(why))

    def _tell_driver(self, why: str) -> None:
        if not self.silent:
            self._later(True, self._driver, lambda: self._close_heard(why))

    def _close_heard(self, why: str) -> None:
        if not self._dismissed:
            self._driver.stream_closed(self._worker, why)

    def _later(self, up: bool, owner: Process, tell: Callable[[], None]) -> None:
        self._last[up] = max(self._last[up], self._world.schedule.now + self._delay(None))
        self._world.schedule.at(self._last[up], owner, "", tell)

    def _delay(self, message: Any) -> float:
        base = self._world.random.uniform(0.0005, 0.005)
        if self._world.faults.strikes(Fault.MESSAGE_DELAYED, partial(points.of_message, message)):
            base += self._world.random.choice((0.02, 0.02, 0.1, 0.1, 0.5, 2.0))
        return base

    def _sender(self, up: bool) -> str:
        return self._worker.name if up else self._driver.name


def shown(message: Any) -> str:
    """Return a message in a few words."""
    match message:
        case m.Deploy():
            return f"Deploy(generation {message.generation}, subtask {message.subtask}, base {message.base_epoch})"
        case m.Trigger(generation, barrier):
            last = ", last" if barrier.last else ""
            return f"Trigger({generation}: {barrier.epoch}, committed {barrier.committed_through}{last})"
        case m.Committed(generation, epoch):
            return f"Committed({generation}: {epoch})"
        case m.Ack():
            return f"Ack({message.generation}: {message.epoch}, subtask {message.part.subtask})"
        case m.Failed():
            return f"Failed({message.generation}: {message.error.what})"
        case m.Ready():
            return f"Ready({message.generation}: {message.how})"
        case _:
            return type(message).__name__
