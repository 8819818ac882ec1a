"""A Redis server for tests: on a port of loopback, with its files in a temporary directory.

`tools/bootstrap.sh redis` downloads the server, unless one is installed; HOLDFAST_REDIS_SERVER may name another one. It
keeps what it confirms (appendonly yes, appendfsync always), so it has everything when it starts again after a kill. The
server of a session is started once, and every test has a prefix of its own there. It ends with the test process, even
when that is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from patience import WALL_S, wait

VARIABLE = "HOLDFAST_REDIS_SERVER"
HOW_TO_GET_IT = "tools/bootstrap.sh redis; pip install 'redis>=5.0.1'"
USER, PASSWORD = "app", "a-password-that-no-message-shows"


def find_server() -> Path:
    """Return the program: HOLDFAST_REDIS_SERVER, one on the PATH, or where tools/bootstrap.sh puts it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "bin" / "redis-server"
    found = Path(os.environ.get(VARIABLE) or shutil.which("redis-server") or cache)
    if not found.is_file():
        pytest.fail(f"there is no Redis server for tests in {found}; get it with: {HOW_TO_GET_IT}")
    return found


@dataclass
class RedisServer:
    """A server whose files are in a folder; it keeps its port and its data when it starts again."""

    folder: Path
    port: int
    _made: Iterator[int] = field(default_factory=lambda: count(1))
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The URL of a user who may do everything, without a password."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def guarded(self) -> str:
        """The URL of `USER`, who has `PASSWORD`, and the rights that a test gives."""
        return f"redis://{USER}@127.0.0.1:{self.port}/0"

    def keys(self, key: tuple[str, ...] = ("user",)) -> RedisKeys:
        """Return an empty prefix."""
        return RedisKeys(self, f"test-{next(self._made)}:", key)

    def start(self) -> None:
        """Start the process, and wait until the server answers."""
        settings = ("--bind", "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always", "--save", "")
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # The kernel ends the server if the test process is killed.
                ["setpriv", "--pdeathsig", "KILL", find_server(), "--port", str(self.port), *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        wait(self._answers, "the Redis server")

    def kill(self) -> None:
        """End the process without warning, as a crash does."""
        assert self._process is not None, "the server does not run"
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(WALL_S)
        self._process = None

    def close(self) -> None:
        """End the process, if it runs."""
        if self._process is not None:
            self.kill()

    def ask(self, *command: Any) -> Any:
        """Run a command; return its answer."""
        client = self.client()
        try:
            return client.execute_command(*command)
        finally:
            client.close()

    def client(self) -> Any:
        """Return a client of the user who may do everything; nothing is connected yet."""
        import redis

        return redis.Redis(port=self.port, protocol=2)

    def allow(self, *rules: str) -> None:
        """Give `USER` these rights, and no others."""
        self.ask("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *rules)

    def _answers(self) -> bool:
        import redis

        assert self._process is not None
        ended = self._process.poll()
        assert ended is None, f"the server ended with {ended}: {(self.folder / 'log').read_text()[-3_000:]}"
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False


@dataclass(frozen=True)
class RedisKeys:
    """A prefix of its own: where one test has its rows."""

    server: RedisServer
    prefix: str
    key: tuple[str, ...]

    @property
    def sink(self) -> Any:
        """A sink that writes under the prefix."""
        from holdfast.sinks.redis.sink import Redis

        return Redis(self.server.url, self.prefix, self.key)

    def values(self) -> dict[str, str]:
        """Return what is under the prefix: the rest of each key, and its value."""
        found = {name.decode(): self.server.ask("GET", name) for name in self._names()}
        return {name.removeprefix(self.prefix): value.decode() for name, value in sorted(found.items())}

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows under the prefix."""
        return [tuple(json.loads(value).values()) for value in self.values().values()]

    def back_up(self) -> Callable[[], None]:
        """Copy rows and hash; return what restores them from the copy."""
        kept = {name: self.server.ask("DUMP", name) for name in self._all()}

        def restore() -> None:
            for name in self._all():
                self.server.ask("DEL", name)
            for name, data in kept.items():
                self.server.ask("RESTORE", name, 0, data)

        return restore

    def _names(self) -> list[bytes]:
        names: list[bytes] = self.server.ask("KEYS", f"{self.prefix}*")
        return names

    def _all(self) -> list[bytes]:
        book: list[bytes] = self.server.ask("KEYS", f"holdfast:{self.prefix}")
        return [*self._names(), *book]


@contextmanager
def running() -> Iterator[RedisServer]:
    """Run an empty server, until the block ends."""
    if find_spec("redis") is None:
        pytest.fail(f"redis-py is missing; get it with: {HOW_TO_GET_IT}")
    folder = Path(tempfile.mkdtemp(prefix="hf-redis-"))
    server = RedisServer(folder, _free_port())
    try:
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
