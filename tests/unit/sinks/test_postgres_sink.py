"""What only Postgres has: its types, names, errors, and transactions that run at the same time.

The contracts of all targets run in tests/contract.
"""

from __future__ import annotations

import math
import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from postgres_server import GUARDED, PASSWORD, READER, PostgresPlace, PostgresServer

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, Fenced, HoldfastError, NotAdmitted, Unavailable
from holdfast.model import Epoch, Generation, Subtask, Tag, Timeline, Writer
from holdfast.secrets import Secret
from holdfast.sinks.contract.audited import AuditQuery
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, FaultPoint
from holdfast.sinks.postgres.errors import meaning_of, said_by
from holdfast.sinks.postgres.sink import Postgres
from holdfast.sinks.sql import audit
from holdfast.sinks.sql.target import SqlTarget
from holdfast.sinks.sql.values import from_json

JOB, LEFT, RIGHT = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0)), Writer("out", Subtask(1))
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
SECRET = "open sesame"
EVERY_TYPE = pa.schema(
    [
        pa.field("small", pa.uint32()),
        pa.field("real", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field('te"xt %s $1', pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
    ]
)
ROWS: list[tuple[Any, ...]] = [
    (1, -0.0, True, "it's\t\\N \\. ä😀", datetime(2026, 1, 31, 9, 30, 0, 7, UTC), date(2026, 1, 31), b"\x00\xff"),
    (4_294_967_295, math.nan, False, "", datetime(1, 1, 1, tzinfo=UTC), date(9999, 12, 31), b""),
    (2, math.inf, None, None, None, None, None),
    (3, 0.1 + 0.2, None, "%", datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), date(1, 1, 1), b"%"),
]


def tag(epoch: int, timeline: int = 1) -> Tag:
    return Tag(Timeline(timeline), Epoch(epoch))


def batch(*rows: tuple[Any, ...], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.record_batch(columns, schema=schema)


@pytest.fixture
def place(postgres: PostgresServer) -> PostgresPlace:
    return postgres.place()


@pytest.fixture
def table(place: PostgresPlace) -> Postgres:
    sink: Postgres = place.sink("users", ("user",))
    sink.prepare(SCHEMA, None)
    return sink


def deliver(sink: Postgres, epoch: int, *rows: tuple[Any, ...], writer: Writer = LEFT) -> object:
    with closing(sink.open(JOB, writer)) as target:
        return target.deliver(tag(epoch), [batch(*rows)])


def refused(sink: Postgres, kind: type[HoldfastError] = ConfigError) -> str:
    with pytest.raises(HoldfastError) as error:
        sink.prepare(SCHEMA, None)
    assert type(error.value) is kind
    return str(error.value)


class TestValues:
    def test_values_of_every_type_are_stored_as_they_are(self, place: PostgresPlace) -> None:
        sink = place.sink("every", ("small",))
        sink.prepare(EVERY_TYPE, None)
        with closing(sink.open(JOB, LEFT)) as target:
            target.deliver(tag(1), [batch(*ROWS, schema=EVERY_TYPE)])
        found = place.ask("TABLE every ORDER BY array_position(ARRAY[1, 4294967295, 2, 3], small)")
        assert [list(map(str, row)) for row in found] == [list(map(str, row)) for row in ROWS]

    def test_a_before_image_has_every_value(self, place: PostgresPlace) -> None:
        sink = place.sink("every", ("small",))
        sink.prepare(EVERY_TYPE, None)
        with closing(sink.open(JOB, LEFT)) as target:
            for epoch in (1, 2):
                target.deliver(tag(epoch), [batch(*ROWS, schema=EVERY_TYPE)])
        images = place.ask("SELECT key, before FROM holdfast_undo WHERE epoch = 2 ORDER BY n")
        first, *_, last = [{**from_json(key), **from_json(before)} for key, before in images]
        assert first == {
            "small": 1,
            "real": -0.0,
            "flag": 1,
            'te"xt %s $1': "it's\t\\N \\. ä😀",
            "at": "2026-01-31T09:30:00.000007Z",
            "day": "2026-01-31",
            "raw": b"\x00\xff",
        }
        assert (str(first["real"]), str(last["real"])) == ("-0.0", "nan")

    def test_the_last_of_many_rows_with_one_key_stays(self, place: PostgresPlace, table: Postgres) -> None:
        deliver(table, 1, *((n % 3, f"row {n}") for n in range(3_000)))
        assert sorted(place.ask("TABLE users")) == [(0, "row 2997"), (1, "row 2998"), (2, "row 2999")]

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
    def test_a_text_with_nul_is_refused_before_it_is_staged(self, kind: pa.DataType) -> None:
        table, schema = Postgres("host=db", "t"), pa.schema([pa.field("user", pa.int64()), pa.field("name", kind)])
        table.accept(batch((1, "ab"), schema=schema))
        with pytest.raises(ConfigError, match="the column 'name' holds a text with the character NUL"):
            table.accept(batch((1, "a\x00b"), schema=schema))


class TestNames:
    @pytest.mark.parametrize("name", ["xmin", "_holdfast_row"])
    def test_a_column_of_the_server_is_refused_when_the_job_is_planned(self, table: Postgres, name: str) -> None:
        with pytest.raises(ConfigError, match=f"the name '{name}' of a column is reserved"):
            table.check(SCHEMA.append(pa.field(name, pa.int64())), None)

    def test_a_schema_whose_name_would_be_cut_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="cuts names at 63"):
            Postgres("host=db", "t", schema="s" * 64).check(SCHEMA, None)

    def test_the_connector_has_a_name_and_can_be_sent_to_a_worker(self) -> None:
        made = hf.connector("postgres", "postgresql://app@db.example:5433/sales", "t", key="user")
        assert made == Postgres("postgresql://app@db.example:5433/sales", "t", ["user"])
        assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301
        assert made.where == "Postgres db.example:5433/sales, table 'public'.'t'"


class TestSecrets:
    @pytest.mark.parametrize(
        "dsn", [f"postgresql://app:{SECRET}@db/x", f"host=db password='{SECRET}'", f"postgresql://a:{SECRET}@h:no/x"]
    )
    def test_a_password_in_the_connection_string_is_refused_and_not_repeated(self, dsn: str) -> None:
        with pytest.raises(ConfigError) as error:
            hf.Postgres(dsn.replace(" ", "%20") if "://a:" not in dsn and "://" in dsn else dsn, "t")
        assert "sesame" not in f"{error.value!r} {error.value} {error.value.__cause__}"

    @pytest.mark.parametrize("given", ["env", "file", "PGPASSWORD"])
    def test_a_refused_password_is_reported_without_it(
        self, postgres: PostgresServer, given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "password").write_text(SECRET)
        monkeypatch.setenv("PGPASSWORD" if given == "PGPASSWORD" else "PG_PASSWORD", SECRET)
        places = {"env": hf.secret("env:PG_PASSWORD"), "file": hf.secret(f"file:{tmp_path}/password")}
        said = refused(guarded(postgres, places.get(given)), NotAdmitted)
        assert "the server did not let this user in" in said and SECRET not in said

    def test_a_process_without_a_password_is_named(self, postgres: PostgresServer) -> None:
        said = refused(guarded(postgres, None))
        assert f"the process on {socket.gethostname()} has none" in said
        assert "hf.secret" in said and "PGPASSWORD" in said

    def test_one_is_read_for_each_connection(self, postgres: PostgresServer, tmp_path: Path) -> None:
        file, secret = tmp_path / "password", hf.secret(f"file:{tmp_path}/password")
        file.write_text(f"{PASSWORD}\n")
        sink = guarded(postgres, secret)
        sink.prepare(SCHEMA, None)
        with closing(sink.open(JOB, LEFT)) as target:
            target.deliver(tag(1), [batch((1, "ann"))])
            end_connections(postgres)
            with pytest.raises(Unavailable):
                target.deliver(tag(2), [batch((2, "bea"))])
            refusals = {SECRET: "password authentication failed", "": f"{file}, which a secret names, is empty"}
            for replaced, what in refusals.items():
                file.write_text(replaced)
                with pytest.raises(NotAdmitted, match=what):
                    target.deliver(tag(2), [batch((2, "bea"))])
            file.write_text(PASSWORD)
            assert target.deliver(tag(2), [batch((2, "bea"))]) == Delivered(1)

    def test_a_missing_one_is_named_where_a_worker_connects(
        self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PG_PASSWORD", PASSWORD)
        sink = guarded(postgres, hf.secret("env:PG_PASSWORD"))
        sink.prepare(SCHEMA, None)
        monkeypatch.delenv("PG_PASSWORD")
        with closing(sink.open(JOB, LEFT)) as target, pytest.raises(ConfigError, match="variable PG_PASSWORD") as error:
            target.deliver(tag(1), [batch((1, "ann"))])
        assert f"is not set on {socket.gethostname()}" in error.value.what

    def test_one_in_the_code_is_refused_and_not_repeated(self) -> None:
        with pytest.raises(ConfigError, match=r"^hf.Postgres\(password=\) is not an hf.secret") as error:
            hf.Postgres("postgresql://app@db/x", "t", password=SECRET)  # type: ignore[arg-type]
        assert SECRET not in f"{error.value!r}"

    def test_a_sink_shows_none_and_says_in_its_traits_that_it_reads_one(self) -> None:
        secret = hf.secret("env:PG_PASSWORD")
        sink = hf.Postgres("postgresql://app@db/x", "t", ["user"], "idempotent", password=secret)
        assert "password=***" in repr(sink) and "PG_PASSWORD" not in repr(sink)
        assert sink.immediate is not None and sink.traits.secrets == sink.immediate.traits.secrets == (secret,)
        assert hf.Postgres("postgresql://app@db/x", "t").traits.secrets == ()


def guarded(postgres: PostgresServer, password: Secret | None) -> Postgres:
    """Return a table of the role that needs a password, in an empty schema of its own."""
    place = postgres.place(GUARDED)
    PostgresPlace(postgres.dsn(), place.schema).ask(f"GRANT ALL ON SCHEMA {place.schema} TO {GUARDED}")
    return Postgres(place.dsn, "users", None, schema=place.schema, password=password)


def end_connections(postgres: PostgresServer) -> None:
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'"
    PostgresPlace(postgres.dsn(), "public").ask(ended)


class TestRefusals:
    def test_a_database_that_does_not_exist(self, postgres: PostgresServer) -> None:
        assert "the database is missing: connection" in refused(Postgres(postgres.dsn(database="nowhere"), "t"))

    def test_a_schema_that_does_not_exist(self, postgres: PostgresServer) -> None:
        said = refused(Postgres(postgres.dsn(), "t", schema="nowhere"))
        assert 'the schema is missing: schema "nowhere" does not exist' in said

    def test_a_user_without_permission(self, postgres: PostgresServer) -> None:
        place = postgres.place(READER)
        said = refused(place.sink("t", None), NotAdmitted)
        assert f"this user lacks a permission: permission denied for schema {place.schema}" in said
        assert "USAGE and CREATE on the schema" in said

    @pytest.mark.parametrize(
        ("key", "granted", "missing"),
        [
            (("user",), "SELECT, INSERT", "UPDATE, DELETE"),
            (("user",), "INSERT (name), SELECT, UPDATE, DELETE", "INSERT"),
            (None, "SELECT", "INSERT"),
        ],
    )
    def test_a_user_who_may_not_write_an_existing_table(
        self, postgres: PostgresServer, place: PostgresPlace, key: tuple[str, ...] | None, granted: str, missing: str
    ) -> None:
        """The server refuses a statement only when it runs, and deliveries run after the commit of their epoch."""
        place.ask(f"GRANT ALL ON SCHEMA {place.schema} TO {READER}")
        place.ask(f'CREATE TABLE users ("user" bigint{" PRIMARY KEY" if key else ""}, name text)')
        place.ask(f"GRANT {granted} ON users TO {READER}")
        sink = Postgres(postgres.dsn(READER), "users", key, schema=place.schema)
        for refuses in (sink.probe, sink.prepare):
            with pytest.raises(NotAdmitted, match=f"lacks a permission: {missing} on {place.schema}.users[.]") as error:
                refuses(SCHEMA, None)
            assert error.value.next_step == f'grant it: GRANT {missing} ON "{place.schema}"."users" TO "{READER}"'
        place.ask(f"GRANT {missing} ON users TO {READER}")
        sink.prepare(SCHEMA, None)
        with closing(sink.open(JOB, LEFT)) as target:
            assert target.deliver(tag(1), [batch((1, "ann"))]) == Delivered(1)

    def test_a_user_who_may_not_write_the_tables_of_holdfast(
        self, postgres: PostgresServer, place: PostgresPlace, table: Postgres
    ) -> None:
        place.ask(f"GRANT ALL ON SCHEMA {place.schema} TO {READER}")
        place.ask(f"GRANT ALL ON ALL TABLES IN SCHEMA {place.schema} TO {READER}")
        place.ask(f"REVOKE DELETE ON holdfast_undo FROM {READER}")
        sink = Postgres(postgres.dsn(READER), "users", ("user",), schema=place.schema)
        assert f"lacks a permission: DELETE on {place.schema}.holdfast_undo" in refused(sink, NotAdmitted)

    def test_a_user_needs_no_right_to_a_table_of_holdfast_that_only_others_use(
        self, postgres: PostgresServer, place: PostgresPlace, table: Postgres
    ) -> None:
        place.ask(f"GRANT ALL ON SCHEMA {place.schema} TO {READER}")
        place.ask(f"GRANT ALL ON ALL TABLES IN SCHEMA {place.schema} TO {READER}")
        place.sink("tagged", ("user",), delivery="idempotent").prepare(SCHEMA, None)
        Postgres(postgres.dsn(READER), "users", ("user",), schema=place.schema).prepare(SCHEMA, None)
        tagged = Postgres(postgres.dsn(READER), "own", ("user",), schema=place.schema, delivery="idempotent")
        assert f"on {place.schema}.holdfast_tombstone" in refused(tagged, NotAdmitted)

    def test_a_user_who_may_not_create_temporary_tables(self, postgres: PostgresServer) -> None:
        owner = PostgresPlace(postgres.dsn(), "public")
        owner.ask("CREATE DATABASE without_temporary")
        try:
            owner.ask("REVOKE TEMPORARY ON DATABASE without_temporary FROM PUBLIC")
            owner = PostgresPlace(postgres.dsn(database="without_temporary"), "public")
            owner.ask(f"GRANT ALL ON SCHEMA public TO {READER}")
            said = refused(Postgres(postgres.dsn(READER, "without_temporary"), "users"), NotAdmitted)
            assert "lacks a permission: TEMPORARY on the database without_temporary" in said
        finally:
            PostgresPlace(postgres.dsn(), "public").ask("DROP DATABASE without_temporary WITH (FORCE)")

    def test_a_table_with_other_columns(self, place: PostgresPlace) -> None:
        place.ask('CREATE TABLE users ("user" integer PRIMARY KEY, "Name" text)')
        said = refused(place.sink("users", ("user",)))
        assert "'name' is missing; 'Name' is not a column of the stream" in said
        assert "'user' is declared integer, needed is bigint" in said

    def test_a_primary_key_that_holds_other_columns_too_is_that_of_its_own_columns(self, place: PostgresPlace) -> None:
        place.ask('CREATE TABLE users ("user" bigint, name text, PRIMARY KEY ("user") INCLUDE (name))')
        sink = place.sink("users", ("user",))
        sink.prepare(SCHEMA, None)
        assert deliver(sink, 1, (1, "ann")) == Delivered(1)

    def test_a_deferrable_primary_key_is_none(self, place: PostgresPlace) -> None:
        place.ask('CREATE TABLE users ("user" bigint PRIMARY KEY DEFERRABLE, name text)')
        assert "its primary key is [], the sink's key is ['user']" in refused(place.sink("users", ("user",)))

    @pytest.mark.parametrize(("made", "kind"), [("UNLOGGED TABLE", "table that is not kept"), ("VIEW", "view")])
    def test_what_is_no_table_or_loses_its_rows(self, place: PostgresPlace, made: str, kind: str) -> None:
        columns = "AS SELECT 1::bigint AS \"user\", 'x'::text AS name"
        place.ask(f"CREATE {made} users {columns}")
        assert f"is a {kind}" in refused(place.sink("users", None))

    def test_a_row_that_the_table_never_takes_is_reported_without_its_values(
        self, place: PostgresPlace, table: Postgres
    ) -> None:
        place.ask("ALTER TABLE users ADD CONSTRAINT short CHECK (length(name) < 5)")
        with pytest.raises(ConfigError, match='violates check constraint "short"') as error:
            deliver(table, 1, (1, "a private name"))
        assert "private" not in str(error.value) and place.ask("TABLE holdfast_progress") == []


class TestProbe:
    """What `holdfast doctor JOB.py` finds: all that a start would refuse, without leaving anything behind."""

    def test_a_missing_table_is_not_created(self, place: PostgresPlace) -> None:
        assert place.sink("users", None).probe(SCHEMA, None) == "the first start creates the table"
        assert place.ask(f"SELECT tablename FROM pg_tables WHERE schemaname = '{place.schema}'") == []

    def test_an_existing_table_is_compared(self, place: PostgresPlace, table: Postgres) -> None:
        assert table.probe(SCHEMA, None) == "the table exists and fits the stream"
        with pytest.raises(ConfigError, match="'more' is missing"):
            table.probe(SCHEMA.append(pa.field("more", pa.int64())), None)

    def test_a_missing_schema_or_permission_is_found(self, postgres: PostgresServer) -> None:
        with pytest.raises(ConfigError, match="the schema is missing"):
            Postgres(postgres.dsn(), "t", schema="nowhere").probe(SCHEMA, None)
        with pytest.raises(NotAdmitted, match="this user lacks a permission"):
            postgres.place(READER).sink("t", None).probe(SCHEMA, None)


class TestMeaning:
    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            *(("40001", Unavailable), ("40P01", Unavailable), ("55P03", Unavailable), ("57P01", Unavailable)),
            *(("53100", Unavailable), ("25006", Unavailable), ("55000", ConfigError), ("23505", ConfigError)),
            *(("42501", NotAdmitted), ("XX001", Damaged), ("28P01", NotAdmitted), ("28000", NotAdmitted)),
        ],
    )
    def test_a_code_says_who_acts(self, code: str, kind: type[HoldfastError]) -> None:
        assert type(meaning_of("here", psycopg.errors.lookup(code)("said"))) is kind

    def test_lines_of_the_client_become_sentences(self) -> None:
        given = (
            'connection to server at "db", port 5432 failed: server closed the connection unexpectedly\n'
            "\tThis probably means the server terminated abnormally\n\tbefore or while processing the request.\n"
        )
        assert said_by(psycopg.OperationalError(given)) == (
            'connection to server at "db", port 5432 failed: server closed the connection unexpectedly. '
            "This probably means the server terminated abnormally before or while processing the request."
        )

    def test_a_code_that_only_a_mistake_of_ours_leads_to_has_none(self) -> None:
        assert meaning_of("here", psycopg.errors.ActiveSqlTransaction("said")) is None


class TestUnavailable:
    def test_a_read_only_server_is_unavailable(self, place: PostgresPlace) -> None:
        read_only = f"{place.dsn} options='-cdefault_transaction_read_only=on'"
        with pytest.raises(Unavailable, match="the server is read-only"):
            Postgres(read_only, "users", schema=place.schema).prepare(SCHEMA, None)

    def test_delivery_resumes_when_the_server_is_back(
        self, postgres: PostgresServer, place: PostgresPlace, table: Postgres
    ) -> None:
        target = table.open(JOB, LEFT)
        target.deliver(tag(1), [batch((1, "ann"))])
        postgres.stop()
        try:
            for _ in range(2):  # a broken connection, and one that cannot be opened
                with pytest.raises(Unavailable):
                    target.deliver(tag(2), [batch((2, "bea"))])
            with pytest.raises(Unavailable, match="check that the server runs") as error:
                table.prepare(SCHEMA, None)
            assert error.value.exit_status == 5
        finally:
            postgres.start()
        assert target.delivered() == tag(1) and target.deliver(tag(2), [batch((2, "bea"))]) == Delivered(1)
        assert sorted(place.ask("TABLE users")) == [(1, "ann"), (2, "bea")]
        target.close()

    def test_delivery_waits_while_a_permission_is_taken_away(
        self, postgres: PostgresServer, place: PostgresPlace
    ) -> None:
        owner = PostgresPlace(postgres.dsn(), place.schema)
        owner.ask(f"GRANT ALL ON SCHEMA {place.schema} TO {READER}")
        sink = Postgres(postgres.dsn(READER), "users", ("user",), schema=place.schema)
        sink.prepare(SCHEMA, None)
        with closing(sink.open(JOB, LEFT)) as target:
            target.deliver(tag(1), [batch((1, "ann"))])
            owner.ask(f"REVOKE ALL ON users FROM {READER}")
            with pytest.raises(NotAdmitted, match="this user lacks a permission: permission denied for table users"):
                target.deliver(tag(2), [batch((2, "bea"))])
            owner.ask(f"GRANT ALL ON users TO {READER}")
            assert target.deliver(tag(2), [batch((2, "bea"))]) == Delivered(1)

    def test_a_session_that_an_operator_ends_is_opened_again(self, place: PostgresPlace, table: Postgres) -> None:
        target = table.open(JOB, LEFT)
        target.deliver(tag(1), [batch((1, "ann"))])
        place.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'")
        with pytest.raises(Unavailable):
            target.deliver(tag(2), [batch((2, "bea"))])
        assert target.deliver(tag(2), [batch((2, "bea"))]) == Delivered(1)
        target.close()


class TestAtTheSameTime:
    @pytest.fixture
    def others(self) -> Iterator[ThreadPoolExecutor]:
        with ThreadPoolExecutor(1) as threads:
            yield threads

    def test_a_zombie_that_waits_for_the_tag_of_its_successor_adds_nothing(
        self, place: PostgresPlace, others: ThreadPoolExecutor
    ) -> None:
        sink = place.sink("users", None)
        sink.prepare(SCHEMA, None)
        started: list[Future[object]] = []

        def while_the_tag_is_locked(point: FaultPoint) -> None:
            if point == "after_tag":
                started.append(others.submit(deliver, sink, 1, (1, "ann")))
                while not place.ask("SELECT 1 FROM pg_locks WHERE NOT granted") and not started[0].done():
                    """Wait until the zombie waits."""

        with closing(SqlTarget(sink, JOB, LEFT, while_the_tag_is_locked)) as successor:
            assert successor.deliver(tag(1), [batch((1, "ann"))]) == Delivered(1)
        with pytest.raises(Unavailable):
            started[0].result()
        assert deliver(sink, 1, (1, "ann")) == AlreadyDelivered(tag(1))
        assert place.ask('SELECT users."user", name FROM users') == [(1, "ann")]

    def test_only_one_of_two_simultaneous_first_deliveries_gets_the_table(
        self, place: PostgresPlace, others: ThreadPoolExecutor
    ) -> None:
        sink = place.sink("users", ("user",))
        sink.prepare(SCHEMA, ("user",))
        started: list[Future[object]] = []

        def second() -> object:
            with closing(sink.open("another", LEFT, Claim("second", Generation(1)))) as target:
                return target.deliver(tag(1), [batch((2, "bea"))])

        def while_the_claim_is_not_committed(point: FaultPoint) -> None:
            if point == "after_tag":
                started.append(others.submit(second))
                while not place.ask("SELECT 1 FROM pg_locks WHERE NOT granted") and not started[0].done():
                    """Wait until the second one waits."""

        claim = Claim("first", Generation(1))
        with closing(SqlTarget(sink, JOB, LEFT, while_the_claim_is_not_committed, claim)) as first:
            assert first.deliver(tag(1), [batch((1, "ann"))]) == Delivered(1)
        with pytest.raises(Unavailable):
            started[0].result()
        with pytest.raises(Fenced, match="belongs to sink 'out' of another job"):
            second()
        assert place.ask('SELECT users."user", name FROM users') == [(1, "ann")]
        assert place.ask("SELECT job FROM holdfast_progress") == [(JOB,)]

    def test_an_audit_shows_one_moment_although_writers_continue(self, place: PostgresPlace) -> None:
        """Numbers of rows are drawn before the commit: rows that come later may have lower ones than those read."""
        sink = place.sink("users", None)
        sink.prepare(SCHEMA, None)
        with psycopg.connect(place.dsn, autocommit=True) as slow:
            slow.execute("BEGIN")
            slow.execute(f"INSERT INTO {place.schema}.users VALUES (1, 'slow')".encode())
            deliver(sink, 1, (2, "bea"))

            def between() -> None:
                slow.execute("COMMIT" if calls.pop() == "second" else "SELECT")

            calls = [*["later"] * 9, "second", "first"]
            found = audit.contents(sink, AuditQuery(JOB, "out", SCHEMA, None, Epoch(0)), between)
        assert {at: rows.rows for at, rows in found.rows.items()} == {(LEFT.subtask, tag(1)): 1}
        assert found.others is not None and len(found.others.hashes) == 0
        assert sorted(place.ask("SELECT name FROM users")) == [("bea",), ("slow",)]
