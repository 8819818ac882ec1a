"""From a table of Postgres into another one, through a capture and a job on Spark, while everything in between fails.

A writer changes accounts in transactions with numbers; a reader compares the copy with the accounts as of one of them,
snapshot after snapshot (postgres_accounts.py, postgres_observed.py). Capture and job reach the server through a proxy
each; writer and reader go past both. Each fault is seen to take effect, and after it every transaction that was
committed until then has to arrive.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from accounts import ACCOUNTS, NUMBER, number_in
from capture_process import CaptureProcess
from patience import wait
from postgres_accounts import Writer, Writing
from postgres_observed import Observed, Spread
from postgres_server import GUARDED, LOGICAL, PASSWORD, PostgresPlace, PostgresServer
from postgres_server import running as postgres_running
from proxied import Proxied, free_address
from running import lasts, pid_gone, running
from striking import Striking

from holdfast.chaos.live.faults.proxy import Toxiproxy
from holdfast.chaos.live.faults.sockets import established
from holdfast.storage.objects import LocalObjects

pytestmark = [pytest.mark.e2e, pytest.mark.toxiproxy, pytest.mark.timeout(1_800)]

JOB = Path(__file__).with_name("captured_job.py")
MINUTES = float(os.environ.get("MINUTES", "10"))
LASTS_S = (0.5, 2.0)


@dataclass(frozen=True)
class Bank:
    """A Postgres server with the accounts and their copy, and two ways to it."""

    server: PostgresServer
    capture: Proxied
    copy: Proxied
    spread: Spread

    @property
    def place(self) -> PostgresPlace:
        """The schema, for the superuser, past the proxies."""
        return PostgresPlace(self.server.dsn(), "bank")

    @property
    def environment(self) -> dict[str, str]:
        """What capture and job need."""
        return {
            "ACCOUNTS_CAPTURE": f"postgresql://{GUARDED}@{self.capture.address}/postgres",
            "ACCOUNTS_COPY": f"postgresql://{GUARDED}@{self.copy.address}/postgres",
            "ACCOUNTS_PASSWORD": PASSWORD,
            "ACCOUNTS_PARTITIONS": str(self.spread.partitions),
            "HOLDFAST_SILENT_AFTER_MS": "3s",
            "HOLDFAST_RESTART_FAILURES_MAX": "1000",
        }

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the job: there is room for the successor of each worker."""
        return "--parallelism", str(self.spread.workers)

    def open_accounts(self, chance: random.Random) -> Writer:
        """Create the accounts, and let the role of the job capture them."""
        self.place.ask(f"CREATE SCHEMA bank AUTHORIZATION {GUARDED}")
        self.place.ask(f"ALTER ROLE {GUARDED} REPLICATION")
        writer = Writer(self.place, chance)
        self.place.ask(f"GRANT SELECT ON accounts TO {GUARDED}")
        self.place.ask("CREATE PUBLICATION accounts FOR TABLE accounts")
        return writer

    def differences(self) -> list[tuple[Any, ...]]:
        """Return the rows that only one of both tables has."""
        return self.place.ask("(TABLE accounts EXCEPT TABLE copy) UNION ALL (TABLE copy EXCEPT TABLE accounts)")


@pytest.fixture
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    address = free_address()
    with (
        postgres_running(int(address.rpartition(":")[2]), LOGICAL) as server,
        contextlib.closing(Toxiproxy(tmp_path / "toxiproxy.log")) as proxies,
    ):
        bank = Bank(server, Proxied("capture", address, proxies), Proxied("copy", address, proxies), request.param)
        bank.capture.create()
        bank.copy.create()
        yield bank


class Capture:
    """A process that captures the accounts, and its successors."""

    def __init__(self, folder: Path, bank: Bank) -> None:
        self._folder, self._bank = folder, bank
        self.start()

    def start(self) -> None:
        """Start a process, and wait until it follows the changes."""
        self.process = CaptureProcess(self._folder, JOB, COUNTING_FOLDER=str(self._folder), **self._bank.environment)
        self.process.event("streaming")

    def replace(self, pause_s: float) -> None:
        """SIGKILL the process, and start another one after so long."""
        self.process.kill()
        lasts(pause_s)
        self.process.close()
        self.start()

    def is_over(self) -> bool:
        """Return whether the process has ended by itself."""
        return self.process.process.poll() is not None

    def close(self) -> None:
        """End the process."""
        self.process.close()


@dataclass(kw_only=True)
class Chaos(Striking):
    """Strikes workers, the capture, connections and the server."""

    bank: Bank
    capture: Capture
    writer: Writer
    observed: Observed

    def catch_up(self) -> float:
        """Wait until the transactions that were committed by now have arrived; return the seconds that it took."""
        given, began = self.writer.now[NUMBER], time.monotonic()
        self.wait_for(lambda: self.observed.newest >= given, f"transaction {given}")
        return time.monotonic() - began

    def wait_for(self, seen: Callable[[], bool], what: str) -> None:
        """Wait until the reader has seen something, while capture and job go on and nothing is wrong."""
        wait(lambda: seen() or self._is_over(), what)
        assert self.run.process.poll() is None, self.run.errors()
        assert not self.capture.is_over(), "the capture has ended"
        assert self.observed.faults == []

    # Faults

    def kill_worker(self) -> None:
        self.replaced(self.signal_worker(signal.SIGKILL))

    def kill_capture(self) -> None:
        self.capture.replace(self.chance.uniform(*LASTS_S))

    def kill_server(self) -> None:
        with self._server_killed():
            pass

    def kill_server_and_worker(self) -> None:
        """Kill a worker whose successor cannot deliver at first."""
        with self._server_killed():
            killed = self.signal_worker(signal.SIGKILL)
        self.replaced(killed)

    def cut_capture(self) -> None:
        self._cut(self.bank.capture)

    def cut_copy(self) -> None:
        self._cut(self.bank.copy)

    def limit_capture(self) -> None:
        self._limit(self.bank.capture)

    def limit_copy(self) -> None:
        self._limit(self.bank.copy)

    @contextlib.contextmanager
    def _server_killed(self) -> Iterator[None]:
        killed = self.bank.server.kill()
        try:
            assert len(killed) > 3 and all(map(pid_gone, killed))
            yield
            lasts(self.chance.uniform(*LASTS_S))
        finally:
            self.bank.server.start()

    def _cut(self, link: Proxied) -> None:
        """End all connections of a link, and refuse new ones for some time."""
        wait(lambda: _connections(link), "a connection")
        link.reachable(False)
        wait(lambda: not _connections(link), "the end of connections")
        lasts(self.chance.uniform(*LASTS_S))
        link.reachable(True)

    def _limit(self, link: Proxied) -> None:
        """End connections of a link in the middle of answers."""
        before = wait(lambda: _connections(link), "a connection")
        link.toxic("limit_data", "downstream", bytes=self.chance.randint(100, 2_000))
        wait(lambda: before - _connections(link), "a connection that ended")
        lasts(self.chance.uniform(*LASTS_S))
        link.untoxic("limit_data")

    def _is_over(self) -> bool:
        return self.run.process.poll() is not None or self.capture.is_over() or self.observed.faults != []

    FAULTS: ClassVar = {
        "worker killed": kill_worker,
        "capture killed": kill_capture,
        "server killed": kill_server,
        "server and worker killed": kill_server_and_worker,
        "link of the capture cut": cut_capture,
        "link of the job cut": cut_copy,
        "link of the capture ended in the middle of answers": limit_capture,
        "link of the job ended in the middle of answers": limit_copy,
    }


def _connections(link: Proxied) -> set[bytes]:
    """Return the clients' connections to a proxy."""
    port = int(link.address.rpartition(":")[2])
    return {each.cookie for each in established() if each.local == port}


def read_more_by_name(folder: Path, bank: Bank, writer: Writer) -> None:
    """Write and capture more, then let the job read the log by its name, in the other mode, without the capture."""
    with contextlib.closing(Capture(folder, bank)) as capture, contextlib.closing(writer):
        writer.connect()
        writer.write(50)
        wait(lambda: number_in(LocalObjects(folder / "captured")) == writer.now[NUMBER], "the log")
        capture.process.stop()
    bank.capture.reachable(False)
    flags = (*bank.flags, "--mode", "microbatch", "--once")
    with running(folder, *flags, job=JOB, **bank.environment, BY_NAME="yes") as run:
        assert run.finish() == 0, run.errors()


@pytest.mark.parametrize(
    ("bank", "minutes"),
    [
        pytest.param(Spread(1, 2), 0.0, id="one partition"),
        pytest.param(Spread(1, 2), MINUTES, id="one partition, long", marks=pytest.mark.slow),
        pytest.param(Spread(1, 1), MINUTES, id="one partition and worker, long", marks=pytest.mark.slow),
        pytest.param(Spread(4, 2), MINUTES, id="four partitions, long", marks=pytest.mark.slow),
    ],
    indirect=["bank"],
)
def test_a_copy_shows_the_table_as_of_a_transaction_whatever_fails_meanwhile(
    bank: Bank, tmp_path: Path, minutes: float
) -> None:
    """For MINUTES, 10 by default; prints what it did."""
    chance, writer = random.Random(round(minutes)), bank.open_accounts(random.Random(7))
    with contextlib.closing(Capture(tmp_path, bank)) as capture, Writing(writer) as writing:
        with running(tmp_path, *bank.flags, job=JOB, **bank.environment) as run:
            run.wait_until_running(ACCOUNTS)
            with Observed(bank.place, writer.history, bank.spread) as observed:
                chaos = Chaos(
                    run=run,
                    workers=bank.spread.workers,
                    chance=chance,
                    bank=bank,
                    capture=capture,
                    writer=writer,
                    observed=observed,
                )
                chaos.catch_up()
                chaos.strike_for(60.0 * minutes)
                writing.stop()
                chaos.wait_for(lambda: observed.rows == writer.now, "the last rows")
            run.process.send_signal(signal.SIGTERM)
            assert run.finish() == 0, run.errors()
        assert capture.process.stop()["appends"] > 0
    report(chaos)
    assert observed.faults == []
    assert bank.differences() == []
    assert chaos.fired.keys() == Chaos.FAULTS.keys()
    assert writing.lost == sum(count for kind, count in chaos.fired.items() if kind.startswith("server"))
    killed, restarts = chaos.fired["worker killed"] + chaos.fired["server and worker killed"], run.lines[-1]["restarts"]
    assert len(restarts) >= killed
    assert all(each["cause"].startswith("worker ") for each in restarts), "no fault of Postgres restarts anything"
    shown = observed.whole if bank.spread.partitions == 1 else observed.tags
    assert len(shown) >= chaos.fired.total()
    if minutes:  # it takes another minute
        read_more_by_name(tmp_path, bank, writer)
        assert bank.differences() == []


def report(chaos: Chaos) -> None:
    """Print what was done and seen."""
    observed, restarts = chaos.observed, chaos.run.lines[-1]["restarts"]
    took = ", ".join(f"{kind} {count} ({chaos.caught_up_s[kind]:.1f} s)" for kind, count in sorted(chaos.fired.items()))
    print(
        f"{chaos.writer.now[NUMBER]:,} transactions; {observed.snapshots:,} snapshots, with {len(observed.tags):,} "
        f"combinations of epochs and {len(observed.whole):,} whole transactions; {len(restarts)} restarts; {took}"
    )
