from __future__ import annotations

import math
import os
import pickle
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Damaged, Unavailable
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.target import DELETE, OP, PUT, AlreadyDelivered, Delivered
from holdfast.sinks.sql.dialect import Column
from holdfast.sinks.sql.target import SqlTarget
from holdfast.sinks.sql.values import from_json, real_as_json, rows_of
from holdfast.sinks.sqlite.dialect import SQLiteDialect, affinity
from holdfast.sinks.sqlite.file import connect
from holdfast.sinks.sqlite.sink import SQLite

JOB, WRITER = "6f9b0f6e-0000-4000-8000-000000000001", Writer("out", Subtask(0))
NOBODY = 65534
SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
EVERY_TYPE = pa.schema(
    [
        pa.field("small", pa.uint32()),
        pa.field("real", pa.float64()),
        pa.field("flag", pa.bool_()),
        pa.field("text", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("raw", pa.binary()),
    ]
)


@contextmanager
def not_as_root() -> Iterator[None]:
    """Check permissions as user nobody if this is root, which may do anything; access(2) checks the real user."""
    is_root = os.geteuid() == 0
    if is_root:
        os.setresuid(NOBODY, -1, -1)
    try:
        yield
    finally:
        if is_root:
            os.setresuid(0, -1, -1)


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


def batch(schema: pa.Schema, *rows: tuple[Any, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def deliver(sink: SQLite, epoch: int, *batches: pa.RecordBatch) -> None:
    with closing(sink.open(JOB, WRITER)) as target:
        assert isinstance(target.deliver(tag(epoch), batches), Delivered)


def ask(path: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


@pytest.fixture
def keyed(tmp_path: Path) -> SQLite:
    sink = SQLite(tmp_path / "out.db", "users", ["user"])
    sink.prepare(SCHEMA, ("user",))
    return sink


@pytest.fixture
def target(keyed: SQLite) -> Iterator[SqlTarget]:
    with closing(keyed.open(JOB, WRITER)) as target:
        yield target


class TestConfiguration:
    def test_the_path_is_made_absolute_when_the_sink_is_created(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert SQLite("out.db", "t").path == str(tmp_path / "out.db")

    def test_the_sink_can_be_pickled_for_the_workers(self) -> None:
        sink = SQLite("/data/out.db", "t", key=["a", "b"])
        assert pickle.loads(pickle.dumps(sink)) == sink  # noqa: S301
        assert sink.key == ("a", "b")

    def test_an_in_memory_database_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="outlive the process"):
            SQLite(":memory:", "t")

    def test_an_unknown_delivery_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="there is no delivery='at once'"):
            SQLite("/data/out.db", "t", delivery="at once").check(SCHEMA, None)

    @pytest.mark.parametrize("table", ["holdfast_undo", "SQLITE_x", "", "a\x00b"])
    def test_some_table_names_are_refused(self, table: str) -> None:
        with pytest.raises(ConfigError):
            SQLite("/data/out.db", table).check(SCHEMA, None)

    @pytest.mark.parametrize("kind", [pa.uint64(), pa.decimal128(9, 2), pa.timestamp("ns", "UTC"), pa.timestamp("us")])
    def test_an_unsupported_type_is_refused(self, kind: pa.DataType) -> None:
        with pytest.raises(ConfigError, match=r"'total'(.|\n)*cast it"):
            SQLite("/data/out.db", "t").check(pa.schema([pa.field("total", kind)]), None)

    def test_columns_that_differ_only_in_case_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="upper and lower case"):
            SQLite("/data/out.db", "t").check(pa.schema([("a", pa.int64()), ("A", pa.int64())]), None)

    def test_a_time_that_would_not_sort_as_text_is_refused_before_staging(self) -> None:
        schema = pa.schema([pa.field("at", pa.timestamp("us", "UTC"))])
        late = pa.record_batch([pa.array([253_402_300_800_000_000], schema.field("at").type)], schema=schema)
        with pytest.raises(ConfigError, match="years 1 to 9999"):
            SQLite("/data/out.db", "t").accept(late)

    def test_a_nan_in_a_key_is_refused_before_staging(self) -> None:
        schema = pa.schema([("real", pa.float64()), ("small", pa.float32()), ("n", pa.int64())])
        sink = SQLite("/data/out.db", "t", ["real", "small", "n"])
        sink.accept(batch(schema, (math.inf, 0.0, 1)))
        with pytest.raises(ConfigError, match=r"1 rows have no value in the key column 'small'(.|\n)*is_not_nan\(\)"):
            sink.accept(batch(schema, (1.0, math.nan, 1)))


class TestPrepare:
    def test_file_and_tables_are_created(self, keyed: SQLite) -> None:
        assert ask(keyed.path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name") == [
            ("holdfast_horizon",),
            ("holdfast_owner",),
            ("holdfast_progress",),
            ("holdfast_table",),
            ("holdfast_undo",),
            ("users",),
        ]
        columns = "SELECT name, type, \"notnull\", pk FROM pragma_table_info('users')"
        assert ask(keyed.path, columns) == [("user", "INTEGER", 1, 1), ("name", "TEXT", 0, 0)]

    def test_an_existing_table_that_fits_is_used_unchanged(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE users (name VARCHAR(20), user BIGINT PRIMARY KEY)")
        sink = SQLite(tmp_path / "out.db", "users", ["user"])
        sink.prepare(SCHEMA, ("user",))
        deliver(sink, 1, batch(SCHEMA, (1, "ann")))
        assert ask(sink.path, "SELECT name, user FROM users") == [("ann", 1)]

    def test_every_difference_of_an_existing_table_is_named(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE users (user TEXT, extra INT)")
        with pytest.raises(ConfigError) as refused:
            SQLite(tmp_path / "out.db", "users", ["user"]).prepare(SCHEMA, ("user",))
        for difference in (
            "'name' is missing",
            "'extra' is not a column of the stream",
            "'user' is declared TEXT, needed is INTEGER",
            "its primary key is [], the sink's key is ['user']",
        ):
            assert difference in refused.value.what
        assert ask(str(tmp_path / "out.db"), "SELECT name FROM sqlite_master") == [("users",)]

    @pytest.mark.parametrize(
        ("field", "why"),
        [
            (pa.field("x", pa.int64()), "may be null in the stream"),
        ],
    )
    def test_a_not_null_column_refuses_a_nullable_one(self, tmp_path: Path, field: pa.Field, why: str) -> None:
        declared = "INTEGER" if pa.types.is_integer(field.type) else "REAL"
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute(f"CREATE TABLE t (user INTEGER PRIMARY KEY, x {declared} NOT NULL)")
        with pytest.raises(ConfigError, match=f"'x' is NOT NULL, and {why}"):
            SQLite(tmp_path / "out.db", "t", ["user"]).prepare(pa.schema([SCHEMA.field("user"), field]), None)

    def test_a_not_null_column_accepts_one_that_is_never_null(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE t (k REAL NOT NULL PRIMARY KEY, x INT NOT NULL, _holdfast_tag TEXT NOT NULL)")
        schema = pa.schema([pa.field("k", pa.float64()), pa.field("x", pa.int64(), nullable=False)])
        sink = SQLite(tmp_path / "out.db", "t", ["k"], "idempotent")
        sink.prepare(schema, None)  # accept sees to the key, and the tag always is one
        deliver(sink, 1, batch(schema, (1.5, 2)))
        assert ask(sink.path, "SELECT k, x FROM t") == [(1.5, 2)]

    @pytest.mark.parametrize(
        "columns",
        [
            "(user INT, name TEXT COLLATE NOCASE, PRIMARY KEY (user, name))",
            "(user INT, name TEXT, PRIMARY KEY (user, name COLLATE RTRIM))",
            "(user INT, name TEXT COLLATE nocase, PRIMARY KEY (user, name)) WITHOUT ROWID",
        ],
    )
    def test_a_key_with_a_collation_that_equates_texts_is_refused(self, tmp_path: Path, columns: str) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute(f"CREATE TABLE users {columns}")
        with pytest.raises(ConfigError, match="'name' is compared by (NOCASE|RTRIM|nocase), needed is BINARY"):
            SQLite(tmp_path / "out.db", "users", ["user", "name"]).prepare(SCHEMA, None)

    def test_the_collation_of_other_columns_does_not_matter(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE users (user INT COLLATE NOCASE PRIMARY KEY, name TEXT COLLATE NOCASE)")
        sink = SQLite(tmp_path / "out.db", "users", ["user"])
        sink.prepare(SCHEMA, None)
        deliver(sink, 1, batch(SCHEMA, (1, "a"), (2, "A")))
        assert ask(sink.path, "SELECT * FROM users ORDER BY user") == [(1, "a"), (2, "A")]

    def test_a_view_is_refused(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE VIEW users AS SELECT 1 AS user, 'x' AS name")
        with pytest.raises(ConfigError, match="is a view"):
            SQLite(tmp_path / "out.db", "users").prepare(SCHEMA, None)

    def test_a_directory_that_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="there is no directory"):
            SQLite(tmp_path / "none" / "out.db", "users").prepare(SCHEMA, None)

    def test_a_directory_as_the_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is a directory"):
            SQLite(tmp_path, "users").prepare(SCHEMA, None)

    def test_a_file_that_is_no_database_is_refused_and_not_changed(self, tmp_path: Path) -> None:
        (tmp_path / "out.csv").write_text("user,name\n1,ann\n")
        with pytest.raises(ConfigError, match="not a SQLite database"):
            SQLite(tmp_path / "out.csv", "users").prepare(SCHEMA, None)
        assert (tmp_path / "out.csv").read_text() == "user,name\n1,ann\n"

    def test_a_directory_that_is_not_writable_is_named(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        with not_as_root(), pytest.raises(ConfigError, match="not writable"):
            SQLite(tmp_path / "out.db", "users").prepare(SCHEMA, None)

    def test_a_locked_file_in_prepare_has_no_unknown_outcome(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(Unavailable, match="locked") as refused:
                SQLite(tmp_path / "out.db", "users").prepare(SCHEMA, None)
        assert refused.value.not_done == "the table was neither checked nor created"
        assert "run the job again" in refused.value.next_step

    def test_names_with_any_characters_are_quoted(self, tmp_path: Path) -> None:
        schema = pa.schema([('a"; DROP TABLE x; --', pa.int64()), ("it's", pa.string()), ("select", pa.int64())])
        sink = SQLite(tmp_path / "o ?#%.db", 'my "table"', [schema.names[0]])
        sink.prepare(schema, (schema.names[0],))
        deliver(sink, 1, batch(schema, (1, "x", 2)))
        deliver(sink, 2, batch(schema, (1, "y", 3)))
        assert ask(sink.path, 'SELECT * FROM "my ""table"""') == [(1, "y", 3)]
        assert [
            (from_json(k), from_json(b))
            for k, b in ask(sink.path, 'SELECT "key", "before" FROM holdfast_undo WHERE epoch = 2')
        ] == [({schema.names[0]: 1}, {"it's": "x", "select": 2})]


class TestValues:
    def test_every_type_has_one_stored_form(self, tmp_path: Path) -> None:
        sink = SQLite(tmp_path / "out.db", "t")
        sink.prepare(EVERY_TYPE, None)
        at = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
        deliver(sink, 1, batch(EVERY_TYPE, (7, 0.1, True, "é", at, date(2026, 1, 31), b"\x00\xff"), (None,) * 7))
        assert ask(sink.path, "SELECT * FROM t") == [
            (7, 0.1, 1, "é", "2026-01-31T09:30:00.000000Z", "2026-01-31", b"\x00\xff"),
            (None,) * 7,
        ]
        assert ask(sink.path, "SELECT typeof(small), typeof(real), typeof(at) FROM t LIMIT 1") == [
            ("integer", "real", "text")
        ]
        assert ask(sink.path, "SELECT strftime('%s', at) FROM t LIMIT 1") == [(str(int(at.timestamp())),)]

    @given(st.lists(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)), min_size=2))
    @settings(max_examples=20)
    def test_times_sort_as_text(self, times: list[datetime]) -> None:
        schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
        aware = [(time.replace(tzinfo=UTC),) for time in sorted(times)]
        texts = [str(text) for (text,) in rows_of(batch(schema, *aware), ["at"])]
        assert texts == sorted(texts) and {len(text) for text in texts} == {27}

    @pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
    def test_nan_is_kept_apart_from_null(self, tmp_path: Path, kind: pa.DataType) -> None:
        schema = pa.schema([pa.field("real", kind)])
        sink = SQLite(tmp_path / "out.db", "t")
        sink.prepare(schema, None)
        deliver(sink, 1, batch(schema, (math.nan,), (math.inf,), (None,), (-0.0,)))
        assert ask(sink.path, "SELECT real FROM t") == [("NaN",), (math.inf,), (None,), (-0.0,)]

    def test_nan_in_a_strict_table_is_refused_with_its_column(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE t (real REAL) STRICT")
        sink, schema = SQLite(tmp_path / "out.db", "t"), pa.schema([pa.field("real", pa.float64())])
        sink.prepare(schema, None)
        with pytest.raises(ConfigError, match=r"cannot store TEXT value in REAL column t\.real"):
            deliver(sink, 1, batch(schema, (math.nan,)))

    @pytest.mark.parametrize(
        ("declared", "expected"),
        [("BIGINT", "INTEGER"), ("VARCHAR(9)", "TEXT"), ("DOUBLE", "REAL"), ("", "BLOB"), ("DATETIME", "NUMERIC")],
    )
    def test_declared_types_are_compared_by_affinity(self, declared: str, expected: str) -> None:
        assert affinity(declared) == expected


class TestBeforeImages:
    def test_the_text_is_canonical(self, tmp_path: Path) -> None:
        schema = pa.schema([("k", pa.int64()), *[(f.name, f.type) for f in EVERY_TYPE]])
        sink = SQLite(tmp_path / "out.db", "t", ["text", "k"])
        sink.prepare(schema, ("k", "text"))
        old = batch(schema, (1, 7, 2.0, True, 'a"\n', datetime(2026, 1, 31, tzinfo=UTC), None, b"\x00\xff"))
        deliver(sink, 1, old)
        deliver(sink, 2, old)
        assert ask(sink.path, 'SELECT n, "key", "before" FROM holdfast_undo WHERE epoch = 2') == [
            (
                0,
                '{"k":1,"text":"a\\"\\n"}',
                '{"at":"2026-01-31T00:00:00.000000Z","day":null,"flag":1,"raw":{"hex":"00ff"},"real":2.0,"small":7}',
            )
        ]

    def test_a_row_with_only_key_columns_has_a_before_image(self, tmp_path: Path) -> None:
        schema = pa.schema([("user", pa.int64())])
        sink = SQLite(tmp_path / "out.db", "t", ["user"])
        sink.prepare(schema, ("user",))
        deliver(sink, 1, batch(schema, (1,)))
        deliver(sink, 2, batch(schema, (1,)))
        assert ask(sink.path, 'SELECT "before" FROM holdfast_undo ORDER BY epoch') == [(None,), ("{}",)]

    @given(st.floats(allow_nan=False), st.text(alphabet=st.characters(exclude_categories=["Cs"])))
    def test_every_real_and_text_is_read_back_unchanged(self, real: float, text: str) -> None:
        with closing(sqlite3.connect(":memory:")) as db:
            db.create_function("holdfast_real", 1, real_as_json)
            db.execute("CREATE TABLE t (r REAL, t TEXT)")
            db.execute("INSERT INTO t VALUES (?, ?)", (real, text))
            as_json = SQLiteDialect("unused").row_json("t", [Column("t", "TEXT"), Column("r", "REAL")])
            stored = db.execute(f"SELECT r, t, {as_json} FROM t").fetchone()
        assert stored[:2] == (real, text)
        assert from_json(stored[2]) == {"r": real, "t": text}


class TestRefusals:
    def test_a_duplicate_in_an_append_target_fails_permanently_and_changes_nothing(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db")) as db:
            db.execute("CREATE TABLE users (user INTEGER PRIMARY KEY, name TEXT)")
        sink = SQLite(tmp_path / "out.db", "users")
        sink.prepare(SCHEMA, None)
        with closing(sink.open(JOB, WRITER)) as target:
            with pytest.raises(ConfigError, match=r"UNIQUE constraint failed: users\.user"):
                target.deliver(tag(1), [batch(SCHEMA, (1, "a"), (1, "b"))])
            assert (target.delivered(), ask(sink.path, "SELECT * FROM users")) == (None, [])

    def test_a_locked_file_is_unavailable_and_works_once_unlocked(self, keyed: SQLite, target: SqlTarget) -> None:
        with closing(sqlite3.connect(keyed.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="locked"):
                target.deliver(tag(1), [batch(SCHEMA, (1, "ann"))])
            other.execute("ROLLBACK")
        assert target.deliver(tag(1), [batch(SCHEMA, (1, "ann"))]) == Delivered(1)

    def test_a_reader_that_locks_the_file_at_the_commit_rolls_it_back(self, keyed: SQLite, target: SqlTarget) -> None:
        with closing(sqlite3.connect(keyed.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM users").fetchone()
            with pytest.raises(Unavailable, match="locked"):
                target.deliver(tag(1), [batch(SCHEMA, (1, "ann"))])
            reader.execute("ROLLBACK")
        assert target.delivered() is None

    def test_a_delivery_does_not_create_a_missing_file(self, keyed: SQLite, target: SqlTarget) -> None:
        os.remove(keyed.path)
        with pytest.raises(ConfigError, match="the file is missing"):
            target.deliver(tag(1), [])
        assert not os.path.exists(keyed.path)

    def test_a_dropped_table_is_named(self, keyed: SQLite, target: SqlTarget) -> None:
        with closing(sqlite3.connect(keyed.path)) as db:
            db.execute("DROP TABLE users")
        with pytest.raises(ConfigError, match="the table is missing"):
            target.deliver(tag(1), [batch(SCHEMA, (1, "ann"))])

    def test_a_file_replaced_under_an_open_target_is_detected(
        self, keyed: SQLite, target: SqlTarget, tmp_path: Path
    ) -> None:
        backup = Path(keyed.path).read_bytes()
        target.deliver(tag(1), [batch(SCHEMA, (1, "ann"))])
        (tmp_path / "backup.db").write_bytes(backup)
        os.replace(tmp_path / "backup.db", keyed.path)
        with pytest.raises(Unavailable, match="replaced"):
            target.deliver(tag(2), [batch(SCHEMA, (2, "bea"))])
        assert target.delivered() is None

    def test_corrupt_bytes_are_damage(self, keyed: SQLite, target: SqlTarget) -> None:
        with open(keyed.path, "r+b") as file:
            file.write(b"\x00" * 4096)
        with pytest.raises(Damaged):
            target.delivered()


KILL = """
import os, signal, sys
import pyarrow as pa
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.sqlite.sink import SQLite
from holdfast.sinks.sql.target import SqlTarget

def fault(point):
    if point == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

target = SqlTarget(SQLite(sys.argv[1], "users", ["user"]), sys.argv[3], Writer("out", Subtask(0)), fault)
schema = pa.schema([("user", pa.int64()), ("name", pa.string()), ("_op", pa.int8())])
puts = pa.repeat(pa.scalar(0, pa.int8()), 20_000)
rows = pa.record_batch([pa.array(range(20_000)), pa.array(["new"] * 20_000), puts], schema=schema)
target.deliver(Tag(Timeline(1), Epoch(2)), [rows])
"""


class TestKill:
    @pytest.mark.parametrize(
        ("point", "names", "again"),
        [("before_commit", [("old",)], Delivered(1)), ("after_commit", [("new",)], AlreadyDelivered(tag(2)))],
    )
    def test_a_killed_process_leaves_all_or_nothing(
        self, keyed: SQLite, point: str, names: list[tuple[str]], again: object
    ) -> None:
        old = pa.record_batch([pa.array(range(20_000)), pa.array(["old"] * 20_000)], schema=SCHEMA)
        deliver(keyed, 1, old)
        killed = subprocess.run([sys.executable, "-c", KILL, keyed.path, point, JOB], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert ask(keyed.path, "SELECT DISTINCT name FROM users") == names
        assert ask(keyed.path, "PRAGMA integrity_check") == [("ok",)]
        with closing(keyed.open(JOB, WRITER)) as target:
            assert target.deliver(tag(2), [batch(SCHEMA, (1, "new"))]) == again


class TestTwoWritersOfOneFile:
    def test_both_deliver_all_their_epochs_under_contention(self, keyed: SQLite) -> None:
        ops = SCHEMA.append(pa.field(OP, pa.int8()))

        def run(n: int) -> None:
            with closing(keyed.open(JOB, Writer("out", Subtask(n)))) as target:
                epoch = 1
                while epoch <= 10:
                    rows = batch(ops, (10 * epoch + n, "x", PUT), (10 * (epoch - 1) + n, None, DELETE))
                    with suppress(Unavailable):  # Busy is an answer: try again.
                        assert target.deliver(tag(epoch), [rows]) == Delivered(2)
                        epoch += 1

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(run, n) for n in range(2)]:
                done.result()
        assert ask(keyed.path, "SELECT user FROM users ORDER BY user") == [(100,), (101,)]
        assert ask(keyed.path, "SELECT writer, epoch FROM holdfast_progress ORDER BY writer") == [(0, 10), (1, 10)]


class TestPowerFailure:
    def test_every_connection_of_a_target_also_syncs_the_folder(self, tmp_path: Path) -> None:
        """FULL (2) leaves the deletion of the journal to the operating system: a power failure may undo a commit."""
        sink = SQLite(tmp_path / "out.db", "t", ("user",))
        sink.prepare(SCHEMA, ("user",))
        with closing(connect(sink.path, "rw")) as db:
            assert db.execute("PRAGMA synchronous").fetchone() == (3,)
        with closing(SqlTarget(sink, JOB, WRITER)) as target:
            target.deliver(tag(1), [])
            assert target._connection.db is not None
            assert target._connection.db.execute("PRAGMA synchronous").fetchone() == (3,)


class TestModes:
    def test_a_created_file_is_accessible_only_to_its_owner(self, tmp_path: Path) -> None:
        sink = SQLite(tmp_path / "out.db", "t", ("user",))
        before = os.umask(0o022)
        try:
            sink.prepare(SCHEMA, ("user",))
        finally:
            os.umask(before)
        assert stat.S_IMODE(os.stat(sink.path).st_mode) == 0o600

    def test_an_existing_file_keeps_its_mode(self, tmp_path: Path) -> None:
        path = tmp_path / "out.db"
        path.touch()
        path.chmod(0o640)
        SQLite(path, "t", ("user",)).prepare(SCHEMA, ("user",))
        assert stat.S_IMODE(path.stat().st_mode) == 0o640


class TestFullDisk:
    def test_a_full_disk_is_reported_as_full_and_not_as_a_locked_file(self, tmp_path: Path) -> None:
        sink = SQLite(tmp_path / "out.db", "t", ("user",))
        sink.prepare(SCHEMA, ("user",))
        with closing(SqlTarget(sink, JOB, WRITER)) as target:
            target.deliver(tag(1), [])
            db = target._connection.db
            assert db is not None
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            db.execute(f"PRAGMA max_page_count = {pages}")
            batch = pa.RecordBatch.from_pylist([{"user": n, "name": "x" * 100} for n in range(2_000)], schema=SCHEMA)
            with pytest.raises(Unavailable, match="the disk of the file is full") as full:
                target.deliver(tag(2), [batch])
            assert "free space on the disk" in full.value.next_step and str(sink.path) in full.value.what
