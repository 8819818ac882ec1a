"""Jobs on Spark that deliver to Postgres, while links break, processes are killed and logins are refused.

Each fault fires: connections get other processes of the server, processes are gone, the status repeats the server's
refusal. The job resumes by itself each time, and afterwards each table equals the input.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from patience import wait
from postgres_server import GUARDED, PASSWORD, PostgresPlace, PostgresServer
from postgres_server import running as postgres_running
from proxied import Proxied, free_address
from running import Run, lasts, pid_gone, running
from test_kills import kill_worker

from holdfast.chaos.live.faults.proxy import Toxiproxy
from holdfast.runtime.cli.main import main
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

pytestmark = [pytest.mark.e2e, pytest.mark.toxiproxy, pytest.mark.timeout(900)]

JOB = Path(__file__).with_name("postgres_job.py")
RATE = ("--max-records-per-second", "1500")
ROWS, NOTE_BYTES = 36_000, 512
"""So long a random note fills the 1 MiB that may wait per writer within seconds."""
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("account", pa.string(), nullable=False),
        pa.field("cents", pa.int64(), nullable=False),
        pa.field("note", pa.string(), nullable=False),
        pa.field("part", pa.int64(), nullable=False),
    ]
)
Row = tuple[int, str, int, str]


@dataclass(frozen=True)
class Bank:
    """A Postgres server, and its clients' way to it."""

    server: PostgresServer
    link: Proxied

    @property
    def environment(self) -> dict[str, str]:
        """What the job needs."""
        dsn = f"postgresql://{GUARDED}@{self.link.address}/postgres"
        return {"PAYMENTS_DSN": dsn, "PAYMENTS_PASSWORD": PASSWORD, "HOLDFAST_STAGED_BYTES_MAX": "1MiB"}

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement as the superuser, past the proxy."""
        return PostgresPlace(self.server.dsn(), "payments").ask(sql)

    def connections(self) -> set[int]:
        """Return the processes of the server that serve the job."""
        return {pid for (pid,) in self.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'holdfast'")}

    def end_connections(self) -> None:
        """End them, as an administrator does."""
        self.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'")

    def copied(self) -> int:
        """Return how many rows were delivered to the table without a key."""
        return int(self.ask("SELECT count(*) FROM copied")[0][0])

    def differences(self, rows: list[Row]) -> list[str]:
        """Compare each table with the input; return the tables that differ."""
        cents = defaultdict[str, list[int]](list)
        for _, account, amount, _ in rows:
            cents[account].append(amount)
        wanted: dict[str, list[tuple[Any, ...]]] = {
            "SELECT n, account, cents, note FROM copied": list(rows),
            "SELECT account, payments, cents FROM totals": [(a, len(each), sum(each)) for a, each in cents.items()],
            "SELECT account, most FROM largest": [(a, max(each)) for a, each in cents.items()],
        }
        found = {sql: (Counter(self.ask(sql)), Counter(each)) for sql, each in wanted.items()}
        return [
            f"{sql}: {(right - had).total()} missing or wrong, {(had - right).total()} unexpected"
            for sql, (had, right) in found.items()
            if had != right
        ]


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    address = free_address()
    with (
        postgres_running(int(address.rpartition(":")[2])) as server,
        contextlib.closing(Toxiproxy(tmp_path / "toxiproxy.log")) as proxies,
    ):
        bank = Bank(server, Proxied("postgres", address, proxies))
        bank.link.create()
        bank.ask(f"CREATE SCHEMA payments AUTHORIZATION {GUARDED}")
        yield bank


def make_payments(folder: Path, count: int, note_bytes: int) -> list[Row]:
    """Write the sealed input log; return its rows."""
    notes = np.random.default_rng(7).bytes(count * note_bytes).hex()
    size = 2 * note_bytes
    rows = [
        (n, f"account-{n * 7_919 % 503}", n * 31 % 1_000 - 300, notes[n * size : (n + 1) * size]) for n in range(count)
    ]
    store, quarter = LocalObjects(folder / "input"), count // 4
    create_log(store, SCHEMA, 4)
    writer = LogWriter(store)
    columns = [list(column) for column in zip(*rows, strict=True)]
    table = pa.table([*columns, [n // quarter for n in range(count)]], schema=SCHEMA)
    for start in range(0, quarter, 2_000):
        some = min(2_000, quarter - start)
        writer.append({part: table.slice(part * quarter + start, some) for part in range(4)})
    writer.seal()
    return rows


def refused(progress: dict[str, Any], words: str = "") -> bool:
    """Return whether the job reports a sink that cannot deliver, with these words."""
    return any(each["code"] == "sink_refused" and re.search(words, each["what"]) for each in progress["problems"])


def resumes(run: Run, bank: Bank) -> None:
    """Wait until more rows are delivered, and the job reports no refusal."""
    rows = bank.copied()
    run.wait_for(lambda p: p["state"] == "running" and not refused(p) and bank.copied() > rows, "rows after a fault")


def waits(run: Run) -> int:
    """Wait until sources are paused: no record is read for two seconds. Return how many were, which is not all."""
    read = -1
    while run.lines[-1]["records_in"] != read:
        read = run.lines[-1]["records_in"]
        lasts(2.0)
    assert run.lines[-1]["state"] == "running" and run.lines[-1]["lag"] > 0
    return read


def cut_links(run: Run, bank: Bank, kind: str, **given: int) -> None:
    """End connections by this toxic, and new ones too, until the job has reported it."""
    before = bank.connections()
    bank.link.toxic(kind, "downstream", **given)
    run.wait_for(lambda p: refused(p) and before - bank.connections(), kind)
    bank.link.untoxic(kind)
    resumes(run, bank)


def lose_login(run: Run, bank: Bank, between: Callable[[], None] = lambda: None) -> None:
    """Take the right to log in from the job's role, give it another password, and undo both.

    Args:
        between: Called while the role may not log in.
    """
    bank.ask(f"ALTER ROLE {GUARDED} NOLOGIN")
    bank.end_connections()
    try:
        run.wait_for(lambda p: refused(p, "is not permitted to log in"), "a login that is refused")
        between()
        bank.ask(f"ALTER ROLE {GUARDED} LOGIN PASSWORD 'another one'")
        run.wait_for(lambda p: refused(p, "password authentication failed"), "a password that is refused")
    finally:
        bank.ask(f"ALTER ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'")
    resumes(run, bank)


def lose_server(run: Run, bank: Bank, down_s: float) -> None:
    """SIGKILL the server, and start it again after so long."""
    killed, back_at = bank.server.kill(), time.monotonic() + down_s
    try:
        run.wait_for(refused, "a server that is gone")
        read = waits(run)
        lasts(max(0.0, back_at - time.monotonic()))
        assert run.lines[-1]["records_in"] == read and refused(run.lines[-1])
        assert len(killed) > 3 and all(map(pid_gone, killed))
    finally:
        bank.server.start()
    resumes(run, bank)


class Searched:
    """Looks for the password where it must not be: in command lines, files and output."""

    def __init__(self) -> None:
        self.bytes = 0

    def command_lines(self, run: Run) -> None:
        driver = psutil.Process(run.process.pid)
        lines = [_read(Path(f"/proc/{each.pid}/cmdline")) for each in (driver, *driver.children(recursive=True))]
        assert len(lines) > 3 and b"postgres_job.py" in lines[0]
        self._search("a command line", b"\n".join(lines))

    def files(self, folder: Path) -> None:
        files = {path: _read(path) for path in folder.rglob("*") if path.is_file()}
        assert any(b"GenerationStarted" in data for data in files.values()), "the job log is among them"
        for path, data in files.items():
            self._search(str(path), data)

    def _search(self, where: str, data: bytes) -> None:
        self.bytes += len(data)
        assert PASSWORD.encode() not in data, where


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError):  # it is gone by now
        return path.read_bytes()
    return b""


@pytest.mark.parametrize("down_s", [8.0, pytest.param(60.0, marks=pytest.mark.slow)])
def test_every_row_is_in_postgres_once_whatever_fails_meanwhile(
    tmp_path: Path, bank: Bank, down_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, searched = make_payments(tmp_path, ROWS, NOTE_BYTES), Searched()

    def says(command: str) -> str:
        assert main([command, "payments", "--root", str(tmp_path / "root")]) == 0
        return "\n".join(capsys.readouterr())

    def refusal() -> str:
        said = says("status")
        return said if "did not let this user in" in said else ""

    def reports() -> None:
        """Wait for backpressure, and check what a user reads meanwhile."""
        waits(run)
        status = wait(refusal, "a status that says why")
        assert "payments: running" in status and "Next: let this user in again" in status
        assert "cannot deliver: Postgres" in says("explain")
        assert "sources are not read, because too much output waits for its sink" in says("explain")

    with running(tmp_path, *RATE, job=JOB, **bank.environment) as run:
        run.wait_until_running(1_000)
        cut_links(run, bank, "limit_data", bytes=1_000)  # in the middle of answers
        cut_links(run, bank, "reset_peer", timeout=0)
        kill_worker(run, 0)
        resumes(run, bank)
        lose_login(run, bank, reports)
        lose_server(run, bank, down_s)
        assert run.lines[-1]["records_in"] < ROWS, "the input was too short"
        searched.command_lines(run)
        searched.files(tmp_path)
        assert run.finish() == 0, run.errors()
    assert len(run.lines[-1]["restarts"]) == 1  # the kill; no fault of Postgres restarts anything
    assert bank.differences(rows) == []
    searched.files(tmp_path)
    assert searched.bytes > 1_000_000
