"""Authenticated, framed TCP streams between driver and workers.

Both ends prove that they know the run's secret before anything else is read, by an HMAC over fresh
nonces of both; the secret itself does not cross these streams (Spark brings it to the workers with
the task). Then either end sends frames: one byte of kind, eight of length, the bytes. With TLS (tls.py)
all of this, from the first byte, goes through it; without, whoever can change packets is not kept out.

Invariants
    - Nothing of a peer that did not authenticate is decoded; it is limited in size, and in time by one deadline for
      the whole handshake, at either end.
    - No end sends a frame that the other would refuse.
    - `close` may be called by any thread and frees a thread that is blocked in send or receive.

Source: DESIGN section 3 (control and data plane).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Sequence

from holdfast.errors import JobFailed, Unavailable
from holdfast.runtime.spark.tls import Credentials, TlsConnection, context_of

_HEADER = struct.Struct("<BQ")
MESSAGE, VITALS = 3, 4
"""Kinds of frames on control streams: messages of worker and driver in msgspec, a companion's in JSON."""
NONCE_BYTES = 32
HELLO_BYTES_MAX = 4096
FRAME_BYTES_MAX = 1 << 30
"""A sender refuses a longer frame: a receiver that is told of one closes the stream."""
HANDSHAKE_TIMEOUT_S = 5.0
"""From the connection to the end of the handshake, TLS included, however the peer divides what it sends."""
CONNECTIONS_WAITING_MAX = 1024
"""In the kernel, until they are taken: at a start every worker connects to every other."""


class StreamClosed(Exception):
    """The peer went away, or this end closed the stream."""


class _Link:
    """A socket on which, while `until` is set, everything ends by that time, in however many pieces it comes."""

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
                raise TimeoutError(f"the handshake was not over after {HANDSHAKE_TIMEOUT_S:g} s")
            self._socket.settimeout(left)


class Stream:
    """One authenticated connection. One thread sends, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._link = _Link(connection)
        self._bytes: _Link | TlsConnection = self._link
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose packets are dropped sends nothing, also no end: ask after it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def fileno(self) -> int:
        """Return what `select` waits for."""
        return self._socket.fileno()

    def hurry(self, until: float) -> None:
        """Let all that is sent and received end at this time of the monotonic clock, until `settle`."""
        self._link.until = until

    def settle(self) -> None:
        """The handshake is over: from here on nothing has a deadline."""
        self._link.until = None
        self._socket.settimeout(None)

    def give_up_after(self, seconds: float) -> None:
        """Take the stream for closed when the peer has not acknowledged what was sent for so long."""
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))

    def encrypt(self, credentials: Credentials, accepting: bool) -> None:
        """From here on everything goes through TLS, if these credentials have it. Raises StreamClosed."""
        if credentials.encrypted:
            tls = TlsConnection(self._link, context_of(credentials, accepting), accepting)
            try:
                tls.handshake()
            except OSError as error:
                raise StreamClosed(f"no TLS with this peer: {error}") from error
            self._bytes = tls

    def send_raw(self, data: bytes) -> None:
        """Send bytes that are no frame, for the handshake. Raises StreamClosed."""
        try:
            self._bytes.sendall(data)
        except OSError as error:
            raise StreamClosed(str(error)) from error

    def send(self, kind: int, payload: bytes | memoryview) -> None:
        """Send one frame.

        Raises:
            StreamClosed: the peer went away, or this end closed the stream.
            JobFailed: the frame is longer than receivers take; nothing of it was sent.
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
        """Close the stream now; what is under way in other threads ends with StreamClosed."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # never connected, or the peer was first: closed is what was asked for
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
                raise StreamClosed("the peer closed the stream")
            view = view[count:]
        return data


def listen(host: str) -> socket.socket:
    """Listen on a free port of this address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, 0))
    listener.listen(CONNECTIONS_WAITING_MAX)
    return listener


def close_listener(listener: socket.socket) -> None:
    """Stop listening; a thread that waits in `accept` is freed, which closing alone does not do."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was not listening any more
    listener.close()


def connect(address: Sequence[str | int], credentials: Credentials, hello: bytes) -> Stream:
    """Connect and authenticate both ends; `hello` tells the peer what the stream is for.

    Raises:
        Unavailable: nobody answers, or the peer does not know the secret, or speaks no TLS where this end does.
    """
    host, port = str(address[0]), int(address[1])
    until = time.monotonic() + HANDSHAKE_TIMEOUT_S
    try:
        # One address: each of several would be given the whole time.
        connection = socket.create_connection((socket.gethostbyname(host), port), HANDSHAKE_TIMEOUT_S)
    except OSError as error:
        raise _refused(host, port, str(error)) from error
    stream = Stream(connection)
    stream.hurry(until)
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
        raise _refused(host, port, "it does not know the secret of this run")
    stream.settle()
    return stream


def accept(connection: socket.socket, credentials: Credentials) -> tuple[Stream, bytes]:
    """Authenticate a connection that came in; return it with the peer's hello. Raises StreamClosed."""
    stream = Stream(connection)
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
            raise StreamClosed("the peer does not know the secret of this run")
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
        next_step="if it goes on, check that hosts reach each other on all ports: holdfast doctor",
    )
