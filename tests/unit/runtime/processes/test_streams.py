"""A listener accepts connections until it is closed, whatever else fails."""

from __future__ import annotations

import errno
import queue
import socket
import threading

import pytest
from patience import WALL_S

from holdfast.errors import Unavailable
from holdfast.runtime.processes import streams
from holdfast.runtime.processes.door import serve_each
from holdfast.runtime.processes.streams import PeerStream, StreamClosed
from holdfast.runtime.processes.tls import Credentials

SECRET = Credentials(b"s" * 32)


class Short(socket.socket):
    """A listener of a process that has no file descriptor left at the first accept."""

    def __init__(self) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.refusals = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals == 0:
            self.refusals += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class TestSilence:
    """Whether the other machine answered nothing, which a slow or stopped process there does not cause."""

    @pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
    def test_is_a_stream_that_the_system_ended_because_nothing_was_answered(self, number: int) -> None:
        error = StreamClosed("it ended")
        error.__cause__ = OSError(number, "nothing")
        assert streams.is_silence(error)

    def test_is_a_connection_that_takes_too_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def attempt(*_: object) -> None:
            raise TimeoutError("timed out")

        monkeypatch.setattr(socket, "create_connection", attempt)
        with pytest.raises(Unavailable, match="timed out") as raised:
            streams.connect(("127.0.0.1", 1), SECRET, b"hello", silent_after_s=0.0)
        assert streams.is_silence(raised.value)

    def test_is_a_connection_that_takes_longer_than_the_limit_of_the_stream(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, attempts = [100.0], []

        def attempt(_: object, timeout: float) -> None:
            attempts.append(timeout)
            now[0] += timeout
            raise TimeoutError("timed out")

        monkeypatch.setattr("holdfast.runtime.processes.streams.time.monotonic", lambda: now[0])
        monkeypatch.setattr(socket, "create_connection", attempt)
        with pytest.raises(Unavailable, match="timed out") as raised:
            streams.connect(("127.0.0.1", 1), SECRET, b"hello", silent_after_s=15.0)
        assert streams.is_silence(raised.value)
        assert attempts == [streams.HANDSHAKE_TIMEOUT_S] * 3

    def test_is_no_handshake_that_takes_too_long(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as stopped, pytest.MonkeyPatch.context() as patched:
            patched.setattr(streams, "HANDSHAKE_TIMEOUT_S", 0.1)
            with pytest.raises(Unavailable, match="did not complete|timed out") as raised:
                streams.connect(stopped.getsockname()[:2], SECRET, b"hello")
        assert not streams.is_silence(raised.value)

    @pytest.mark.parametrize("number", [errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE])
    def test_is_no_answer_of_the_peers_system(self, number: int) -> None:
        assert not streams.is_silence(OSError(number, "an answer"))
        assert not streams.is_silence(StreamClosed("its process ended, or the network cut the connection"))


class TestAListener:
    def test_accepts_connections_again_after_file_descriptors_ran_out(self) -> None:
        served: queue.SimpleQueue[PeerStream] = queue.SimpleQueue()
        with Short() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            serve_each(listener, "short", SECRET, lambda stream, _: served.put(stream))
            peer = streams.connect(listener.getsockname()[:2], SECRET, b"hello")
            served.get(timeout=WALL_S).close()
            peer.close()
            assert listener.refusals == 1
            streams.close_listener(listener)

    def test_ends_its_thread_when_it_is_closed(self) -> None:
        listener = streams.listen("127.0.0.1")
        serve_each(listener, "ends", SECRET, lambda stream, _: stream.close())
        (thread,) = [each for each in threading.enumerate() if each.name == "ends-accept"]
        streams.close_listener(listener)
        thread.join(WALL_S)
        assert not thread.is_alive()
