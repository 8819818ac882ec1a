"""Changes of a table of a real server in a log: types, kinds of changes, refusals, and what the server is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from captured_tables import Rows, Until, tables, tag_lsn
from postgres_server import GUARDED, PASSWORD, READER, PostgresPlace, PostgresServer
from psycopg.errors import LockNotAvailable

import holdfast as hf
from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.runtime.capture.postgres.following import CaptureLimits
from holdfast.runtime.capture.postgres.messages import lsn_of
from holdfast.runtime.capture.postgres.probing import probed
from holdfast.runtime.capture.postgres.process import PostgresCapture
from holdfast.runtime.capture.postgres.slots import publication_of
from holdfast.runtime.capture.postgres.snapshot import create_slot
from holdfast.runtime.sources.postgres.catalogue import RDS_REPLICATION, check_server, connected, described
from holdfast.runtime.sources.postgres.connector import Capturing
from holdfast.storage.log.log import read_meta
from holdfast.storage.objects import MemoryObjects

pytestmark = pytest.mark.thorough

EAGER = CaptureLimits(linger_ms=1, idle_bytes=1)


class Table:
    """A table of the server, and the log that it is captured into."""

    def __init__(self, place: PostgresPlace, name: str = "t", **given: Any) -> None:
        self.place, self.store = place, MemoryObjects()
        source = hf.PostgresChanges(place.dsn, f"{place.schema}.{name}", hf.Log("memory/log", partitions=2), **given)
        self.of: Capturing = source.capturing
        self.events: list[dict[str, Any]] = []

    def capture(self, reached: Callable[[], bool], limits: CaptureLimits = EAGER) -> None:
        """Capture until something is reached. Raises: see PostgresCapture.run."""
        PostgresCapture(self.of, self.store, self.events.append, Until(reached), limits).run()

    def catch_up(self) -> None:
        """Capture everything that the server has committed until now."""
        ((text,),) = self.place.ask("SELECT pg_current_wal_flush_lsn()::text")
        end = lsn_of(text)
        self.capture(lambda: tag_lsn(self.store) >= end)

    def rows(self) -> Rows:
        """Return the table as the log has it."""
        *_, (_, rows) = tables(self.store)
        return rows

    def release(self) -> None:
        """Wait until the server has noticed that no connection reads the slot."""
        self.place.ask("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active")

    def slots(self) -> list[tuple[Any, ...]]:
        return self.place.ask(
            "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name LIKE 'holdfast%'"
        )


@pytest.fixture
def place(logical_postgres: PostgresServer) -> Iterator[PostgresPlace]:
    """An empty schema, whose slots are dropped in the end."""
    place = logical_postgres.place()
    yield place
    place.ask("SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE active")
    place.ask("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


@pytest.fixture
def table(place: PostgresPlace) -> Table:
    """A table with two rows."""
    place.ask("CREATE TABLE t (id int PRIMARY KEY, n int)")
    place.ask("INSERT INTO t VALUES (1, 10), (2, 20)")
    return Table(place)


@pytest.fixture
def replicator(table: Table) -> Iterator[PostgresPlace]:
    """The schema of the table as a user sees it who may replicate, and nothing else."""
    table.place.ask("CREATE ROLE replicator LOGIN REPLICATION")
    yield PostgresPlace(table.place.dsn.replace("user=postgres", "user=replicator"), table.place.schema)
    table.place.ask("DROP OWNED BY replicator; DROP ROLE replicator")


class TestCapture:
    def test_begins_with_the_rows_and_follows_the_changes(self, table: Table) -> None:
        table.catch_up()
        assert table.rows() == {1: {"id": 1, "n": 10}, 2: {"id": 2, "n": 20}}
        table.place.ask("INSERT INTO t VALUES (3, 30)")
        table.place.ask("UPDATE t SET n = 11 WHERE id = 1")
        table.place.ask("UPDATE t SET id = 4 WHERE id = 2")
        table.place.ask("DELETE FROM t WHERE id = 3")
        table.catch_up()
        assert table.rows() == {1: {"id": 1, "n": 11}, 4: {"id": 4, "n": 20}}
        kinds = [event["event"] for event in table.events]
        assert kinds[:2] == ["snapshot", "captured"] and set(kinds[2:]) == {"streaming"}

    def test_shows_each_transaction_whole(self, table: Table) -> None:
        table.catch_up()
        with psycopg.connect(table.place.dsn, options=f"-csearch_path={table.place.schema}") as db:
            for step in range(1, 6):
                db.execute("UPDATE t SET n = n - %s WHERE id = 1", (step,))
                db.execute("UPDATE t SET n = n + %s WHERE id = 2", (step,))
                db.commit()
        table.catch_up()
        assert {sum(row["n"] for row in rows.values()) for _, rows in tables(table.store)} == {30}
        assert table.rows()[1]["n"] == -5

    def test_leaves_out_what_was_rolled_back(self, table: Table) -> None:
        table.catch_up()
        table.place.ask(
            "BEGIN; INSERT INTO t VALUES (5, 1); SAVEPOINT s; INSERT INTO t VALUES (6, 1); ROLLBACK TO s; "
            "INSERT INTO t VALUES (7, 1); COMMIT; BEGIN; DELETE FROM t; ROLLBACK"
        )
        table.catch_up()
        assert sorted(table.rows()) == [1, 2, 5, 7]

    def test_stages_a_transaction_that_is_too_large_to_be_held(
        self, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.capture.postgres.stream.READ_BYTES", 1_000)
        table.catch_up()
        before = len(list(tables(table.store)))
        table.place.ask("INSERT INTO t SELECT i, i FROM generate_series(100, 1099) AS i")
        ((text,),) = table.place.ask("SELECT pg_current_wal_flush_lsn()::text")
        small = CaptureLimits(linger_ms=1, batch_bytes=1_000, stage_bytes=2_000, idle_bytes=1)
        table.capture(lambda: tag_lsn(table.store) >= lsn_of(text), small)
        assert len(table.rows()) == 1_002
        sizes = {len(rows) for _, rows in list(tables(table.store))[before:]}
        assert sizes <= {2, 1_002} and len(table.store.list("data")) > 10

    def test_every_type_has_the_same_value_from_the_snapshot_and_from_the_stream(self, place: PostgresPlace) -> None:
        place.ask("CREATE TYPE mood AS ENUM ('sad', 'glad')")
        place.ask(
            "CREATE TABLE t (id bigint, part text, small smallint, f4 real, f8 double precision, ok boolean, "
            "note varchar(20), at timestamptz, local timestamp, day date, raw bytea, price numeric(12,3), u uuid, "
            "doc jsonb, how mood, twice int GENERATED ALWAYS AS (small * 2) STORED, PRIMARY KEY (id, part))"
        )
        place.ask("ALTER TABLE t REPLICA IDENTITY FULL")
        values = (
            "'a', -3, 0.1, 0.1, true, E'tab\\tback\\\\ ä', '2026-01-31 10:00:00.000001+01', '2026-01-31 10:00', "
            "'2026-01-31', '\\x00ff', 1.5, '6f9b0f6e-0000-4000-8000-000000000001', '{\"a\": 1}', 'glad'"
        )
        nulls = "'a'" + ", NULL" * 13
        place.ask(f"INSERT INTO t VALUES (1, {values}), (2, {nulls})")
        table = Table(place)
        table.catch_up()
        place.ask(f"INSERT INTO t VALUES (3, {values}), (4, {nulls})")
        table.catch_up()
        rows = table.rows()
        assert {**rows[1], "id": 3} == rows[3] and {**rows[2], "id": 4} == rows[4]
        assert rows[4] == {**dict.fromkeys(rows[4]), "id": 4, "part": "a"} and "twice" not in rows[4]
        assert rows[3] == {
            "id": 3, "part": "a", "small": -3, "f4": 0.10000000149011612, "f8": 0.1, "ok": True,
            "note": "tab\tback\\ ä", "at": datetime(2026, 1, 31, 9, 0, 0, 1, UTC), "local": datetime(2026, 1, 31, 10),
            "day": date(2026, 1, 31), "raw": b"\x00\xff", "price": Decimal("1.500"),
            "u": "6f9b0f6e-0000-4000-8000-000000000001", "doc": '{"a": 1}', "how": "glad",
        }  # fmt: skip

    def test_values_of_types_without_an_arrow_type_are_the_servers_text(self, place: PostgresPlace) -> None:
        """The texts are those of the server's documentation: datatype.html, arrays.html, domains."""
        place.ask("CREATE TYPE mood AS ENUM ('sad', 'glad')")
        place.ask("CREATE TYPE pair AS (a int, b text)")
        place.ask("CREATE DOMAIN euros AS numeric(10,2) CHECK (VALUE >= 0)")
        place.ask("CREATE DOMAIN price AS euros NOT NULL")
        columns = {
            "n numeric": ("'1.500'", "1.500"),
            "nan numeric": ("'NaN'", "NaN"),
            "small numeric(3,5)": ("0.00999", Decimal("0.00999")),
            "round numeric(5,-2)": ("1234567", Decimal(1234600)),
            "at time": ("'24:00'", "24:00:00"),
            "zoned timetz": ("'10:00:00.5+01'", "10:00:00.5+01"),
            "took interval": ("'1 year 2 days 3.5 seconds'", "P1Y2DT3.5S"),
            "words text[]": ("ARRAY['a b', NULL, 'c\"d']", '{"a b",NULL,"c\\"d"}'),
            "grid int[]": ("ARRAY[[1,2],[3,4]]", "{{1,2},{3,4}}"),
            "host inet": ("'10.0.0.1/8'", "10.0.0.1/8"),
            "cost money": ("12.5", "$12.50"),
            "bits bit(4)": ("B'0101'", "0101"),
            "during tstzrange": ("'[2026-01-01 00:00+00, 2026-01-02 00:00+00)'",
                                 '["2026-01-01 00:00:00+00","2026-01-02 00:00:00+00")'),
            "spot point": ("'(1,2.5)'", "(1,2.5)"),
            "twins pair": ("ROW(1, 'x y')", '(1,"x y")'),
            "moods mood[]": ("ARRAY['glad'::mood]", "{glad}"),
            "owed price": ("3.5", Decimal("3.50")),
        }  # fmt: skip
        place.ask(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)})")
        place.ask("ALTER TABLE t REPLICA IDENTITY FULL")
        given = ", ".join(value for value, _ in columns.values())
        place.ask(f"INSERT INTO t VALUES (1, {given})")
        table = Table(place)
        table.catch_up()
        place.ask(f"INSERT INTO t VALUES (2, {given})")
        table.catch_up()
        expected = {each.split()[0]: value for each, (_, value) in columns.items()}
        assert table.rows() == {n: {"id": n, **expected} for n in (1, 2)}

    def test_has_the_columns_that_are_wanted_whatever_happens_to_others(self, place: PostgresPlace) -> None:
        place.ask("CREATE TABLE t (secret text, n int, id int PRIMARY KEY)")
        place.ask("ALTER TABLE t REPLICA IDENTITY FULL")
        place.ask("INSERT INTO t VALUES ('x', 10, 1)")
        table = Table(place, columns=["id", "n"])
        table.catch_up()
        place.ask("INSERT INTO t VALUES ('y', 20, 2)")
        place.ask("ALTER TABLE t ADD COLUMN more int, ALTER COLUMN secret TYPE varchar(9)")
        place.ask("INSERT INTO t VALUES ('z', 30, 3, 4); UPDATE t SET n = 11, secret = 'w' WHERE id = 1")
        table.catch_up()
        assert table.rows() == {n: {"n": value, "id": n} for n, value in ((1, 11), (2, 20), (3, 30))}
        place.ask("ALTER TABLE t ALTER COLUMN n TYPE text; INSERT INTO t VALUES ('z', '30', 4, 4)")
        with pytest.raises(ConfigError, match="has the columns") as stopped:
            table.catch_up()
        assert "another log" in stopped.value.next_step

    @pytest.mark.parametrize(
        ("columns", "said"),
        [(["id", "m"], "has no column 'm'"), (["n"], "leaves out 'id'"), (["id", "twice"], "'twice'")],
    )
    def test_a_capture_of_columns_that_cannot_be_selected_is_refused(
        self, place: PostgresPlace, columns: list[str], said: str
    ) -> None:
        place.ask("CREATE TABLE t (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED)")
        with pytest.raises(ConfigError, match=said):
            Table(place, columns=columns).catch_up()

    def test_capture_stops_when_another_table_inherits_from_the_captured_one(self, table: Table) -> None:
        """Rows of the other table are in no answer to a query of this one, and in no change of it."""
        table.catch_up()
        before, asked = table.rows(), list[Any]()

        def inherited() -> bool:
            if not asked and table.events[-1]["event"] == "streaming":
                asked.append(table.place.ask("CREATE TABLE child () INHERITS (t)"))
                table.place.ask("INSERT INTO child VALUES (7, 70); INSERT INTO t VALUES (8, 80)")
            return False

        with pytest.raises(ConfigError, match="a table that inherits from it") as stopped:
            table.capture(inherited)
        assert "NO INHERIT" in stopped.value.next_step and table.rows() == before

    def test_keeps_a_long_value_that_an_update_leaves(self, place: PostgresPlace) -> None:
        place.ask("CREATE TABLE t (id int PRIMARY KEY, n int, long text)")
        place.ask("ALTER TABLE t REPLICA IDENTITY FULL")
        place.ask("ALTER TABLE t ALTER COLUMN long SET STORAGE EXTERNAL")
        place.ask("INSERT INTO t VALUES (1, 1, repeat('x', 100000))")
        table = Table(place)
        table.catch_up()
        place.ask("UPDATE t SET n = 2")
        place.ask("UPDATE t SET id = 7")
        table.catch_up()
        assert table.rows() == {7: {"id": 7, "n": 2, "long": "x" * 100_000}}


class TestSlot:
    def test_is_that_of_the_log_and_never_before_the_tag(self, table: Table) -> None:
        table.catch_up()
        table.place.ask("INSERT INTO t VALUES (3, 30)")
        table.catch_up()
        ((_, confirmed),) = table.slots()
        assert lsn_of(confirmed) <= tag_lsn(table.store)

    def test_the_slot_of_an_idle_table_follows_the_server(self, table: Table) -> None:
        table.catch_up()
        commits = len(list(tables(table.store)))
        table.place.ask("CREATE TABLE busy AS SELECT i FROM generate_series(1, 20000) AS i")
        ((text,),) = table.place.ask("SELECT pg_current_wal_flush_lsn()::text")
        table.capture(lambda: tag_lsn(table.store) >= lsn_of(text), CaptureLimits(linger_ms=1, idle_bytes=4_096))
        assert len(table.rows()) == 2 and len(list(tables(table.store))) > commits

    def test_a_missing_slot_is_reported_and_the_log_is_unchanged(self, table: Table) -> None:
        table.catch_up()
        rows = table.rows()
        table.release()
        table.place.ask("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        table.place.ask("INSERT INTO t VALUES (3, 30)")
        with pytest.raises(ConfigError, match="is missing: it was dropped") as refused:
            table.catch_up()
        assert "another log" in refused.value.next_step and table.rows() == rows

    def test_a_slot_advanced_by_another_program_is_reported(self, table: Table) -> None:
        table.catch_up()
        table.place.ask("INSERT INTO t VALUES (3, 30)")
        table.release()
        table.place.ask(
            "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn()) FROM pg_replication_slots"
        )
        with pytest.raises(ConfigError, match="was advanced by another program"):
            table.catch_up()

    def test_a_slot_read_by_another_program_is_reported(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.capture.postgres.process.SLOT_WITHIN_S", 0.0)
        table.catch_up()
        table.release()
        table.place.ask("INSERT INTO t VALUES (3, 30)")
        ((slot, _),) = table.slots()
        with closing(psycopg.connect(f"{table.place.dsn} replication=database", autocommit=True)) as db:
            ((publication,),) = table.place.ask(
                f"SELECT pubname FROM pg_publication_tables WHERE schemaname = '{table.place.schema}'"
            )
            db.pgconn.send_query(
                f"START_REPLICATION SLOT \"{slot}\" LOGICAL 0/0 (proto_version '1', "
                f"publication_names '\"{publication}\"')".encode()
            )
            db.pgconn.get_result()
            with pytest.raises(Unavailable, match="is in use by the server process"):
                table.catch_up()

    def test_the_slot_of_a_table_with_a_value_that_cannot_be_captured_is_dropped(self, place: PostgresPlace) -> None:
        """The user may give the table up; the server would keep its log for the slot until its disk is full."""
        place.ask("CREATE TABLE t (id int PRIMARY KEY, n numeric(10, 2))")
        place.ask("INSERT INTO t VALUES (1, 'NaN')")
        table = Table(place)
        with pytest.raises(ConfigError, match="the column 'n' has a value that"):
            table.capture(lambda: False)
        assert table.slots() == []
        place.ask("UPDATE t SET n = 1.5")
        table.catch_up()
        assert table.rows() == {1: {"id": 1, "n": Decimal("1.50")}} and len(table.slots()) == 1

    def test_the_slot_of_an_interrupted_snapshot_is_dropped(self, table: Table) -> None:
        with pytest.raises(Interrupted):
            interrupted(table).run()
        assert len(table.slots()) == 1 and tag_lsn(table.store) == 0
        table.place.ask("DELETE FROM t WHERE id = 1")
        table.catch_up()
        assert table.rows() == {2: {"id": 2, "n": 20}}
        ((slot, _),) = table.slots()
        assert slot.endswith("_2")


class TestSnapshot:
    def test_keeps_the_form_of_the_table_until_its_rows_are_in(
        self, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows and changes would have different columns, and the log those of neither."""
        refused = list[str]()

        def meanwhile(*given: Any) -> Any:
            with pytest.raises(LockNotAvailable) as error:
                table.place.ask("SET lock_timeout = '10ms'; ALTER TABLE t ALTER n TYPE text")
            refused.append(str(error.value))
            return create_slot(*given)

        monkeypatch.setattr("holdfast.runtime.capture.postgres.process.create_slot", meanwhile)
        table.catch_up()
        assert len(refused) == 1 and table.rows() == {1: {"id": 1, "n": 10}, 2: {"id": 2, "n": 20}}
        table.place.ask("SET lock_timeout = '1s'; ALTER TABLE t ADD more int")


class Interrupted(Exception):
    pass


def interrupted(table: Table) -> PostgresCapture:
    """Return a capture that ends, as if killed, when it writes the first rows of the snapshot."""

    class Dying(MemoryObjects):
        def put(self, path: str, data: bytes) -> None:
            raise Interrupted

    dying = Dying()
    dying._objects = table.store._objects
    return PostgresCapture(table.of, dying, table.events.append, Until(lambda: False), EAGER)


class TestRefusedTables:
    @pytest.mark.parametrize(
        ("created", "said", "advice"),
        [
            ("CREATE TABLE t (id int)", "has no primary key", "ADD PRIMARY KEY"),
            ("CREATE TABLE t (id int PRIMARY KEY, v text)", "columns that can be long", "REPLICA IDENTITY FULL"),
            (
                "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u () INHERITS (t)",
                "inherits from it, test",
                "NO INHERIT",
            ),
            ("CREATE VIEW t AS SELECT 1 AS id", "no ordinary, permanent table", "one partition"),
            ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", "no ordinary, permanent table", "ordinary"),
            ("CREATE TABLE u (id int PRIMARY KEY)", "does not exist", "correct tables"),
            ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", "NOTHING", "FULL"),
        ],
    )
    def test_are_named_with_what_to_do(self, place: PostgresPlace, created: str, said: str, advice: str) -> None:
        place.ask(created)
        with pytest.raises(ConfigError) as refused:
            Table(place).catch_up()
        assert said in refused.value.what and advice in refused.value.next_step
        assert place.ask("SELECT count(*) FROM pg_replication_slots") == [(0,)]


class TestChangedTables:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ("TRUNCATE t", "was truncated"),
            ("ALTER TABLE t ADD COLUMN more int; INSERT INTO t VALUES (9, 9, 9)", "has changed while it was captured"),
            ("ALTER TABLE t ALTER COLUMN n TYPE bigint; INSERT INTO t VALUES (9, 9)", "the type of n was changed"),
        ],
    )
    def test_stop_after_everything_before(self, table: Table, change: str, said: str) -> None:
        table.catch_up()
        source = TableAt(table)
        table.place.ask("INSERT INTO t VALUES (3, 30)")
        table.place.ask(change)
        with pytest.raises(ConfigError) as stopped:
            source.run()
        assert said in stopped.value.what and "all before it are in the log" in stopped.value.not_done
        assert table.rows() == {1: {"id": 1, "n": 10}, 2: {"id": 2, "n": 20}, 3: {"id": 3, "n": 30}}

    @pytest.mark.parametrize(
        "change",
        ["DROP CONSTRAINT t_pkey", "DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)"],
    )
    def test_a_table_that_lost_its_key_is_detected_before_two_rows_become_one(self, table: Table, change: str) -> None:
        table.place.ask("ALTER TABLE t REPLICA IDENTITY FULL")
        table.catch_up()
        before, asked = table.rows(), list[Any]()

        def changed() -> bool:
            if not asked and table.events[-1]["event"] == "streaming":
                asked.append(table.place.ask(f"ALTER TABLE t {change}"))
                table.place.ask("INSERT INTO t VALUES (1, 11)")
            return False

        with pytest.raises(ConfigError, match=r'test_\d+.t has lost its primary key \("id"\)') as stopped:
            table.capture(changed)
        assert 'ADD PRIMARY KEY ("id"); else' in stopped.value.next_step
        assert table.rows() == before

    def test_are_refused_at_the_start_with_other_columns(self, table: Table) -> None:
        table.catch_up()
        table.place.ask("ALTER TABLE t ADD COLUMN more int")
        with pytest.raises(ConfigError, match="has the columns") as refused:
            table.catch_up()
        assert "another log" in refused.value.next_step


class TableAt:
    """A capture that had looked at the table before it was changed."""

    def __init__(self, table: Table) -> None:
        with connected(table.of.dsn, None) as db:
            self.known = described(db, table.of.schema, table.of.table)
        self.table = table

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.runtime.capture.postgres.process.described", lambda *_: self.known)
            self.table.capture(lambda: False)


class TestRefusedServers:
    def test_without_logical_wal(self, postgres: PostgresServer) -> None:
        place = postgres.place()
        place.ask("CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(ConfigError, match="wal_level is minimal, needed is logical") as refused:
            Table(place).catch_up()
        assert "ALTER SYSTEM SET wal_level = logical" in refused.value.next_step

    def test_by_a_user_without_the_right(self, logical_postgres: PostgresServer) -> None:
        place = logical_postgres.place(READER)
        with pytest.raises(NotAdmitted, match=f"the user {READER} has no right to replicate") as refused:
            Table(place).capture(lambda: False)
        assert f"ALTER ROLE {READER} REPLICATION" in refused.value.next_step

    def test_but_none_by_a_member_of_the_role_that_lets_users_of_amazon_rds_replicate(
        self, logical_postgres: PostgresServer
    ) -> None:
        """They have no attribute REPLICATION; the advice of the refusal has to cure it."""
        admin, place = logical_postgres.place(), logical_postgres.place(READER)
        admin.ask(f"CREATE ROLE {RDS_REPLICATION} NOLOGIN")
        try:
            with connected(place.dsn, None) as db, pytest.raises(NotAdmitted, match="no right") as refused:
                check_server(place.dsn, db)
            [granting] = re.findall(r"GRANT \w+ TO \w+", refused.value.next_step)
            admin.ask(granting)
            with connected(place.dsn, None) as db:
                check_server(place.dsn, db)
        finally:
            admin.ask(f"DROP ROLE {RDS_REPLICATION}")

    def test_by_a_wrong_password(self, logical_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WRONG", "not the password")
        place = logical_postgres.place(GUARDED)
        with pytest.raises(NotAdmitted, match="did not let this user in") as refused:
            Table(place, password=hf.secret("env:WRONG")).capture(lambda: False)
        assert "not the password" not in str(refused.value) and PASSWORD not in str(refused.value)

    def test_an_unreachable_server_is_unavailable(self) -> None:
        place = PostgresPlace("host=/nowhere dbname=none user=none", "public")
        with pytest.raises(Unavailable):
            Table(place).capture(lambda: False)

    def test_without_the_publication(self, table: Table) -> None:
        other = Table(table.place, publication="missing")
        with pytest.raises(ConfigError, match="there is no publication 'missing'") as refused:
            other.catch_up()
        assert 'CREATE PUBLICATION "missing" FOR TABLE' in refused.value.next_step

    @pytest.mark.parametrize("change", ["DROP PUBLICATION {0}", "ALTER PUBLICATION {0} DROP TABLE t"])
    def test_whose_publication_has_lost_the_table_since(self, table: Table, change: str) -> None:
        name = f"lost_{table.place.schema}"
        table.place.ask(f"CREATE PUBLICATION {name} FOR TABLE t")
        table = Table(table.place, publication=name)
        table.catch_up()
        table.place.ask(change.format(name))
        table.place.ask("INSERT INTO t VALUES (3, 30)")
        with pytest.raises(ConfigError, match=name) as refused:
            table.catch_up()
        assert refused.value.next_step.startswith("changes are missing from the stream")

    @pytest.mark.parametrize(
        ("again", "said"),
        [("", "leaves out rows or columns"), ("ALTER PUBLICATION {0} SET TABLE t", "was changed while it was read")],
    )
    def test_whose_publication_is_narrowed_while_it_is_read(self, table: Table, again: str, said: str) -> None:
        """What it leaves out is never sent, also if it is widened again: the capture stops before the log has a gap."""
        name = f"narrowed_{table.place.schema}"
        table.place.ask(f"CREATE PUBLICATION {name} FOR TABLE t")
        table = Table(table.place, publication=name)
        table.catch_up()
        table.release()
        before, narrowed = tag_lsn(table.store), list[str]()

        def reached() -> bool:
            if not narrowed and any(each["event"] == "streaming" for each in table.events[-1:]):
                narrowed.append(name)
                table.place.ask(f"ALTER PUBLICATION {name} SET TABLE t WHERE (id > 100)")
                table.place.ask("INSERT INTO t VALUES (3, 30)")
                if again:
                    table.place.ask(again.format(name))
                table.place.ask("INSERT INTO t VALUES (101, 0)")
            return 101 in table.rows()

        with pytest.raises(ConfigError, match=said) as refused:
            table.capture(reached)
        assert narrowed and tag_lsn(table.store) == before and 101 not in table.rows()
        assert refused.value.next_step.startswith("changes are missing from the stream")

    def test_whose_publication_was_narrowed_since_is_not_advised_to_hide_the_gap(self, table: Table) -> None:
        name = f"narrow_{table.place.schema}"
        table.place.ask(f"CREATE PUBLICATION {name} FOR TABLE t")
        table = Table(table.place, publication=name)
        table.catch_up()
        for change in ("SET TABLE t WHERE (id > 100)", "SET (publish = 'insert')"):
            table.place.ask(f"ALTER PUBLICATION {name} {change}")
            with pytest.raises(ConfigError, match=name) as refused:
                table.catch_up()
            assert refused.value.next_step.startswith("changes are missing from the stream")

    @pytest.mark.parametrize(
        ("form", "said"),
        [
            ("", "does not have the table"),
            ("FOR TABLE t WITH (publish = 'insert')", "lacks inserts, updates"),
            ("FOR TABLE t (id)", "leaves out rows or columns"),
            ("FOR TABLE t WHERE (id > 1)", "leaves out rows or columns"),
        ],
    )
    def test_with_a_publication_that_leaves_something_out(self, table: Table, form: str, said: str) -> None:
        name = f"part_{table.place.schema}"
        table.place.ask(f"CREATE PUBLICATION {name} {form}")
        with pytest.raises(ConfigError, match=said):
            Table(table.place, publication=name).catch_up()


class TestDoctor:
    def test_sees_that_a_table_can_be_captured_and_later_how_far_it_is(self, table: Table) -> None:
        assert probed(table.of, table.store) == "can be captured"
        assert table.slots() == [] and read_meta(table.store) is None
        table.catch_up()
        table.release()
        assert re.fullmatch(r"no process captures it now, [0-9,]+ bytes behind", probed(table.of, table.store))

    def test_names_what_is_missing(self, table: Table) -> None:
        with pytest.raises(ConfigError, match="there is no publication 'missing'"):
            probed(Table(table.place, publication="missing").of, table.store)
        table.catch_up()
        table.release()
        table.place.ask("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        with pytest.raises(ConfigError, match="is missing"):
            probed(table.of, table.store)

    def test_names_missing_permissions_as_a_capture_does(self, table: Table, replicator: PostgresPlace) -> None:
        schema, reading = replicator.schema, Table(replicator)
        grants = [
            f'GRANT USAGE ON SCHEMA "{schema}" TO "replicator"',
            f'GRANT SELECT ON "{schema}"."t" TO "replicator"',
        ]
        with connected(table.of.dsn, None) as db:
            publication = publication_of(described(db, schema, "t"))
        created = f'CREATE PUBLICATION "{publication}" FOR TABLE "{schema}"."t"'
        for statements in (grants, grants[1:], [created]):
            for looks in (lambda: probed(reading.of, reading.store), lambda: reading.capture(lambda: False)):
                with pytest.raises(NotAdmitted) as refused:
                    looks()
                assert refused.value.next_step.endswith(f": {'; '.join(statements)}")
            table.place.ask(statements[0])
        assert probed(reading.of, reading.store) == "can be captured"
        reading.catch_up()
        assert reading.rows() == {1: {"id": 1, "n": 10}, 2: {"id": 2, "n": 20}}


class TestJobs:
    def test_see_the_columns_of_the_table_until_there_is_a_log(self, table: Table) -> None:
        source = hf.PostgresChanges(table.place.dsn, f"{table.place.schema}.t", hf.Log("memory://none")).source()
        assert source.schema.names == ["holdfast_deleted", "id", "n"]
        with pytest.raises(ConfigError, match="nothing was captured yet"):
            source.check()
