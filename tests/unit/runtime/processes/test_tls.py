"""TLS between the ends of a run: who is refused, and that nothing crosses in the clear."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import WALL_S

from holdfast.errors import Unavailable
from holdfast.runtime.processes.streams import PeerStream, StreamClosed, accept, connect
from holdfast.runtime.processes.tls import Credentials, is_wanted, make_credentials

ENCRYPTED = make_credentials(encrypted=True)
OTHER = make_credentials(encrypted=True)


class Acceptor:
    """One end that takes connections, one after the other, and remembers how each went."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.stream: PeerStream | None = None
        self.hello = b""
        self.refused = ""
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Take one connection, in the background."""
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def taken(self) -> None:
        """Wait until the connection was taken or refused."""
        assert self._thread is not None
        self._thread.join(WALL_S)
        assert not self._thread.is_alive()

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self._listener.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        try:
            self.stream, self.hello = accept(connection, self._credentials)
        except StreamClosed as error:
            self.refused = str(error)


@pytest.fixture
def acceptor() -> Iterator[Acceptor]:
    acceptor = Acceptor(ENCRYPTED)
    acceptor.take()
    yield acceptor
    acceptor.close()


def joined(acceptor: Acceptor) -> tuple[PeerStream, PeerStream]:
    """Return both ends of a stream: the connecting one and the accepting one."""
    ours = connect(acceptor.address, ENCRYPTED, b"hello")
    acceptor.taken()
    assert acceptor.stream is not None, acceptor.refused
    return ours, acceptor.stream


class Relay:
    """Passes bytes of one connection on, both ways, and keeps them."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self.seen = bytearray()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        self._listener.close()
        far = socket.create_connection(self._target)
        back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
        back.start()
        self._pass(near, far)
        back.join()
        near.close()
        far.close()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(65_536):
            self.seen += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


class TestEncryptedStreams:
    def test_carry_frames_of_any_size_both_ways_at_the_same_time(self, acceptor: Acceptor) -> None:
        ours, theirs = joined(acceptor)
        payload = os.urandom(3_000_001)
        frames = 8
        senders = [
            threading.Thread(target=lambda s=stream: [s.send(1, payload) for _ in range(frames)], daemon=True)
            for stream in (ours, theirs)
        ]
        received: list[tuple[int, bytearray]] = []
        receivers = [
            threading.Thread(target=lambda s=stream: received.extend(s.receive() for _ in range(frames)), daemon=True)
            for stream in (ours, theirs)
        ]
        for thread in (*senders, *receivers):
            thread.start()
        for thread in (*senders, *receivers):
            thread.join(WALL_S)
        assert [(kind, bytes(data)) for kind, data in received] == [(1, payload)] * (2 * frames)
        ours.close()

    def test_deliver_the_hello_to_the_peer(self, acceptor: Acceptor) -> None:
        ours, _ = joined(acceptor)
        assert acceptor.hello == b"hello"
        ours.close()

    def test_reveal_neither_hello_nor_frames_to_the_network(self, acceptor: Acceptor) -> None:
        relay = Relay(acceptor.address)
        ours = connect(relay.address, ENCRYPTED, b"hello that nobody sees")
        acceptor.taken()
        assert acceptor.stream is not None
        ours.send(1, b"frame that nobody sees")
        assert acceptor.stream.receive()[1] == b"frame that nobody sees"
        assert len(relay.seen) > 500 and b"nobody" not in relay.seen
        ours.close()

    def test_end_for_the_reader_when_the_peer_closes(self, acceptor: Acceptor) -> None:
        ours, theirs = joined(acceptor)
        ours.close()
        with pytest.raises(StreamClosed):
            theirs.receive()

    def test_free_a_blocked_sender_when_they_are_closed(self, acceptor: Acceptor) -> None:
        ours, _ = joined(acceptor)
        sent, freed = threading.Event(), threading.Event()

        def send() -> None:
            sent.set()
            try:
                ours.send(1, bytes(200_000_000))
            except StreamClosed:
                freed.set()

        threading.Thread(target=send, daemon=True).start()
        assert sent.wait(WALL_S)
        ours.close()
        assert freed.wait(WALL_S)


class TestRefusedPeers:
    def test_include_a_peer_without_encryption(self, acceptor: Acceptor) -> None:
        with socket.create_connection(acceptor.address) as plain:
            plain.sendall(bytes(64))
            acceptor.taken()
            assert "no TLS with this peer" in acceptor.refused

    def test_include_an_acceptor_without_encryption(self) -> None:
        acceptor = Acceptor(Credentials(ENCRYPTED.secret))
        acceptor.take()
        with pytest.raises(Unavailable, match="no TLS with this peer"):
            connect(acceptor.address, ENCRYPTED, b"hello")
        acceptor.taken()
        assert acceptor.stream is None
        acceptor.close()

    def test_include_a_peer_with_another_certificate_even_with_the_secret(self, acceptor: Acceptor) -> None:
        thief = Credentials(ENCRYPTED.secret, OTHER.certificate, OTHER.private_key)
        with pytest.raises(Unavailable, match="certificate verify failed"):
            connect(acceptor.address, thief, b"hello")
        acceptor.taken()
        assert acceptor.stream is None and acceptor.refused

    def test_include_a_peer_that_presents_another_certificate(self, acceptor: Acceptor) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(acceptor.address) as raw,
            context.wrap_socket(raw) as bare,
            pytest.raises(ssl.SSLError, match="certificate required"),
        ):
            bare.recv(1)
        acceptor.taken()
        assert "no TLS with this peer" in acceptor.refused

    def test_include_a_peer_with_the_certificate_but_without_the_secret(self, acceptor: Acceptor) -> None:
        with pytest.raises(Unavailable):
            connect(acceptor.address, Credentials(b"x" * 32, ENCRYPTED.certificate, ENCRYPTED.private_key), b"hello")
        acceptor.taken()
        assert acceptor.refused == "the peer lacks the secret of this run"


class TestCredentials:
    def test_are_never_in_their_repr(self) -> None:
        assert repr(ENCRYPTED) == "Credentials(***, tls)" and repr(Credentials(b"s" * 32)) == "Credentials(***)"

    def test_differ_in_every_run(self) -> None:
        assert ENCRYPTED.secret != OTHER.secret and ENCRYPTED.private_key != OTHER.private_key

    def test_leave_no_key_in_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acceptor: Acceptor) -> None:
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        ours, _ = joined(acceptor)
        assert list(tmp_path.iterdir()) == []
        ours.close()


class TestTheSetting:
    @pytest.mark.parametrize(
        ("setting", "host", "wanted"),
        [
            ("auto", "127.0.0.1", False),
            ("auto", "localhost", False),
            ("auto", "10.1.2.3", True),
            ("auto", "0.0.0.0", True),
            ("on", "127.0.0.1", True),
            ("off", "10.1.2.3", False),
        ],
    )
    def test_auto_encrypts_unless_the_driver_is_on_loopback(self, setting: str, host: str, wanted: bool) -> None:
        assert is_wanted(setting, host) is wanted
