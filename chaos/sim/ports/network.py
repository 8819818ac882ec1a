"""The data plane of the simulated world: ordered channels with delay, which may break.

It keeps the promises of runtime/processes/exchange.py: one connection per channel and generation, frames
in order or not at all, connections of another generation refused, frames for a peer that is not
deployed yet held until it is.

Source: DESIGN section 3 (data plane); PROTOCOL P2; research F15.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from holdfast.chaos.sim.faults import points
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.ports.ends import WorkerEnd
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.model import Barrier, ChannelId, Generation, JobUuid, Watermark
from holdfast.runtime.wire.channels import Frame, Links, OpenLinks

Address = tuple[str, int]


@dataclass(frozen=True)
class ChannelHello:
    """Identifies the channel and generation of a connection."""

    job_uuid: JobUuid
    generation: Generation
    channel: ChannelId


def belongs(hello: ChannelHello, request: OpenLinks) -> bool:
    """Return whether a connection is one of those that were opened (P2)."""
    return hello.job_uuid == request.job_uuid and hello.generation == request.generation


class Networked(Surroundings, Protocol):
    """The world, as a channel sees it."""

    @property
    def endpoints(self) -> dict[Address, Endpoint]: ...


class Endpoint:
    """The Network port of one worker, which accepts its data connections."""

    def __init__(self, world: Networked, process: WorkerEnd) -> None:
        self._world, self._process = world, process
        self.links: ProcessLinks | None = None
        self._early: list[tuple[ChannelConnection, Frame]] = []

    def open(self, request: OpenLinks) -> Links:
        """Open the channels of a generation."""
        self.links = ProcessLinks(self._world, self._process, request)
        early, self._early = self._early, []
        for connection, frame in early:
            self.arrive(connection, frame)
        return self.links

    def process_ended(self) -> None:
        """The connections end with the process; peers usually notice."""
        if self.links is not None:
            self.links.close()

    def arrive(self, connection: ChannelConnection, frame: Frame) -> None:
        """Take a frame from the wire."""
        links, hello = self.links, connection.hello
        if not self._process.alive:
            connection.break_off(sender_learns=True, receiver_learns=False)
        elif links is not None and not links.closed and belongs(hello, links.request):
            connection.receiver = links
            links.queues[hello.channel].append((connection, frame))
            self._process.wake(0.0)
        elif links is None or hello.generation > links.request.generation:
            self._early.append((connection, frame))
        else:
            connection.break_off(sender_learns=True, receiver_learns=False)


class ChannelConnection:
    """One channel on the wire, from its sender's side."""

    def __init__(self, world: Networked, sender: ProcessLinks, hello: ChannelHello, address: Address) -> None:
        self._world, self._sender, self.hello = world, sender, hello
        self._address = address
        self.receiver: ProcessLinks | None = None
        self.broken = False
        """No frame passes any longer."""
        self.shut = False
        """The sender closed its end; earlier frames still arrive."""
        self.unread = 0
        self._last = 0.0

    def send(self, frame: Frame) -> None:
        """Put a frame on the wire."""
        faults = self._world.faults
        if self.broken or self.shut:
            return
        self.unread += 1

        def at() -> tuple[Point, ...]:
            ends = (self._sender, self.receiver)
            return points.of_frame(frame, any(end is not None and end.aligning for end in ends))

        if faults.strikes(Fault.CHANNEL_BROKEN, at):
            self.break_off(sender_learns=True, receiver_learns=True)
            return
        if faults.strikes(Fault.CHANNEL_HALF_BROKEN, at):
            sender_learns = self._world.random.random() < 0.5
            self.break_off(sender_learns, not sender_learns)
            return
        delay = self._world.random.uniform(0.0002, 0.003)
        if faults.strikes(Fault.FRAME_DELAYED, at):
            delay += self._world.random.choice((0.02, 0.3, 0.7, 1.5))
        self._last = max(self._last, self._world.schedule.now + delay)
        self._world.schedule.at(self._last, None, "", lambda: self._arrive(frame))

    def _arrive(self, frame: Frame) -> None:
        if not self.broken:
            self._world.endpoints[self._address].arrive(self, frame)

    def close(self) -> None:
        """The sender's end closes: the receiver usually sees that after the frames in flight."""
        self.shut = True
        if self._world.random.random() < 0.8:
            due = max(self._last, self._world.schedule.now) + self._world.random.choice((0.001, 0.3))
            self._world.schedule.at(due, None, "", lambda: self.break_off(sender_learns=False, receiver_learns=True))

    def break_off(self, sender_learns: bool, receiver_learns: bool) -> None:
        """No frame passes any longer; the ends that notice do so now or later.

        A receiver that is not deployed yet has no end to notice it with; then the sender does.
        """
        if self.broken:
            return
        self.broken = True
        receiver = self.receiver or self._world.endpoints[self._address].links
        if receiver_learns and receiver is not None and belongs(self.hello, receiver.request):
            self._tell(receiver)
        elif receiver_learns:
            sender_learns = True
        if sender_learns:
            self._tell(self._sender)

    def _tell(self, links: ProcessLinks) -> None:
        delay = self._world.random.choice((0.001, 0.001, 0.3, 2.0))
        what = f"learns that {_shown(self.hello)} broke"
        self._world.schedule.after(delay, links.process, what, lambda: links.report(self.hello))


class ProcessLinks:
    """All channels of one subtask in one generation."""

    def __init__(self, world: Networked, process: WorkerEnd, request: OpenLinks) -> None:
        self._world, self.process, self.request = world, process, request
        self.closed = False
        own = request.subtask
        self.queues: dict[ChannelId, deque[tuple[ChannelConnection | None, Frame]]] = {
            c: deque() for c in request.inputs
        }
        self._brought: dict[ChannelId, int] = {}
        """The last barrier delivered by each channel."""
        self._out = {c: self._connect(c) for c in request.outputs if c.receiver != own}

    def take(self, channel: ChannelId) -> Frame | None:
        """See Links.take."""
        queue = self.queues[channel]
        if not queue:
            return None
        connection, frame = queue.popleft()
        if connection is not None:
            connection.unread -= 1
        if isinstance(frame, Barrier):
            self._brought[channel] = frame.epoch
        return frame

    @property
    def aligning(self) -> bool:
        """Return whether one channel of an edge has delivered a barrier that another has not."""
        last = {(channel.edge, self._brought.get(channel, 0)) for channel in self.queues}
        return len(last) > len({edge for edge, _ in last})

    def room(self, channel: ChannelId) -> bool:
        """See Links.room."""
        limit = self._world.scenario.channel_frames_max
        if channel in self._out:
            return self._out[channel].broken or self._out[channel].unread < limit
        return len(self.queues[channel]) < limit

    def put(self, channel: ChannelId, frame: Frame) -> None:
        """See Links.put."""
        self.process.call(lambda: self._put(channel, frame), lambda: points.of_frame(frame, self.aligning))

    def close(self) -> None:
        """See Links.close."""
        self.closed = True
        for connection in self._out.values():
            connection.close()
        incoming = {c for queue in self.queues.values() for c, _ in queue if c is not None}
        for connection in sorted(incoming, key=lambda c: c.hello.channel):
            connection.break_off(sender_learns=True, receiver_learns=False)
        self.queues = {channel: deque() for channel in self.queues}

    def report(self, hello: ChannelHello) -> None:
        """Report a broken channel to the loop, unless this end closed it."""
        if not self.closed:
            self.request.broken(self.request.generation, hello.channel, "the connection broke", False)
            self.process.wake(0.0)

    def _put(self, channel: ChannelId, frame: Frame) -> None:
        if isinstance(frame, Watermark):
            named = f"{channel.edge}: {channel.sender}->{channel.receiver}"
            self._world.checks.told_time((self.request.generation, named), frame.at_us)
        if channel in self._out:
            self._out[channel].send(frame)
        else:
            self.queues[channel].append((None, frame))

    def _connect(self, channel: ChannelId) -> ChannelConnection:
        hello = ChannelHello(self.request.job_uuid, self.request.generation, channel)
        return ChannelConnection(self._world, self, hello, self.request.addresses[channel.receiver])


def _shown(hello: ChannelHello) -> str:
    channel = hello.channel
    return f"channel {channel.edge}: {channel.sender}->{channel.receiver} of generation {hello.generation}"
