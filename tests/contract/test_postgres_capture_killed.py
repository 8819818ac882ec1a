"""`holdfast capture` of a Postgres table as a process: killed at any moment, beside another one, over a server's crash.

One writer changes accounts, in transactions that have numbers (accounts.py). So the test knows the table as of
each number, and each commit of the log has to show exactly one of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts import NUMBER, number_in, play_kills, play_takeover, wait_for
from capture_process import capturing
from captured_tables import tag_lsn
from postgres_accounts import Writer
from postgres_server import LOGICAL, PostgresPlace, PostgresServer, running

from holdfast.runtime.capture.postgres.messages import lsn_of
from holdfast.runtime.sources.postgres.table import WRITER
from holdfast.storage.objects import LocalObjects

pytestmark = pytest.mark.thorough

JOB = """
import holdfast as hf

app = hf.App("accounts")
source = hf.PostgresChanges({dsn!r}, {table!r}, hf.Log("log", partitions=2))
app.table("accounts", source, key="id").to_changes().sink("out", hf.Log("out"))
"""
AWHILE_S = 4.0
"""Long enough for several attempts to connect."""


def prepared(folder: Path, place: PostgresPlace, seed: int, dsn: str | None = None) -> Writer:
    """Write the job, which captures as another user if a connection string is given; return the writer."""
    (folder / "job.py").write_text(JOB.format(dsn=dsn or place.dsn, table=f"{place.schema}.accounts"))
    return Writer(place, random.Random(seed))


@pytest.fixture
def place(logical_postgres: PostgresServer) -> Iterator[PostgresPlace]:
    """An empty schema, whose slots are dropped in the end."""
    place = logical_postgres.place()
    yield place
    place.ask("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active")
    place.ask("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.mark.parametrize(
    ("seed", "rounds"), [(0, 2), pytest.param(1, 12, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_killed_at_any_moment_it_shows_the_table_as_of_one_transaction(
    tmp_path: Path, place: PostgresPlace, seed: int, rounds: int
) -> None:
    writer, chance = prepared(tmp_path, place, seed), random.Random(seed)
    play_kills(tmp_path, writer, WRITER, rounds, chance)
    ((behind,),) = place.ask("SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
    assert lsn_of(behind) <= tag_lsn(LocalObjects(tmp_path / "log"))


def test_a_second_process_waits_and_takes_over(tmp_path: Path, place: PostgresPlace) -> None:
    writer = prepared(tmp_path, place, 2)
    play_takeover(tmp_path, writer, WRITER)


def test_goes_on_after_a_server_that_shuts_down_or_crashes(tmp_path: Path) -> None:
    with running(extra=LOGICAL) as server:
        place = server.place()
        writer = prepared(tmp_path, place, 3)
        with capturing(tmp_path, tmp_path / "job.py") as process:
            process.event("streaming")
            for end in (server.shut_down, server.stop):
                writer.write(20)
                end()
                server.start()
                writer.connect()
                writer.write(20)
                wait_for(tmp_path, writer, process, WRITER)
            process.stop()


def test_waits_while_its_user_is_not_let_in_and_goes_on(tmp_path: Path) -> None:
    with running(extra=LOGICAL) as server:
        place = server.place()
        place.ask("CREATE ROLE capturer SUPERUSER LOGIN")
        writer = prepared(tmp_path, place, 4, server.dsn("capturer"))
        with capturing(tmp_path, tmp_path / "job.py") as process:
            process.event("streaming")
            writer.write(20)
            place.ask("ALTER ROLE capturer NOLOGIN")
            place.ask("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'capturer'")
            writer.write(20)
            process.let_run(AWHILE_S)
            assert number_in(LocalObjects(tmp_path / "log")) != writer.now[NUMBER]
            place.ask("ALTER ROLE capturer LOGIN")
            wait_for(tmp_path, writer, process, WRITER)
            process.stop()
