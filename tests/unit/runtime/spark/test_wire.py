"""A listener accepts connections until it is closed, whatever else fails."""

from __future__ import annotations

import errno
import queue
import socket
import threading

from holdfast.runtime.spark import wire
from holdfast.runtime.spark.door import serve_each
from holdfast.runtime.spark.tls import Credentials
from holdfast.runtime.spark.wire import Stream

SECRET = Credentials(b"s" * 32)
PATIENCE_S = 30.0


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


class TestAListener:
    def test_accepts_connections_again_after_file_descriptors_ran_out(self) -> None:
        served: queue.SimpleQueue[Stream] = queue.SimpleQueue()
        with Short() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            serve_each(listener, "short", SECRET, lambda stream, _: served.put(stream))
            peer = wire.connect(listener.getsockname()[:2], SECRET, b"hello")
            served.get(timeout=PATIENCE_S).close()
            peer.close()
            assert listener.refusals == 1
            wire.close_listener(listener)

    def test_ends_its_thread_when_it_is_closed(self) -> None:
        listener = wire.listen("127.0.0.1")
        serve_each(listener, "ends", SECRET, lambda stream, _: stream.close())
        (thread,) = [each for each in threading.enumerate() if each.name == "ends-accept"]
        wire.close_listener(listener)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
