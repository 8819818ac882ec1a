"""The control stream between driver and worker: one authenticated connection each, typed messages.

A companion process reports for its worker on its own stream. When the worker's stream ends, the driver waits a moment
for the end of the companion's stream: the companion sees the process end and knows its last call.

Invariants
    - A worker has one stream to the driver; the end of the stream is the end of the worker.
    - A companion is accepted only while its worker has a stream, and sends only `Vitals`.
    - Messages are decoded only after the peer has proved that it knows the run's secret.

Source: DESIGN section 3 (control plane).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.model import WorkerId
from holdfast.runtime.processes.door import serve_each
from holdfast.runtime.processes.streams import MESSAGE, PeerStream, StreamClosed, close_listener, connect, listen
from holdfast.runtime.processes.tls import Credentials
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.vitals import At

UNSENT_MAX_S = 5.0
LAST_WORDS_S = 0.3
"""How long the end of a worker is held back for its companion's report, which takes milliseconds."""
COMING_S = 1.0
"""How long instead, if the worker has only just started and its companion has not connected."""
YOUNG_S = 2.0
_log = logging.getLogger("holdfast.control")


class _Report(msgspec.Struct, frozen=True):
    """Report of a companion; see messages.Vitals."""

    state: Literal["held", "hung", "ended", "lost"]
    mark: str | None
    for_ms: int
    memory: bool
    at: At | None = None


_REPORT = msgspec.json.Decoder(_Report)


class ControlServer:
    """The driver's end: accepts the streams of all workers and their companions."""

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        received: Callable[[m.FromWorker], None],
        closed: Callable[[WorkerId, str], None],
    ) -> None:
        self._received, self._closed = received, closed
        self._listener = listen(host)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._streams: dict[WorkerId, PeerStream] = {}
        self._companions: dict[WorkerId, PeerStream | None] = {}
        """None for a companion that has ended."""
        self._changed = threading.Condition()
        """Guards both and signals their changes."""
        self._refusals = serve_each(self._listener, "control", credentials, self._serve)

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """Send to the worker; a closed stream is reported by its reader."""
        stream = self._streams.get(worker)
        if stream is None:
            return
        try:
            stream.send(MESSAGE, msgspec.msgpack.encode(message))
        except StreamClosed as error:
            _log.info("a message to worker %s was not sent: %s", worker, error)

    def dismiss(self, worker: WorkerId) -> None:
        """Close the streams of the worker and its companion."""
        with self._changed:
            streams = self._streams.pop(worker, None), self._companions.pop(worker, None)
            self._changed.notify_all()
        for stream in streams:
            if stream is not None:
                stream.close()

    def close(self) -> None:
        """Close everything."""
        close_listener(self._listener)
        for worker in list(self._streams):
            self.dismiss(worker)

    def _serve(self, stream: PeerStream, hello: bytes) -> None:
        try:
            who = m.HELLO.decode(hello)
        except msgspec.DecodeError as error:
            self._refusals.add(str(error))
            stream.close()
            return
        if isinstance(who, m.Companion):
            self._serve_companion(stream, who.worker)
        else:
            self._serve_worker(stream, who)

    def _serve_worker(self, stream: PeerStream, register: m.Register) -> None:
        # A stopped process must not block the driver: a full send buffer counts as a closed stream.
        stream.give_up_after(UNSENT_MAX_S)
        with self._changed:
            self._streams[register.worker] = stream
        began = time.monotonic()
        self._received(register)
        try:
            while True:
                _, data = stream.receive()
                self._received(m.FROM_WORKER.decode(data))
        except (StreamClosed, msgspec.DecodeError) as error:
            stream.close()
            self._wait_for_last_words(register.worker, began)
            if self._streams.get(register.worker) is stream:
                who = f"worker {register.worker} (pid {register.pid} on {register.host})"
                self._closed(register.worker, f"{who} closed its stream: {error}")

    def _serve_companion(self, stream: PeerStream, worker: WorkerId) -> None:
        with self._changed:
            has_stream = worker in self._streams
            if has_stream:
                self._companions[worker] = stream
                self._changed.notify_all()
        try:
            while has_stream:
                _, data = stream.receive()
                report = _REPORT.decode(data)
                self._received(m.Vitals(worker, report.state, report.mark, report.for_ms, report.memory, report.at))
        except (StreamClosed, msgspec.DecodeError) as error:
            _log.info("the companion of worker %s closed its stream: %s", worker, error)
        stream.close()
        with self._changed:
            if self._companions.get(worker) is stream:
                self._companions[worker] = None
            self._changed.notify_all()

    def _wait_for_last_words(self, worker: WorkerId, began: float) -> None:
        """Wait until the worker's companion closes its stream, which it does after it has reported the worker's end."""
        coming_s = COMING_S if time.monotonic() - began < YOUNG_S else 0.0
        with self._changed:
            self._changed.wait_for(lambda: worker in self._companions or worker not in self._streams, coming_s)
            self._changed.wait_for(lambda: self._companions.get(worker) is None, LAST_WORDS_S)


class ControlClient:
    """A worker's end."""

    def __init__(
        self,
        address: tuple[str, int],
        credentials: Credentials,
        register: m.Register,
        received: Callable[[m.FromDriver], None],
        closed: Callable[[str], None],
    ) -> None:
        self._received, self._closed = received, closed
        self._stream = connect(address, credentials, msgspec.msgpack.encode(register))
        self._sending = threading.Lock()

    def start(self) -> None:
        """Start to deliver messages."""
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def send(self, message: m.FromWorker) -> None:
        """Send to the driver; a closed stream is reported by its reader."""
        with self._sending:
            try:
                self._stream.send(MESSAGE, msgspec.msgpack.encode(message))
            except StreamClosed as error:
                _log.info("a message to the driver was not sent: %s", error)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def _listen(self) -> None:
        try:
            while True:
                _, data = self._stream.receive()
                self._received(m.FROM_DRIVER.decode(data))
        except (StreamClosed, msgspec.DecodeError) as error:
            self._closed(str(error))
