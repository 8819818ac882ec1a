"""The data plane between workers: one TCP connection per channel.

Receiver threads fill the input queues and stop reading when one is full, so that a slow reader slows
only its sender. Sender threads empty the output queues: the operator thread never sends. Channels from
a subtask to itself are plain queues.

Invariants
    - A connection serves one channel of one generation of one job; others are refused (P2).
    - All connections of a generation close together, before those of the next one are used.
    - A broken connection is reported once per channel, unless this end closed it.
    - A connection whose packets are lost breaks too, at one end at least: see PeerStream.end_when_silent_for.

Source: DESIGN section 3 (data plane).
"""

from __future__ import annotations

import logging
import threading

import msgspec
import pyarrow as pa

from holdfast.errors import Unavailable
from holdfast.model import Barrier, ChannelId, Generation, JobUuid, Watermark
from holdfast.runtime.processes.door import serve_each
from holdfast.runtime.processes.streams import (
    SILENT_AFTER_S,
    PeerStream,
    StreamClosed,
    close_listener,
    connect,
    is_silence,
    listen,
)
from holdfast.runtime.processes.tls import Credentials
from holdfast.runtime.wire.channels import CHANNEL_BYTES_MAX, Frame, FrameQueue, Links, OpenLinks, parts_of
from holdfast.runtime.wire.mailbox import Mailbox

_BATCH, _BARRIER, _WATERMARK = 1, 2, 3
_log = logging.getLogger("holdfast.exchange")


class Hello(msgspec.Struct, frozen=True):
    """The channel that a data connection serves."""

    job_uuid: JobUuid
    generation: Generation
    channel: ChannelId


_HELLO = msgspec.msgpack.Decoder(Hello)
_BARRIER_OF, _WATERMARK_OF = msgspec.msgpack.Decoder(Barrier), msgspec.msgpack.Decoder(Watermark)


class TcpNetwork:
    """Accepts this worker's data connections and opens those to its peers."""

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        mailbox: Mailbox,
        channel_bytes_max: int = CHANNEL_BYTES_MAX,
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        self._credentials, self._mailbox = credentials, mailbox
        self._channel_bytes_max, self._silent_after_s = channel_bytes_max, silent_after_s
        self._listener = listen(host)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._lock = threading.Lock()
        self._waiting: dict[Hello, PeerStream] = {}
        self._links: _TcpLinks | None = None
        self._refusals = serve_each(self._listener, "data", credentials, self._greet)

    def open(self, request: OpenLinks) -> Links:
        """Open the channels of a generation; connections complete in the background."""
        limits = self._channel_bytes_max, self._silent_after_s
        links = _TcpLinks(request, self._credentials, self._mailbox, *limits)
        with self._lock:
            self._links = links
            for hello, stream in list(self._waiting.items()):
                del self._waiting[hello]
                self._place(hello, stream)
        links.connect()
        return links

    def close(self) -> None:
        """Stop accepting connections, and close those that no generation has claimed."""
        close_listener(self._listener)
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for stream in waiting:
            stream.close()

    def _greet(self, stream: PeerStream, greeting: bytes) -> None:
        try:
            hello = _HELLO.decode(greeting)
        except msgspec.DecodeError as error:
            self._refusals.add(str(error))
            stream.close()
            return
        with self._lock:
            self._place(hello, stream)

    def _place(self, hello: Hello, stream: PeerStream) -> None:
        links = self._links
        if links is not None and links.wants(hello):
            links.attach(hello.channel, stream)
        elif links is None or hello.generation > links.request.generation:
            if (before := self._waiting.pop(hello, None)) is not None:
                before.close()  # the peer has connected again
            self._waiting[hello] = stream  # the peer was deployed first
        else:
            stream.close()


class _TcpLinks:
    def __init__(
        self, request: OpenLinks, credentials: Credentials, mailbox: Mailbox, bytes_max: int, silent_after_s: float
    ) -> None:
        self.request, self._silent_after_s = request, silent_after_s
        self._credentials, self._mailbox, self._wake = credentials, mailbox, mailbox.wake
        self._closed = False
        own = request.subtask
        self._local = {c: FrameQueue(bytes_max) for c in request.outputs if c.receiver == own}
        self._in = {c: _Bounded(bytes_max) for c in request.inputs if c.sender != own}
        self._out = {c: _Bounded(bytes_max) for c in request.outputs if c.receiver != own}
        self._streams: list[PeerStream] = []
        self._lock = threading.Lock()

    def wants(self, hello: Hello) -> bool:
        same = hello.job_uuid == self.request.job_uuid and hello.generation == self.request.generation
        return same and hello.channel in self._in

    def attach(self, channel: ChannelId, stream: PeerStream) -> None:
        if self._keep(stream):
            name = f"receive-{channel.edge}-{channel.sender}"
            threading.Thread(target=self._receive, args=(channel, stream), name=name, daemon=True).start()

    def connect(self) -> None:
        for channel in self._out:
            name = f"send-{channel.edge}-{channel.receiver}"
            threading.Thread(target=self._send, args=(channel,), name=name, daemon=True).start()

    def take(self, channel: ChannelId) -> Frame | None:
        if channel in self._local:
            return self._local[channel].take()
        return self._in[channel].take()

    def room(self, channel: ChannelId) -> bool:
        return self._local[channel].room() if channel in self._local else self._out[channel].room()

    def put(self, channel: ChannelId, frame: Frame) -> None:
        if channel in self._local:
            self._local[channel].put(frame)
        elif isinstance(frame, Barrier | Watermark):
            self._out[channel].put(frame)
        else:
            for part in parts_of(frame):
                self._out[channel].put(part)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.close()
        for bounded in (*self._in.values(), *self._out.values()):
            bounded.close()

    def _keep(self, stream: PeerStream) -> bool:
        with self._lock:
            if not self._closed:
                stream.end_when_silent_for(self._silent_after_s)
                self._streams.append(stream)
                return True
        stream.close()
        return False

    def _receive(self, channel: ChannelId, stream: PeerStream) -> None:
        queue, schema = self._in[channel], self.request.schemas[channel.edge]
        try:
            while queue.wait_for_room():
                kind, data = stream.receive()
                if kind == _BATCH:
                    queue.put(pa.ipc.read_record_batch(pa.py_buffer(data), schema))
                elif kind == _BARRIER:
                    queue.put(_BARRIER_OF.decode(data))
                else:
                    queue.put(_WATERMARK_OF.decode(data))
                self._wake()
        except Exception as error:  # noqa: BLE001 - whatever ends this thread, the channel is broken
            self._report(channel, error)

    def _send(self, channel: ChannelId) -> None:
        request, queue = self.request, self._out[channel]
        hello = msgspec.msgpack.encode(Hello(request.job_uuid, request.generation, channel))
        try:
            stream = connect(request.addresses[channel.receiver], self._credentials, hello, self._silent_after_s)
            if not self._keep(stream):
                return
            while (frame := queue.wait_and_take()) is not None:
                if isinstance(frame, Barrier):
                    stream.send(_BARRIER, msgspec.msgpack.encode(frame))
                elif isinstance(frame, Watermark):
                    stream.send(_WATERMARK, msgspec.msgpack.encode(frame))
                else:
                    stream.send(_BATCH, memoryview(frame.serialize()))
                self._wake()
        except Exception as error:  # noqa: BLE001 - whatever ends this thread, the channel is broken
            self._report(channel, error)

    def _report(self, channel: ChannelId, error: Exception) -> None:
        """Report to the loop, on its own thread, because it owns the state involved."""
        if self._closed:
            return
        if isinstance(error, Unavailable):
            why = error.what
        else:
            why = str(error) if isinstance(error, StreamClosed) else f"{type(error).__name__}: {error}"
        _log.info("channel %s broke: %s", channel, why)
        silent = is_silence(error)
        self._mailbox.post(lambda: self.request.broken(self.request.generation, channel, why, silent))


class _Bounded(FrameQueue):
    """A queue whose other end is a thread that can wait."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self._changed = threading.Condition()
        self._closed = False
        self._full = False

    def put(self, frame: Frame) -> None:
        with self._changed:
            super().put(frame)
            self._changed.notify()

    def take(self) -> Frame | None:
        frame = super().take()
        # Read after the take: the waiter sets it before it checks the room, so one of the two sees the other.
        if self._full:
            with self._changed:
                self._changed.notify()
        return frame

    def wait_for_room(self) -> bool:
        """Wait until there is room; False once closed."""
        with self._changed:
            self._full = True
            self._changed.wait_for(lambda: self._closed or self.room())
            self._full = False
        return not self._closed

    def wait_and_take(self) -> Frame | None:
        """Wait for a frame; None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self) > 0)
        return None if self._closed else super().take()

    def close(self) -> None:
        """Release all waiting threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
