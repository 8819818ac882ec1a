"""The handshake of both ends: byte for byte, within one deadline, and never many at a time."""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from patience import WALL_S

from holdfast.errors import Unavailable
from holdfast.runtime.processes import door, streams
from holdfast.runtime.processes.door import RefusalLog, serve_each
from holdfast.runtime.processes.streams import PeerStream, StreamClosed, accept, close_listener, connect, listen
from holdfast.runtime.processes.tls import Credentials, make_credentials

SECRET = Credentials(b"s" * 32)
HELLO = b"hello"
NONCE = b"n" * 32


def proof(role: bytes, first: bytes, second: bytes, hello: bytes = HELLO, secret: bytes = SECRET.secret) -> bytes:
    """Compute the proof that the handshake asks for; written apart from the code that it checks."""
    return hmac.new(secret, role + b"|" + first + b"|" + second + b"|" + hello, hashlib.sha256).digest()


def all_but(at: int, proof: bytes) -> bytes:
    """Return a proof with one wrong byte."""
    return proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :]


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


class Peer:
    """Plays one end of one handshake in the background, by hand."""

    def __init__(self, play: Callable[[], None]) -> None:
        self.errors: list[BaseException] = []

        def run() -> None:
            try:
                play()
            except BaseException as error:  # noqa: BLE001 - shown by the test
                self.errors.append(error)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def ended(self) -> list[BaseException]:
        self.thread.join(WALL_S)
        assert not self.thread.is_alive()
        return self.errors


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    made = listen("127.0.0.1")
    yield made
    close_listener(made)


def answering(listener: socket.socket, answer: Callable[[bytes, bytes], bytes], seen: list[bytes]) -> Peer:
    """Accept by hand: send a nonce, read the greeting, send the answer; keep what comes after it."""

    def play() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(WALL_S)
            connection.sendall(NONCE)
            _, length = struct.unpack("<BQ", exactly(connection, 9))
            greeting = exactly(connection, length)
            theirs, given = greeting[:32], greeting[32:64]
            assert given == proof(b"connect", NONCE, theirs)
            connection.sendall(answer(theirs, given))
            while more := connection.recv(1024):
                seen.append(more)

    return Peer(play)


def greeting(connection: socket.socket, given: Callable[[bytes], bytes], hello: bytes = HELLO) -> bytes:
    """Connect by hand: read the nonce, send a greeting with this proof; return the answer, empty if there is none."""
    connection.settimeout(WALL_S)
    theirs = exactly(connection, 32)
    message = NONCE + given(theirs) + hello
    connection.sendall(struct.pack("<BQ", 0, len(message)) + message)
    try:
        return exactly(connection, 32)
    except ConnectionResetError:
        return b""


class TestConnectingEnd:
    def test_accepts_an_acceptor_with_the_secret(self, listener: socket.socket) -> None:
        seen: list[bytes] = []
        peer = answering(listener, lambda theirs, _: proof(b"accept", theirs, NONCE), seen)
        stream = connect(listener.getsockname(), SECRET, HELLO)
        stream.send(1, b"x")
        stream.close()
        assert peer.ended() == [] and b"".join(seen) == struct.pack("<BQ", 1, 1) + b"x"

    @pytest.mark.parametrize(
        "answer",
        [
            lambda theirs, _: proof(b"accept", theirs, NONCE, secret=b"x" * 32),
            lambda theirs, _: proof(b"connect", theirs, NONCE),
            lambda theirs, _: proof(b"connect", NONCE, theirs),
            lambda _, given: given,
            lambda theirs, _: proof(b"accept", NONCE, theirs),
            lambda theirs, _: proof(b"accept", theirs, NONCE, hello=b"other"),
            lambda _theirs, _given: bytes(32),
            *(lambda theirs, _, at=at: all_but(at, proof(b"accept", theirs, NONCE)) for at in (0, 4, 31)),
        ],
        ids=[
            *("another secret", "its role", "its role, turned", "echoed", "nonces turned", "other hello", "zeros"),
            *("all but the first byte", "all but one byte", "all but the last byte"),
        ],
    )
    def test_refuses_an_acceptor_with_a_wrong_proof_and_sends_it_nothing(
        self, listener: socket.socket, answer: Callable[[bytes, bytes], bytes]
    ) -> None:
        seen: list[bytes] = []
        peer = answering(listener, answer, seen)
        with pytest.raises(Unavailable, match="lacks the secret"):
            connect(listener.getsockname(), SECRET, HELLO)
        assert peer.ended() == [] and seen == []


class TestAcceptingEnd:
    def accepting(self, listener: socket.socket, taken: list[tuple[PeerStream, bytes]]) -> Peer:
        def play() -> None:
            connection, _ = listener.accept()
            taken.append(accept(connection, SECRET))

        return Peer(play)

    def test_accepts_a_peer_with_the_secret_and_proves_its_own_knowledge(self, listener: socket.socket) -> None:
        taken: list[tuple[PeerStream, bytes]] = []
        peer = self.accepting(listener, taken)
        with socket.create_connection(listener.getsockname()) as connection:
            nonces: list[bytes] = []

            def given(theirs: bytes) -> bytes:
                nonces.append(theirs)
                return proof(b"connect", theirs, NONCE)

            assert greeting(connection, given) == proof(b"accept", NONCE, nonces[0])
        assert peer.ended() == []
        assert taken[0][1] == HELLO
        taken[0][0].close()

    @pytest.mark.parametrize(
        "given",
        [
            lambda theirs: proof(b"connect", theirs, NONCE, secret=b"x" * 32),
            lambda theirs: proof(b"accept", theirs, NONCE),
            lambda theirs: proof(b"accept", NONCE, theirs),
            lambda theirs: proof(b"connect", NONCE, theirs),
            lambda theirs: proof(b"connect", b"o" * 32, NONCE),
            lambda theirs: proof(b"connect", theirs, NONCE, hello=b"other"),
            lambda theirs: bytes(32),
            *(lambda theirs, at=at: all_but(at, proof(b"connect", theirs, NONCE)) for at in (0, 4, 31)),
        ],
        ids=[
            *("another secret", "its role", "its role, turned", "nonces turned", "replayed", "other hello", "zeros"),
            *("all but the first byte", "all but one byte", "all but the last byte"),
        ],
    )
    def test_refuses_a_wrong_proof_without_an_answer(
        self, listener: socket.socket, given: Callable[[bytes], bytes]
    ) -> None:
        peer = self.accepting(listener, [])
        with socket.create_connection(listener.getsockname()) as connection:
            assert greeting(connection, given) == b""
        (error,) = peer.ended()
        assert isinstance(error, StreamClosed) and "lacks the secret" in str(error)

    @pytest.mark.parametrize("length", [32 + 32 - 1, 32 + 32 + streams.HELLO_BYTES_MAX + 1, 1 << 20])
    def test_refuses_a_greeting_of_a_wrong_size_before_it_is_read(self, listener: socket.socket, length: int) -> None:
        peer = self.accepting(listener, [])
        with socket.create_connection(listener.getsockname(), WALL_S) as connection:
            exactly(connection, 32)
            connection.sendall(struct.pack("<BQ", 0, length))
            assert connection.recv(1) == b""
        (error,) = peer.ended()
        assert isinstance(error, StreamClosed) and "wrong size" in str(error)

    def test_gives_every_connection_its_own_nonce(self, listener: socket.socket) -> None:
        nonces = set()
        for _ in range(3):
            peer = self.accepting(listener, [])
            with socket.create_connection(listener.getsockname()) as connection:
                nonces.add(exactly(connection, 32))
            assert len(peer.ended()) == 1
        assert len(nonces) == 3


class Dripping:
    """A connection that gets a byte at a time, each just before the time for one read is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: bytes = b"\0" * 100_000) -> None:
        self.now, self.reads, self.limits = 100.0, 0, list[float | None]()
        self._data = iter(data)
        self._timeout: float | None = None
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, *_: object) -> None:
        pass

    def _wait(self) -> None:
        self.reads += 1
        assert self.reads < 10_000, "it goes on for ever"
        self.limits.append(self._timeout)
        if self._timeout is not None and self._timeout < 1.0:
            self.now += self._timeout
            raise TimeoutError("timed out")
        self.now += 1.0

    def recv_into(self, view: memoryview) -> int:
        self._wait()
        view[0] = next(self._data)
        return 1

    def recv(self, _: int) -> bytes:
        self._wait()
        return bytes([next(self._data)])

    def sendall(self, _: object) -> None:
        pass

    def shutdown(self, _: int) -> None:
        pass

    def close(self) -> None:
        pass


# The head of a TLS record, and the first bytes of a long one: it is waited for as long as bytes come.
TLS_RECORD = b"\x16\x03\x01\x3f\xff\x01" + b"\0" * 16_000


class TestOneDeadline:
    @pytest.mark.parametrize("encrypted", [False, True])
    def test_covers_everything_that_the_accepting_end_reads(
        self, monkeypatch: pytest.MonkeyPatch, encrypted: bool
    ) -> None:
        credentials = make_credentials(encrypted)
        peer = Dripping(monkeypatch, TLS_RECORD) if encrypted else Dripping(monkeypatch)
        with pytest.raises(StreamClosed):
            accept(peer, credentials)  # type: ignore[arg-type]
        assert peer.reads > 2
        assert peer.now <= 100.0 + streams.HANDSHAKE_TIMEOUT_S

    @pytest.mark.parametrize("encrypted", [False, True])
    def test_covers_everything_that_the_connecting_end_reads(
        self, monkeypatch: pytest.MonkeyPatch, encrypted: bool
    ) -> None:
        credentials = make_credentials(encrypted)
        peer = Dripping(monkeypatch, TLS_RECORD) if encrypted else Dripping(monkeypatch)
        monkeypatch.setattr(socket, "create_connection", lambda *_: peer)
        with pytest.raises(Unavailable):
            connect(("127.0.0.1", 1), credentials, HELLO)
        assert peer.reads > 2
        assert peer.now <= 100.0 + streams.HANDSHAKE_TIMEOUT_S

    def test_ends_with_the_handshake(self, listener: socket.socket) -> None:
        """A stream may be silent for as long as it likes."""
        seen: list[bytes] = []
        peer = answering(listener, lambda theirs, _: proof(b"accept", theirs, NONCE), seen)
        stream = connect(listener.getsockname(), SECRET, HELLO)
        assert stream._socket.gettimeout() is None
        stream.close()
        assert peer.ended() == []


class TestPendingHandshakes:
    def test_are_limited_and_the_oldest_is_dropped(
        self, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(door, "PENDING_MAX", 3)
        monkeypatch.setattr(door, "GIVES_WAY_AFTER_S", 0.0)
        monkeypatch.setattr(streams, "HANDSHAKE_TIMEOUT_S", 2 * WALL_S)
        served = threading.Event()

        def serve(stream: PeerStream, hello: bytes) -> None:
            assert hello == HELLO
            served.set()
            stream.close()

        serve_each(listener, "crowded", SECRET, serve)
        silent = []
        for _ in range(5):
            silent.append(socket.create_connection(listener.getsockname(), WALL_S))
            exactly(silent[-1], 32)  # taken, and its handshake is pending
        assert [each.recv(1) for each in silent[:2]] == [b"", b""]
        connect(listener.getsockname(), SECRET, HELLO).close()
        assert served.wait(WALL_S)
        for each in silent:
            each.close()

    def test_recent_pending_handshakes_complete_before_another_is_accepted(
        self, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(door, "PENDING_MAX", 1)
        monkeypatch.setattr(door, "GIVES_WAY_AFTER_S", 2 * WALL_S)
        served: list[bytes] = []
        both = threading.Semaphore(0)

        def serve(stream: PeerStream, hello: bytes) -> None:
            served.append(hello)
            both.release()

        looks = threading.Semaphore(0)

        def monotonic() -> float:
            looks.release()
            return time.monotonic()

        monkeypatch.setattr(door, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
        serve_each(listener, "young", SECRET, serve)
        slow = socket.create_connection(listener.getsockname())
        theirs = exactly(slow, 32)
        assert looks.acquire(timeout=WALL_S)  # it was given the only place
        quick = Peer(lambda: connect(listener.getsockname(), SECRET, b"quick").close())
        assert looks.acquire(timeout=WALL_S)  # and the next one checks for how long it has had that
        message = NONCE + proof(b"connect", theirs, NONCE, b"slow") + b"slow"
        slow.sendall(struct.pack("<BQ", 0, len(message)) + message)
        assert both.acquire(timeout=WALL_S) and both.acquire(timeout=WALL_S)
        assert served == [b"slow", b"quick"]
        assert quick.ended() == []
        slow.close()

    def test_do_not_include_streams_that_are_served(
        self, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(door, "PENDING_MAX", 1)
        monkeypatch.setattr(door, "GIVES_WAY_AFTER_S", 2 * WALL_S)
        served = threading.Semaphore(0)

        def serve(stream: PeerStream, _: bytes) -> None:
            served.release()
            with pytest.raises(StreamClosed):
                stream.receive()  # until the peer closes it
            served.release()

        serve_each(listener, "served", SECRET, serve)
        streams = [connect(listener.getsockname(), SECRET, HELLO) for _ in range(3)]
        assert all(served.acquire(timeout=WALL_S) for _ in streams)
        assert not served.acquire(blocking=False)  # all are open
        for each in streams:
            each.close()
        assert all(served.acquire(timeout=WALL_S) for _ in streams)


class TestShortage:
    """A shortage of file descriptors or threads: connections are refused meanwhile, and accepted again afterwards."""

    def test_a_shortage_of_file_descriptors_ends_no_listener(
        self, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Short:
            left = 2

            def accept(self) -> tuple[socket.socket, Any]:
                self.left -= 1
                if self.left >= 0:
                    raise OSError(errno.EMFILE, "Too many open files")
                return listener.accept()

        monkeypatch.setattr(door, "ACCEPT_PAUSE_S", 0.0)
        serve_each(Short(), "short", SECRET, lambda stream, _: stream.close())  # type: ignore[arg-type]
        connect(listener.getsockname(), SECRET, HELLO).close()

    def test_a_shortage_of_threads_ends_no_listener_and_occupies_no_slot(
        self, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = [2]

        class Short(threading.Thread):
            def start(self) -> None:
                if self.name == "short" and left[0]:
                    left[0] -= 1
                    raise RuntimeError("can't start new thread")
                super().start()

        monkeypatch.setattr(door, "PENDING_MAX", 1)
        monkeypatch.setattr(door, "GIVES_WAY_AFTER_S", 2 * WALL_S)
        monkeypatch.setattr(door, "ACCEPT_PAUSE_S", 0.0)
        kinds = {"Condition": threading.Condition, "Lock": threading.Lock, "Thread": Short}
        monkeypatch.setattr(door, "threading", SimpleNamespace(**kinds))
        serve_each(listener, "short", SECRET, lambda stream, _: stream.close())
        for _ in range(2):
            with socket.create_connection(listener.getsockname()) as refused:
                refused.settimeout(WALL_S)
                assert refused.recv(1) == b""
        connect(listener.getsockname(), SECRET, HELLO).close()


class TestRefusals:
    def test_are_logged_first_immediately_then_once_a_minute_with_their_number(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = [100.0]
        refusals = RefusalLog("data", lambda: now[0])
        with caplog.at_level(logging.WARNING):
            for _ in range(1_000):
                refusals.add("no secret")
            assert [record.getMessage() for record in caplog.records] == ["a data connection was refused: no secret"]
            now[0] += door.QUIET_S
            refusals.add("no TLS")
            now[0] += door.QUIET_S - 1
            refusals.add("no TLS")
            now[0] += 1
            refusals.add("no secret")
        assert [record.getMessage() for record in caplog.records[1:]] == [
            "a data connection was refused: no TLS; 999 more since the last message",
            "a data connection was refused: no secret; 1 more since the last message",
        ]

    def test_refusals_by_a_listener_are_logged_at_a_limited_rate(
        self, listener: socket.socket, caplog: pytest.LogCaptureFixture
    ) -> None:
        serve_each(listener, "sparing", SECRET, lambda stream, _: stream.close())
        with caplog.at_level(logging.WARNING):
            for _ in range(20):
                with socket.create_connection(listener.getsockname()) as connection:
                    assert greeting(connection, lambda _: bytes(32)) == b""
        assert len([record for record in caplog.records if "refused" in record.getMessage()]) == 1
