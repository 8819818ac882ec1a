"""Accept connections; authenticate and serve each in its own thread.

A peer that has not authenticated may be anything that reaches the port, so its resources are limited: a number of
places, a time, and no log line per connection.

Invariants
    - At most PENDING_MAX handshakes are in progress; when all places are taken, the next connection
      replaces the oldest one that has had GIVES_WAY_AFTER_S.
    - Authenticated streams take no place.
    - Connections are accepted until the listener is closed.

Source: DESIGN section 3 (control and data plane).
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable

from holdfast.runtime.processes.streams import PeerStream, StreamClosed, accept
from holdfast.runtime.processes.tls import Credentials

PENDING_MAX = 128
GIVES_WAY_AFTER_S = 1.0
"""A handshake takes milliseconds; the grace keeps a busy host from displacing its own handshakes."""
QUIET_S = 60.0
"""Minimum time between two log lines about refusals."""
ACCEPT_PAUSE_S = 0.2
"""How long to wait after a connection could not be accepted: a file descriptor or thread takes time to become free."""
_CLOSED = (errno.EINVAL, errno.EBADF)
"""Errors of `accept` on a listener that was shut down or closed."""
Serve = Callable[[PeerStream, bytes], None]
_log = logging.getLogger("holdfast.wire")


class RefusalLog:
    """Logs refused connections: the first, then one line a minute with their number. Any thread may add."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._clock = name, clock
        self._lock = threading.Lock()
        self._quiet_until: float | None = None
        self._unlogged = 0

    def add(self, why: str) -> None:
        """Record a refused connection."""
        with self._lock:
            now = self._clock()
            if self._quiet_until is not None and now < self._quiet_until:
                self._unlogged += 1
                return
            more = f"; {self._unlogged} more since the last message" if self._unlogged else ""
            self._quiet_until, self._unlogged = now + QUIET_S, 0
        _log.warning("a %s connection was refused: %s%s", self._name, why, more)


def serve_each(listener: socket.socket, name: str, credentials: Credentials, serve: Serve) -> RefusalLog:
    """Serve every peer that authenticates, in its own thread, until the listener is closed; return immediately.

    Returns:
        Where `serve` reports a peer whose hello it refuses.
    """
    door = _Door(listener, name, credentials, serve)
    threading.Thread(target=door.accept_all, name=f"{name}-accept", daemon=True).start()
    return door.refusals


class _Door:
    def __init__(self, listener: socket.socket, name: str, credentials: Credentials, serve: Serve) -> None:
        self._listener, self._name, self._credentials, self._serve = listener, name, credentials, serve
        self.refusals = RefusalLog(name)
        self._changed = threading.Condition()
        self._pending: dict[socket.socket, float] = {}
        """The time at which each was accepted, oldest first."""

    def accept_all(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno in _CLOSED:
                    return
                # Out of file descriptors or memory, or the peer has left. No other thread accepts: continue.
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
    """Interrupt the thread that waits on this connection; that thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the peer has already left
