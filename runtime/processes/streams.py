"""Authenticated, framed TCP streams between driver and workers.

Both ends prove that they know the run's secret before anything else is read, by an HMAC over fresh
nonces of both; the secret itself does not cross these streams (Spark brings it to the workers with
the task). Then either end sends frames: one byte of kind, eight of length, the bytes. With TLS (tls.py)
all bytes are encrypted, from the first one; without it, an attacker who can change packets is not stopped.

Invariants
    - Nothing from a peer that has not authenticated is decoded. Its input is limited in size, and in time by one
      deadline for the whole handshake, at either end.
    - No end sends a frame that the other would refuse.
    - `close` may be called by any thread and frees a thread that is blocked in send or receive.

Source: DESIGN section 3 (control and data plane).
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Sequence

from holdfast import children
from holdfast.errors import JobFailed, Unavailable
from holdfast.runtime.processes.tls import Credentials, TlsConnection, context_of

_HEADER = struct.Struct("<BQ")
MESSAGE, VITALS = 3, 4
"""Kinds of frames on control streams: messages of worker and driver in msgpack, those of a companion in JSON."""
NONCE_BYTES = 32
HELLO_BYTES_MAX = 4096
FRAME_BYTES_MAX = 1 << 30
"""A sender refuses a longer frame, because its receiver would close the stream."""
SILENT_AFTER_S = 11.0
"""See PeerStream.end_when_silent_for; data channels have the limit of the settings instead."""
HANDSHAKE_TIMEOUT_S = 5.0
"""For one attempt to connect, then for the handshake, TLS included, however the peer divides its bytes."""
PROBES = 3
"""Unanswered probes after which the system closes a connection that carries nothing."""
_SILENCE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN)
CONNECTIONS_WAITING_MAX = 1024
"""Connections queued in the kernel until they are accepted: at a start every worker connects to every other."""


class StreamClosed(Exception):
    """The peer has left, or this end closed the stream."""


class _Link:
    """A socket whose operations, while `until` is set, share that deadline, in however many pieces data arrives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.until: float | None = None

    def recv(self, size: int) -> bytes:
        self._limit()
        return self._socket.recv(size)

    def recv_into(self, view: memoryview) -> int:
        self._limit()
        return self._socket.recv_into(view)

    def sendall(self, data: bytes | memoryview) -> None:
        self._limit()
        self._socket.sendall(data)

    def _limit(self) -> None:
        if self.until is not None:
            left = self.until - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the handshake did not complete within {HANDSHAKE_TIMEOUT_S:g} s")
            self._socket.settimeout(left)


class PeerStream:
    """One authenticated connection. One thread sends, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        children.keep(connection)
        self._link = _Link(connection)
        self._bytes: _Link | TlsConnection = self._link
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose packets are dropped never ends the stream: probe it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.end_when_silent_for(SILENT_AFTER_S)

    def fileno(self) -> int:
        """Return the descriptor for `select`."""
        return self._socket.fileno()

    def hurry(self, until: float) -> None:
        """Set a deadline on the monotonic clock for all sends and receives until `settle`."""
        self._link.until = until

    def settle(self) -> None:
        """Remove the deadline: the handshake is complete."""
        self._link.until = None
        self._socket.settimeout(None)

    def end_when_silent_for(self, seconds: float) -> None:
        """Treat the stream as closed when the peer's system has answered nothing for this many seconds, at least four.

        The system probes a connection on which nothing arrives; that of the peer answers even if the process is stopped
        or does not read. Where this end waits for acknowledgements no probe is sent: then the other end notices.
        """
        every = max(1, round(seconds / (PROBES + 2)))
        first = max(1, round(seconds) - PROBES * every)
        for option, value in (
            (socket.TCP_KEEPIDLE, first),
            (socket.TCP_KEEPINTVL, every),
            (socket.TCP_KEEPCNT, PROBES),
        ):
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def give_up_after(self, seconds: float) -> None:
        """Treat the stream as closed when the peer has not acknowledged sent data for this long."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))

    def encrypt(self, credentials: Credentials, accepting: bool) -> None:
        """Send everything that follows through TLS, if these credentials have it. Raises StreamClosed."""
        if credentials.encrypted:
            tls = TlsConnection(self._link, context_of(credentials, accepting), accepting)
            try:
                tls.handshake()
            except OSError as error:
                raise StreamClosed(f"no TLS with this peer: {error}") from error
            self._bytes = tls

    def send_raw(self, data: bytes) -> None:
        """Send bytes without a frame, for the handshake. Raises StreamClosed."""
        try:
            self._bytes.sendall(data)
        except OSError as error:
            raise StreamClosed(str(error)) from error

    def send(self, kind: int, payload: bytes | memoryview) -> None:
        """Send one frame.

        Raises:
            StreamClosed: the peer has left, or this end closed the stream.
            JobFailed: the frame is longer than receivers accept; nothing of it was sent.
        """
        if len(payload) > FRAME_BYTES_MAX:
            raise JobFailed(
                f"a frame of {len(payload):,} bytes was to be sent to another process; the limit is "
                f"{FRAME_BYTES_MAX:,} bytes",
                not_done="nothing of it was sent; state and output stay as of the last checkpoint",
                next_step="make rows smaller, or raise --parallelism so that each worker has less to report",
            )
        header = _HEADER.pack(kind, len(payload))
        try:
            if len(payload) < 1 << 16:
                self._bytes.sendall(header + bytes(payload))
            else:
                self._bytes.sendall(header)
                self._bytes.sendall(payload)
        except OSError as error:
            raise StreamClosed(str(error)) from error

    def receive(self) -> tuple[int, bytearray]:
        """Return the next frame's kind and bytes. Raises StreamClosed."""
        kind, length = _HEADER.unpack(self._exactly(_HEADER.size))
        if length > FRAME_BYTES_MAX:
            raise StreamClosed(f"a frame of {length} bytes was announced; the limit is {FRAME_BYTES_MAX}")
        return kind, self._exactly(length)

    def close(self) -> None:
        """Close the stream; calls in progress in other threads end with StreamClosed."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # never connected, or the peer closed it first
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._bytes.recv_into(view)
            except OSError as error:
                raise StreamClosed(str(error)) from error
            if count == 0:
                raise StreamClosed("its process ended, or the network cut the connection")
            view = view[count:]
        return data


def is_silence(error: BaseException) -> bool:
    """Return whether a stream ended, or none came to be, because the other machine did not answer at all.

    A process that is stopped, or too slow to complete a handshake, is not silent: its system answers.
    """
    at: BaseException | None = error
    while at is not None and not isinstance(at, OSError):
        at = at.__cause__
    return at is not None and at.errno in _SILENCE


def listen(host: str) -> socket.socket:
    """Listen on a free port of this address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, 0))
    listener.listen(CONNECTIONS_WAITING_MAX)
    children.keep(listener)
    return listener


def close_listener(listener: socket.socket) -> None:
    """Stop listening, and free a thread that waits in `accept`, which closing alone does not do."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was no longer listening
    listener.close()


def connect(
    address: Sequence[str | int], credentials: Credentials, hello: bytes, silent_after_s: float = HANDSHAKE_TIMEOUT_S
) -> PeerStream:
    """Connect and authenticate both ends; `hello` announces the purpose of the stream to the peer.

    Args:
        silent_after_s: For how long to retry while the peer's system does not answer; one attempt is always complete.

    Raises:
        Unavailable: the peer does not answer, does not know the secret, or does not use TLS as this end does.
    """
    host, port = str(address[0]), int(address[1])
    stream = PeerStream(_connected(host, port, silent_after_s))
    stream.hurry(time.monotonic() + HANDSHAKE_TIMEOUT_S)
    ours, secret = os.urandom(NONCE_BYTES), credentials.secret
    try:
        stream.encrypt(credentials, accepting=False)
        theirs = bytes(stream._exactly(NONCE_BYTES))
        stream.send(0, ours + _proof(secret, b"connect", theirs, ours, hello) + hello)
        answer = bytes(stream._exactly(hashlib.sha256().digest_size))
    except StreamClosed as error:
        stream.close()
        raise _refused(host, port, str(error)) from error
    if not hmac.compare_digest(answer, _proof(secret, b"accept", ours, theirs, hello)):
        stream.close()
        raise _refused(host, port, "it lacks the secret of this run")
    stream.settle()
    return stream


def _connected(host: str, port: int, silent_after_s: float) -> socket.socket:
    """Connect, with as many attempts as begin before the limit. Raises Unavailable."""
    until = time.monotonic() + silent_after_s
    while True:
        try:
            # One address only: each of several would get the whole timeout.
            return socket.create_connection((socket.gethostbyname(host), port), HANDSHAKE_TIMEOUT_S)
        except TimeoutError as error:
            if time.monotonic() >= until:
                raise _refused(host, port, str(error)) from OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        except OSError as error:
            raise _refused(host, port, str(error)) from error


def accept(connection: socket.socket, credentials: Credentials) -> tuple[PeerStream, bytes]:
    """Authenticate an accepted connection; return it with the peer's hello. Raises StreamClosed."""
    stream = PeerStream(connection)
    stream.hurry(time.monotonic() + HANDSHAKE_TIMEOUT_S)
    ours, secret = os.urandom(NONCE_BYTES), credentials.secret
    size = hashlib.sha256().digest_size
    try:
        stream.encrypt(credentials, accepting=True)
        stream.send_raw(ours)
        _, length = _HEADER.unpack(stream._exactly(_HEADER.size))
        if not NONCE_BYTES + size <= length <= NONCE_BYTES + size + HELLO_BYTES_MAX:
            raise StreamClosed("the peer's greeting has a wrong size")
        greeting = bytes(stream._exactly(length))
        theirs, rest = greeting[:NONCE_BYTES], greeting[NONCE_BYTES:]
        proof, hello = rest[:size], rest[size:]
        if not hmac.compare_digest(proof, _proof(secret, b"connect", ours, theirs, hello)):
            raise StreamClosed("the peer lacks the secret of this run")
        stream.send_raw(_proof(secret, b"accept", theirs, ours, hello))
    except StreamClosed:
        stream.close()
        raise
    stream.settle()
    return stream, hello


def _proof(secret: bytes, role: bytes, first: bytes, second: bytes, hello: bytes) -> bytes:
    return hmac.new(secret, b"|".join((role, first, second, hello)), hashlib.sha256).digest()


def _refused(host: str, port: int, why: str) -> Unavailable:
    return Unavailable(
        f"no stream to {host}:{port}: {why}",
        not_done="nothing was sent",
        next_step="if it persists, check that hosts reach each other on all ports: holdfast doctor",
    )
