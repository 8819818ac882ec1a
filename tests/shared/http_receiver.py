"""A receiver of hf.Http for tests, in this process and on a loopback port, which records every request.

It keeps its port and what it recorded when it is stopped and started again.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Mapping[str, str], bytes]


@dataclass(frozen=True)
class Received:
    """A request that the receiver took."""

    path: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


@dataclass
class HttpReceiver:
    """A receiver.

    Args:
        replies: What it answers to the next requests, in order, without taking their rows.
        loses: To how many further requests it gives no answer, although it takes their rows.
        refuses: Whether it answers 401 to every request.
        silent: Whether it gives no answer to any request, although it takes their rows.
        quota: How many further requests it takes before it answers 429; None: all.
    """

    replies: list[Reply] = field(default_factory=list)
    loses: int = 0
    refuses: bool = False
    silent: bool = False
    quota: int | None = None
    lost: int = 0
    """How many answers were lost."""
    refused: int = 0
    """How many requests were answered without taking their rows."""
    taken: list[Received] = field(default_factory=list)
    """All requests that were taken, also repeated ones, in order."""
    port: int = 0
    senders: set[int] = field(default_factory=set)
    """The ports from which requests came."""
    _http: ThreadingHTTPServer | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: set[socket.socket] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/rows"

    def once(self) -> dict[str, bytes]:
        """Return the bodies by key. Two requests with one key have one body."""
        found: dict[str, bytes] = {}
        with self._lock:
            for each in self.taken:
                assert found.setdefault(each.key, each.body) == each.body, "a key was used for other rows"
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, those of a repeated key once."""
        return _rows(self.once().values())

    def rows_with_repetitions(self) -> list[dict[str, Any]]:
        """Return the rows as a receiver has them that does not look at keys."""
        with self._lock:
            return _rows([each.body for each in self.taken])

    def start(self) -> None:
        """Listen, at the port that it had before."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver._open.add(self.connection)

            def finish(self) -> None:
                receiver._open.discard(self.connection)
                super().finish()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.senders.add(self.client_address[1])
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = receiver._take(Received(self.path, headers, body))
                if reply is None:
                    self.close_connection = True
                    return
                status, more, text = reply
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: Any) -> None: ...

        self._http = Server(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """End all connections, and refuse new ones."""
        assert self._http is not None
        self._http.shutdown()
        self._http.server_close()
        for each in list(self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other side was faster

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextmanager
    def away(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def unanswered(self) -> Iterator[None]:
        self.silent = True
        try:
            yield
        finally:
            self.silent = False

    @contextmanager
    def refusing(self) -> Iterator[None]:
        self.refuses = True
        try:
            yield
        finally:
            self.refuses = False

    def _take(self, request: Received) -> Reply | None:
        with self._lock:
            if self.refuses:
                self.refused += 1
                return 401, {}, f"no right for {request.headers.get('authorization')}".encode()
            if self.replies:
                self.refused += 1
                return self.replies.pop(0)
            if self.quota == 0:
                self.refused += 1
                return 429, {}, b"too many"
            self.quota = None if self.quota is None else self.quota - 1
            self.taken.append(request)
            if self.silent or self.loses:
                self.loses = max(0, self.loses - 1)
                self.lost += 1
                return None
            return 204, {}, b""


@contextmanager
def receiving() -> Iterator[HttpReceiver]:
    """Run a receiver."""
    receiver = HttpReceiver()
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()


def _rows(bodies: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for body in bodies:
        value = json.loads(body)
        found += value if isinstance(value, list) else [value]
    return found


@contextmanager
def answering(answer: bytes, *, endless: bool = False, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Run a receiver that sends these bytes to every request, and ends the connection; yield its URL.

    Args:
        endless: It goes on to send bytes until the other side ends the connection.
        tls: With what it encrypts.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if self.rfile.readline():
                head = list(iter(self.rfile.readline, b"\r\n"))
                sizes = [line.split(b":")[1] for line in head if line.lower().startswith(b"content-length")]
                self.rfile.read(int(sizes[0]))
                self.request.sendall(answer)
                while endless:
                    self.request.sendall(b"x")
                    ended.wait(0.01)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

        def get_request(self) -> tuple[socket.socket, Any]:
            taken, address = super().get_request()
            if tls is not None:
                taken = tls.wrap_socket(taken, server_side=True, do_handshake_on_connect=False)
            return taken, address

        def handle_error(self, *_: Any) -> None: ...

    ended = threading.Event()
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_address[1]}/rows"
        server.shutdown()
