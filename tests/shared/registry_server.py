"""A schema registry for tests, in this process and on a loopback port, with the REST interface of Confluent's.

It keeps its schemas and its port when it is stopped and started again.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

LOGIN = "app:a-password-that-no-message-shows"
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403


@dataclass
class RegistryServer:
    """A registry.

    Args:
        login: "user:password" that each request has to have; None: none.
        refuses: The message with which it finds every new schema incompatible; None: it takes them.
        broken: Status and body of every answer, in place of its own; None: its own.
        fails: To how many further requests it answers that it is not ready.
    """

    login: str | None = None
    refuses: str | None = None
    broken: tuple[int, bytes] | None = None
    fails: int = 0
    asked: list[str] = field(default_factory=list)
    """Method and path of all requests."""
    port: int = 0
    _schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    _subjects: dict[str, list[int]] = field(default_factory=dict)
    _http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, subject: str, schema: Any, **more: Any) -> int:
        """Register a schema, and return its id; `more` are members such as references and schemaType."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found = {"schema": text, **more}
        number = next((each for each, known in self._schemas.items() if known == found), len(self._schemas) + 1)
        self._schemas[number] = found
        versions = self._subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def text(self, number: int) -> str:
        """Return the schema with an id."""
        text: str = self._schemas[number]["schema"]
        return text

    def start(self) -> None:
        """Listen, at the port that it had before."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: Any) -> None: ...

            def _answer(self, body: Any) -> None:
                server.asked.append(f"{self.command} {self.path}")
                status, answer = server.answer(self.command, self.path, self.headers.get("Authorization"), body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)  # by HTTP/1.0: no connection outlives `stop`
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections."""
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def answer(self, method: str, path: str, login: str | None, body: Any) -> tuple[int, Any]:
        """Return status and body of the answer to a request."""
        if self.broken is not None:
            return self.broken
        if self.fails:
            self.fails -= 1
            return 503, {"error_code": 503, "message": "starting"}
        wanted = None if self.login is None else "Basic " + base64.b64encode(self.login.encode()).decode()
        if login != wanted:
            return 401, {"error_code": 401, "message": f"Unauthorized: {login}"}
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                found = self._schemas.get(int(number))
                return (200, found) if found is not None else _missing(_NO_SCHEMA, f"Schema {number} not found")
            case ["schemas", "ids", number, "versions"]:
                having = [name for name, known in self._subjects.items() if int(number) in known]
                return 200, [{"subject": name, "version": 1} for name in having]
            case ["subjects", subject, "versions"] if method == "POST":
                if self.refuses is not None:
                    return 409, {"error_code": 409, "message": self.refuses}
                return 200, {"id": self.add(subject, body["schema"])}
            case ["subjects", subject, "versions", version]:
                return self._version(subject, version)
            case ["subjects", subject] if method == "POST":
                return self._registered(subject, body["schema"])
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self._subjects.get(subject, [])
        if not versions:
            return _missing(_NO_SUBJECT, f"Subject {subject!r} not found.")
        place = len(versions) if version == "latest" else int(version)
        if not 1 <= place <= len(versions):
            return _missing(_NO_VERSION, f"Version {version} not found.")
        number = versions[place - 1]
        return 200, {"subject": subject, "version": place, "id": number, **self._schemas[number]}

    def _registered(self, subject: str, text: str) -> tuple[int, Any]:
        for place, number in enumerate(self._subjects.get(subject, []), 1):
            if self._schemas[number] == {"schema": text}:
                return 200, {"subject": subject, "version": place, "id": number, "schema": text}
        missing = _NO_SCHEMA if subject in self._subjects else _NO_SUBJECT
        return _missing(missing, "Schema not found")


@contextmanager
def running(login: str | None = None) -> Iterator[RegistryServer]:
    """A registry that listens until the end."""
    server = RegistryServer(login)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _missing(code: int, message: str) -> tuple[int, Any]:
    return 404, {"error_code": code, "message": message}
