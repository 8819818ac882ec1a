"""Takes connections: authenticates each in a thread of its own, and serves it from there.

What has not authenticated yet may be anything that reaches the port, so it gets little: a number of places, a time,
and no line in the log for each.

Invariants
    - At most PENDING_MAX handshakes are under way; when all places are taken, one that has had
      GIVES_WAY_AFTER_S gives way to the next connection, the oldest first.
    - Streams that are served take no place.
    - Taking connections goes on until the listener is closed.

Source: DESIGN section 3 (control and data plane).
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable

from holdfast.runtime.spark.tls import Credentials
from holdfast.runtime.spark.wire import Stream, StreamClosed, accept

PENDING_MAX = 128
GIVES_WAY_AFTER_S = 1.0
"""A handshake takes milliseconds; one of a busy host is not to be given up for the next one from there."""
QUIET_S = 60.0
"""Refusals are logged at most so often."""
ACCEPT_PAUSE_S = 0.2
"""How long to wait after a connection could not be taken: a missing file descriptor or thread takes time to return."""
_CLOSED = (errno.EINVAL, errno.EBADF)
"""What `accept` fails with on a listener that was shut down, or closed."""
Serve = Callable[[Stream, bytes], None]
_log = logging.getLogger("holdfast.wire")


class Refusals:
    """Logs refused connections: the first, then one line a minute with how many there were. Any thread may add."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._lock = threading.Lock()
        self._quiet_until: float | None = None
        self._unlogged = 0

    def add(self, why: str) -> None:
        """A connection was refused."""
        with self._lock:
            now = self._clock()
            if self._quiet_until is not None and now < self._quiet_until:
                self._unlogged += 1
                return
            more = f"; {self._unlogged} more since the last message" if self._unlogged else ""
            self._quiet_until, self._unlogged = now + QUIET_S, 0
        _log.warning("a %s connection was refused: %s%s", self._name, why, more)


def serve_each(listener: socket.socket, name: str, credentials: Credentials, serve: Serve) -> Refusals:
    """Serve every peer that authenticates in a thread of its own until the listener is closed; does not wait.

    Returns:
        Where `serve` reports a peer whose hello it does not take.
    """
    door = _Door(listener, name, credentials, serve)
    threading.Thread(target=door.accept_all, name=f"{name}-accept", daemon=True).start()
    return door.refusals


class _Door:
    def __init__(self, listener: socket.socket, name: str, credentials: Credentials, serve: Serve) -> None:
        self._listener, self._name, self._credentials, self._serve = listener, name, credentials, serve
        self.refusals = Refusals(name)
        self._changed = threading.Condition()
        self._pending: dict[socket.socket, float] = {}
        """With the time at which each was taken; the oldest comes first."""

    def accept_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _CLOSED:
                    return
                # Out of file descriptors or memory, or the peer has left: no other thread takes connections.
                self.refusals.add(str(error))
                time.sleep(ACCEPT_PAUSE_S)
                continue
            self._take_place(connection)
            try:
                threading.Thread(target=self._greet, args=(connection,), name=self._name, daemon=True).start()
            except RuntimeError as error:  # no more threads
                self.refusals.add(str(error))
                self._leave_place(connection)
                connection.close()
                time.sleep(ACCEPT_PAUSE_S)

    def _greet(self, connection: socket.socket) -> None:
        try:
            stream, hello = accept(connection, self._credentials)
        except StreamClosed as error:
            self.refusals.add(str(error))
            return
        finally:
            self._leave_place(connection)
        self._serve(stream, hello)

    def _take_place(self, connection: socket.socket) -> None:
        with self._changed:
            while len(self._pending) >= PENDING_MAX:
                oldest, since = next(iter(self._pending.items()))
                left = since + GIVES_WAY_AFTER_S - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                    continue
                del self._pending[oldest]
                _shut(oldest)
            self._pending[connection] = time.monotonic()

    def _leave_place(self, connection: socket.socket) -> None:
        with self._changed:
            self._pending.pop(connection, None)
            self._changed.notify()


def _shut(connection: socket.socket) -> None:
    """End what the thread of this connection waits for; that thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the peer has left already
