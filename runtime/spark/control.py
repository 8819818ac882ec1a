"""The control stream between driver and worker: one authenticated connection each, typed messages.

Invariants
    - A worker speaks to the driver on one stream, and its end is the end of the worker.
    - Messages are decoded only after the peer has proved that it knows the run's secret.

Source: DESIGN section 3 (control plane).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from holdfast.model import WorkerId
from holdfast.runtime import messages as m
from holdfast.runtime.spark.door import serve_each
from holdfast.runtime.spark.tls import Credentials
from holdfast.runtime.spark.wire import Stream, StreamClosed, close_listener, connect, listen

_MESSAGE = 3
UNSENT_MAX_S = 5.0
_log = logging.getLogger("holdfast.control")


class ControlServer:
    """The driver's end: takes the streams of all workers."""

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
        self._streams: dict[WorkerId, Stream] = {}
        self._refusals = serve_each(self._listener, "control", credentials, self._serve)

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """Send to the worker; a closed stream is reported by its reader."""
        stream = self._streams.get(worker)
        if stream is None:
            return
        try:
            stream.send(_MESSAGE, msgspec.msgpack.encode(message))
        except StreamClosed as error:
            _log.info("a message to worker %s was not sent: %s", worker, error)

    def dismiss(self, worker: WorkerId) -> None:
        """Close the worker's stream and hear it no more."""
        stream = self._streams.pop(worker, None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Close everything."""
        close_listener(self._listener)
        for worker in list(self._streams):
            self.dismiss(worker)

    def _serve(self, stream: Stream, hello: bytes) -> None:
        try:
            register = m.REGISTER.decode(hello)
        except msgspec.DecodeError as error:
            self._refusals.add(str(error))
            stream.close()
            return
        # A stopped process must not block the driver: a full send buffer counts as a closed stream.
        stream.give_up_after(UNSENT_MAX_S)
        self._streams[register.worker] = stream
        self._received(register)
        try:
            while True:
                _, data = stream.receive()
                self._received(m.FROM_WORKER.decode(data))
        except (StreamClosed, msgspec.DecodeError) as error:
            stream.close()
            if self._streams.get(register.worker) is stream:
                who = f"worker {register.worker} (pid {register.pid})"
                self._closed(register.worker, f"{who} closed its stream: {error}")


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
        """Begin to hand over messages."""
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def send(self, message: m.FromWorker) -> None:
        """Send to the driver; a closed stream is reported by its reader."""
        with self._sending:
            try:
                self._stream.send(_MESSAGE, msgspec.msgpack.encode(message))
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
