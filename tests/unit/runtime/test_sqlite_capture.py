"""Changes of a SQLite table in a log: types, kinds of changes, refusals, and databases that do not fit their log."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from captured_tables import Rows, Until, tables

import holdfast as hf
from holdfast.errors import ConfigError, Damaged, NotAdmitted, Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.capture.sessions import StopRequest
from holdfast.runtime.capture.sqlite import capturer, outbox
from holdfast.runtime.capture.sqlite.lock import Lock, is_taken
from holdfast.runtime.capture.sqlite.process import Capture, position_in
from holdfast.runtime.sources.sqlite.table import WRITER
from holdfast.storage.objects import MemoryObjects


class Table:
    """A table of a database in a file, and the log that it is captured into."""

    def __init__(self, folder: Path, *statements: str, name: str = "t", **given: Any) -> None:
        self.path, self.name, self.given, self.store = folder / "a.db", name, given, MemoryObjects()
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.ask(*statements)
        self.events: list[dict[str, Any]] = []

    def ask(self, *statements: str) -> list[Any]:
        """Run statements; return the rows of the last one."""
        found: list[Any] = []
        for statement in statements:
            found = self.db.execute(statement).fetchall()
        return found

    def catch_up(self, store: ObjectStore | None = None) -> None:
        """Capture everything that was committed until now. Raises: see Sessions.run."""
        into = self.store if store is None else store
        self.run(Until(lambda: self._is_done(into)), into)

    def run(self, stopping: StopRequest, store: ObjectStore) -> None:
        """Capture until a stop."""
        source = hf.SQLiteChanges(self.path, self.name, hf.Log("memory/log", partitions=2), **self.given)
        Capture(source.capturing, store, self.events.append, stopping).run()

    def rows(self) -> Rows:
        """Return the table as the log has it."""
        *_, (_, rows) = tables(self.store, WRITER)
        return rows

    def captured(self) -> Rows:
        """Capture; return the table as the log has it then."""
        self.catch_up()
        return self.rows()

    def _is_done(self, store: ObjectStore) -> bool:
        if (at := position_in(store)) is None or at == 0:
            return False
        with closing(sqlite3.connect(self.path)) as db:
            return outbox.registered(db, self.name) is not None and outbox.is_idle(db, self.name, at)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def plain(folder: Path, **given: Any) -> Table:
    return Table(
        folder, "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, NULL)", **given
    )


ROWS = 5_000
LARGE = {
    "rowid": ["CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE, gone INTEGER)"],
    "another key": ["CREATE TABLE t (id INTEGER, u TEXT UNIQUE, gone INTEGER, PRIMARY KEY (id, u))"],
    "without rowid": ["CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE, gone INTEGER) WITHOUT ROWID"],
    "partial index": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT, gone INTEGER)",
        "CREATE UNIQUE INDEX i ON t (u) WHERE gone IS NULL",
    ],
    "two indexes": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT COLLATE NOCASE UNIQUE, gone INTEGER)",
        "CREATE UNIQUE INDEX i ON t (u, id) WHERE gone IS NULL",
    ],
}
"""Statements that create a table of which only few rows may be read for a change."""


class TestChanges:
    def test_begin_with_the_rows_that_the_table_has(self, folder: Path) -> None:
        table = plain(folder)
        assert table.captured() == {1: {"id": 1, "v": "a"}, 2: {"id": 2, "v": None}}
        assert [event["event"] for event in table.events] == ["snapshot", "captured", "streaming"]

    def test_changes_of_one_transaction_are_one_commit_positioned_at_the_newest_change(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("BEGIN", "INSERT INTO t VALUES (3, 'c')", "UPDATE t SET v = 'b' WHERE id = 2", "COMMIT")
        assert table.captured() == {1: {"id": 1, "v": "a"}, 2: {"id": 2, "v": "b"}, 3: {"id": 3, "v": "c"}}
        assert [position for position, _ in tables(table.store, WRITER)] == [1, 3]

    def test_an_update_of_a_key_deletes_the_old_key(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("UPDATE t SET id = 9 WHERE id = 1")
        assert table.captured() == {2: {"id": 2, "v": None}, 9: {"id": 9, "v": "a"}}

    def test_changes_that_are_rolled_back_are_not_captured(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("BEGIN", "DELETE FROM t", "ROLLBACK", "INSERT INTO t VALUES (3, 'c')")
        assert sorted(table.captured()) == [1, 2, 3]

    def test_include_rows_that_a_cascade_deletes(self, folder: Path) -> None:
        table = Table(
            folder,
            "PRAGMA foreign_keys = ON",
            "CREATE TABLE p (id INTEGER PRIMARY KEY)",
            "CREATE TABLE t (id INTEGER PRIMARY KEY, p INTEGER REFERENCES p ON DELETE CASCADE)",
            "INSERT INTO p VALUES (1), (2)",
            "INSERT INTO t VALUES (1, 1), (2, 2)",
        )
        table.catch_up()
        table.ask("DELETE FROM p WHERE id = 1", "INSERT OR REPLACE INTO p VALUES (2)")
        assert table.captured() == {}

    @pytest.mark.parametrize("key", ["INTEGER", "TEXT"])
    def test_include_rows_that_replace_removes_by_another_key(self, folder: Path, key: str) -> None:
        table = Table(
            folder,
            f"CREATE TABLE t (id {key} PRIMARY KEY, u INTEGER UNIQUE, w INTEGER NOT NULL DEFAULT 5 UNIQUE)",
            "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 5, 5)",
        )
        table.catch_up()
        table.ask(
            "INSERT OR REPLACE INTO t VALUES (6, 1, 2)",  # 1 and 2
            "UPDATE OR REPLACE t SET u = 3 WHERE id = 4",  # 3
            "INSERT OR REPLACE INTO t VALUES (7, 7, NULL)",  # 5, by the default
        )
        assert sorted(map(int, table.captured())) == [4, 6, 7]

    def test_include_a_row_that_replace_removes_by_its_number(self, folder: Path) -> None:
        table = Table(folder, "CREATE TABLE t (id TEXT PRIMARY KEY)", "INSERT INTO t VALUES ('a')")
        table.catch_up()
        table.ask("INSERT OR REPLACE INTO t (rowid, id) VALUES (1, 'b')")
        assert sorted(table.captured()) == ["b"]

    @pytest.mark.parametrize("is_older", [True, False])
    def test_a_change_amended_by_another_programs_trigger_ends_with_the_final_row(
        self, folder: Path, is_older: bool
    ) -> None:
        touch = "CREATE TRIGGER x AFTER UPDATE ON t BEGIN UPDATE t SET v = 'touched' WHERE id = NEW.id; END"
        table = plain(folder)
        if is_older:
            table.ask(touch)
        table.catch_up()
        if not is_older:
            table.ask(touch)
        table.ask("UPDATE t SET v = 'x' WHERE id = 1")
        assert table.captured()[1] == {"id": 1, "v": "touched"}

    def test_include_deletes_of_keys_that_differ_in_case_only(self, folder: Path) -> None:
        table = Table(
            folder,
            "CREATE TABLE t (id TEXT COLLATE NOCASE NOT NULL, PRIMARY KEY (id COLLATE BINARY))",
            "INSERT INTO t VALUES ('a'), ('A')",
        )
        table.catch_up()
        table.ask("DELETE FROM t WHERE id = 'a' COLLATE BINARY")
        assert sorted(table.captured()) == ["A"]

    def test_include_rows_that_replace_removes_by_a_partial_index(self, folder: Path) -> None:
        table = Table(
            folder,
            "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT, gone INTEGER)",
            """CREATE UNIQUE INDEX "i) WHERE 0" ON t (u) WHERE gone IS NULL AND u <> 'x'""",
            "INSERT INTO t VALUES (1, 'a', NULL), (2, 'a', 7), (3, 'x', NULL)",
        )
        table.catch_up()
        table.ask("INSERT OR REPLACE INTO t VALUES (4, 'a', NULL), (5, 'x', NULL)")
        assert sorted(table.captured()) == [2, 3, 4, 5]

    def test_ignored_inserts_leave_nothing_in_the_database(self, folder: Path) -> None:
        table = Table(folder, "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE)", "INSERT INTO t VALUES (1, 'a')")
        table.catch_up()
        for n in range(2, 50):
            table.ask(f"INSERT OR IGNORE INTO t VALUES ({n}, 'a')")
        assert table.ask("SELECT * FROM _holdfast_replaced_t") == [(1,)]
        assert table.captured() == {1: {"id": 1, "u": "a"}}

    @pytest.mark.parametrize("kind", LARGE)
    def test_cost_no_scan_of_the_table(self, folder: Path, kind: str) -> None:
        table = Table(folder, *LARGE[kind])
        table.db.executemany("INSERT INTO t VALUES (?, ?, NULL)", [(n, f"u{n}") for n in range(ROWS)])
        table.catch_up()
        steps = list[int]()
        table.db.set_progress_handler(lambda: steps.append(100), 100)
        for statement in (
            "INSERT INTO t VALUES (-1, 'x', NULL)",
            "INSERT OR REPLACE INTO t VALUES (-2, 'u5', NULL)",
            "UPDATE t SET id = -3 WHERE id = -1",
            "DELETE FROM t WHERE id = -3",
        ):
            table.ask(statement)
        table.db.set_progress_handler(None, 0)
        assert sum(steps) < ROWS
        assert len(table.captured()) == ROWS

    def test_changes_of_a_table_with_an_odd_name_are_captured(self, folder: Path) -> None:
        odd = """My "T's" table"""
        quoted = '"' + odd.replace('"', '""') + '"'
        table = Table(folder, f'CREATE TABLE {quoted} ("a b" INTEGER PRIMARY KEY, "select" TEXT UNIQUE)', name=odd)
        table.catch_up()
        table.ask(f"INSERT INTO {quoted} VALUES (1, 'x')", f"INSERT OR REPLACE INTO {quoted} VALUES (2, 'x')")
        assert table.captured() == {2: {"a b": 2, "select": "x"}}

    def test_are_removed_from_the_database_once_they_are_in_the_log(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("UPDATE t SET v = 'x'")
        assert table.ask('SELECT count(*) FROM "_holdfast_changes_t"') == [(2,)]
        table.catch_up()
        assert table.ask('SELECT count(*) FROM "_holdfast_changes_t"') == [(0,)]


@dataclass
class Typed:
    id: int
    flag: bool | None
    day: date | None
    at: datetime | None


class TestTypes:
    def test_are_those_that_are_declared(self, folder: Path) -> None:
        table = Table(
            folder,
            "CREATE TABLE t (id BIGINT PRIMARY KEY, r DOUBLE PRECISION, s VARCHAR(20), b BLOB, f BOOLEAN)",
            "INSERT INTO t VALUES (1, 2, 'ä', x'00ff', 1), (2, NULL, NULL, NULL, 0)",
        )
        assert table.captured() == {
            1: {"id": 1, "r": 2.0, "s": "ä", "b": b"\x00\xff", "f": True},
            2: {"id": 2, "r": None, "s": None, "b": None, "f": False},
        }

    def test_are_those_of_a_given_schema(self, folder: Path) -> None:
        table = Table(
            folder,
            "CREATE TABLE t (id INTEGER PRIMARY KEY, flag, day DATE, at DATETIME)",
            "INSERT INTO t VALUES (1, 1, '2026-02-03', '2026-02-03 04:05:06Z')",
            schema=Typed,
        )
        at = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
        assert table.captured() == {1: {"id": 1, "flag": True, "day": date(2026, 2, 3), "at": at}}

    def test_unknown_column_types_are_refused_with_the_columns(self, folder: Path) -> None:
        table = Table(folder, "CREATE TABLE t (id INTEGER PRIMARY KEY, at DATETIME, x)")
        with pytest.raises(ConfigError, match=r"at \(DATETIME\), x \(no type\)") as refused:
            table.catch_up()
        assert "schema=" in refused.value.next_step
        assert table.ask("SELECT name FROM sqlite_master") == [("t",)], "nothing was added"

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("INTEGER", "'x'"),
            ("INTEGER", "1.5"),
            ("TEXT", "x'00'"),
            ("TEXT", "CAST(x'ff' AS TEXT)"),
            ("BLOB", "'x'"),
            ("BOOLEAN", "2"),
        ],
    )
    def test_capture_stops_before_a_value_of_the_wrong_type_and_loses_nothing(
        self, folder: Path, kind: str, value: str
    ) -> None:
        table = Table(folder, f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {kind})")
        table.catch_up()
        table.ask("INSERT INTO t VALUES (7, NULL)", f"INSERT INTO t VALUES (8, {value})")
        with pytest.raises(ConfigError, match="the column 'v' of the row id=8"):
            table.catch_up()
        assert table.rows() == {}
        table.ask("UPDATE t SET v = NULL", 'DELETE FROM "_holdfast_changes_t" WHERE v IS NOT NULL')
        assert table.captured() == {7: {"id": 7, "v": None}, 8: {"id": 8, "v": None}}

    def test_rows_of_the_wrong_type_leave_the_database_unchanged(self, folder: Path) -> None:
        table = Table(folder, "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)", "INSERT INTO t VALUES (1, 'x')")
        with pytest.raises(ConfigError, match="the column 'v' of the row id=1") as refused:
            table.catch_up()
        assert "what was added to the database was removed" in refused.value.not_done
        names = "SELECT name FROM sqlite_master WHERE tbl_name <> 'sqlite_sequence'"
        assert table.ask(names) == [("t",), ("_holdfast_captures",), ("sqlite_autoindex__holdfast_captures_1",)]
        table.ask("UPDATE t SET v = 1")
        assert table.captured() == {1: {"id": 1, "v": 1}}

    def test_a_null_key_stops_the_capture(self, folder: Path) -> None:
        table = Table(folder, "CREATE TABLE t (id TEXT PRIMARY KEY)", "INSERT INTO t VALUES (NULL)")
        with pytest.raises(ConfigError, match="the row id=None has a value of type null"):
            table.catch_up()


BEFORE = "CREATE TRIGGER x BEFORE INSERT ON t BEGIN {} END"
REFUSED = {
    "no primary key": (["CREATE TABLE t (id INTEGER)"], "has no primary key"),
    "does not exist": ([], "does not exist"),
    "a view": (["CREATE VIEW t AS SELECT 1 AS id"], "does not exist"),
    "virtual": (["CREATE VIRTUAL TABLE t USING fts5(x)"], "is no ordinary table"),
    "collation": (["CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY)"], "collation"),
    "own column": (["CREATE TABLE t (id INTEGER PRIMARY KEY, holdfast_deleted INT)"], "a name that Holdfast uses"),
    "expression": (
        ["CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT)", "CREATE UNIQUE INDEX i ON t (lower(u))"],
        "on an expression",
    ),
    "trigger": (
        ["CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE)", BEFORE.format("DELETE FROM t WHERE id = 1;")],
        "writes before",
    ),
}


class TestTable:
    @pytest.mark.parametrize("case", REFUSED)
    def test_a_table_that_cannot_be_captured_is_refused_and_left_unchanged(self, folder: Path, case: str) -> None:
        statements, message = REFUSED[case]
        table = Table(folder, *statements)
        before = table.ask("SELECT sql FROM sqlite_master")
        with pytest.raises(ConfigError, match=message):
            table.catch_up()
        assert table.ask("SELECT sql FROM sqlite_master") == before

    def test_whose_triggers_only_check_is_captured(self, folder: Path) -> None:
        check = BEFORE.format("SELECT RAISE(ABORT, 'no') WHERE NEW.id > 9;")
        table = Table(folder, "CREATE TABLE t (id INTEGER PRIMARY KEY, u TEXT UNIQUE)", check)
        table.catch_up()
        table.ask("INSERT INTO t VALUES (1, 'a')")
        assert sorted(table.captured()) == [1]

    @pytest.mark.parametrize(
        ("statements", "message"),
        [
            (["ALTER TABLE t ADD COLUMN more TEXT", "INSERT INTO t VALUES (4, 'd', 'x')"], "its columns were"),
            (["ALTER TABLE t RENAME COLUMN v TO w"], "its columns were"),
            (["ALTER TABLE t RENAME TO s"], "does not exist"),
            (["DROP TABLE t", "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)"], "its triggers were dropped"),
            (["DROP TRIGGER _holdfast_update_t", "UPDATE t SET v = 'x'"], "its triggers were dropped"),
        ],
    )
    def test_a_schema_change_stops_the_capture_after_all_earlier_changes(
        self, folder: Path, statements: list[str], message: str
    ) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("INSERT INTO t VALUES (3, 'c')", *statements)
        for _ in range(2):
            with pytest.raises(ConfigError, match=message):
                table.catch_up()
            assert table.rows()[3] == {"id": 3, "v": "c"} and table.rows()[1] == {"id": 1, "v": "a"}

    def test_a_new_unique_column_stops_the_capture_before_changes_that_may_be_incomplete(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("CREATE UNIQUE INDEX u ON t (v)", "INSERT OR REPLACE INTO t VALUES (3, 'a')")
        with pytest.raises(ConfigError, match="other unique columns"):
            table.catch_up()
        assert sorted(table.rows()) == [1, 2]

    def test_a_changed_table_is_captured_into_another_log(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("ALTER TABLE t ADD COLUMN more TEXT", "INSERT INTO t VALUES (4, 'd', 'x')")
        table.store = MemoryObjects()
        with pytest.raises(ConfigError, match="is captured into another log") as refused:
            table.catch_up()
        table.ask(refused.value.next_step.partition(": ")[2])
        assert table.captured()[4] == {"id": 4, "v": "d", "more": "x"}


class TestTwoTables:
    def test_two_tables_of_one_database_have_their_own_triggers(self, folder: Path) -> None:
        columns = "(id INTEGER PRIMARY KEY, u TEXT UNIQUE)"
        first = Table(folder, f"CREATE TABLE t {columns}", f"CREATE TABLE t_before {columns}")
        second = Table(folder, name="t_before")
        for table in (first, second, first, second):
            table.ask(f"INSERT OR REPLACE INTO {table.name} VALUES ({len(table.events)}, 'a')")
            assert [row["u"] for row in table.captured().values()] == ["a"]


class Waits(Until):
    """A process that waits for the lock, while something happens to the database; then it captures."""

    def __init__(self, done: Callable[[], bool], happens: Callable[[], None]) -> None:
        super().__init__(done)
        self._happens: list[Callable[[], None]] = [happens]

    def wait(self, seconds: float) -> None:
        if self._happens:
            self._happens.pop()()


class TestLock:
    def test_the_database_file_is_checked_again_after_a_wait_for_the_lock(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        other = Lock(str(table.path), "t")
        assert other.try_take()

        def replaced() -> None:
            """Do what a VACUUM INTO another file, which then takes the place of the first one, does."""
            shutil.copy(table.path, folder / "b.db")
            (folder / "b.db").rename(table.path)
            table.db = sqlite3.connect(table.path, isolation_level=None)
            table.ask("INSERT INTO t VALUES (3, 'c')")
            other.close()

        with closing(table.db):
            table.run(Waits(lambda: sorted(table.rows()) == [1, 2, 3], replaced), table.store)
        assert sorted(table.rows()) == [1, 2, 3]

    def test_a_lock_that_cannot_be_used_is_named(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = plain(folder)
        of = hf.SQLiteChanges(table.path, "t", hf.Log("memory/log")).capturing

        def refused(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("holdfast.runtime.capture.sqlite.lock.os.open", refused)
        with pytest.raises(NotAdmitted, match="capture's lock, .* cannot be used: Permission denied"):
            table.catch_up()
        with pytest.raises(NotAdmitted, match="cannot be used"):
            is_taken(of.path, "t")


class TestDatabase:
    def test_a_database_restored_from_a_copy_is_refused_even_after_more_changes(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        shutil.copy(table.path, folder / "copy.db")
        table.ask("INSERT INTO t VALUES (3, 'c')", "INSERT INTO t VALUES (4, 'd')")
        table.catch_up()
        with closing(sqlite3.connect(folder / "copy.db")) as copy:
            copy.backup(table.db)
        for _ in range(2):
            with pytest.raises(ConfigError, match="restored from a copy"):
                table.catch_up()
            table.ask("UPDATE t SET v = 'other'")
        assert sorted(table.rows()) == [1, 2, 3, 4]

    def test_a_recreated_database_is_refused(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.db.close()
        table.path.unlink()
        again = plain(folder)
        with pytest.raises(ConfigError, match="knows nothing of the capture"):
            again.catch_up(table.store)

    def test_whose_log_was_restored_from_a_copy_is_refused(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("INSERT INTO t VALUES (3, 'c')")
        table.catch_up()
        table.store.delete(max(table.store.list("commits")))
        with pytest.raises(ConfigError, match="do not fit"):
            table.catch_up()

    def test_whose_log_was_restored_while_it_is_captured_ends_the_capture(self, folder: Path) -> None:
        table = plain(folder)
        table.catch_up()
        table.ask("INSERT INTO t VALUES (3, 'c')")

        class Restored(Until):
            def wait(self, seconds: float) -> None:
                table.store.delete(max(table.store.list("commits")))
                table.ask("INSERT INTO t VALUES (4, 'd')")

        with pytest.raises(Damaged, match="restored from a copy"):
            table.run(Restored(lambda: False), table.store)

    def test_a_database_locked_by_another_program_is_unavailable(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.sources.sqlite.catalogue.BUSY_MS", 10)
        table = plain(folder)
        table.ask("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="locked"):
            table.catch_up()
        table.ask("COMMIT")
        assert sorted(table.captured()) == [1, 2]

    def test_a_missing_database_is_unavailable(self, folder: Path) -> None:
        of = hf.SQLiteChanges(folder / "none.db", "t", hf.Log("memory/log")).capturing
        with pytest.raises(Unavailable, match="does not exist"):
            Capture(of, MemoryObjects(), lambda _: None, StopRequest()).run()
        assert not (folder / "none.db").exists()

    def test_a_file_that_is_not_a_database_is_reported(self, folder: Path) -> None:
        (folder / "a.db").write_bytes(b"x" * 4096)
        of = hf.SQLiteChanges(folder / "a.db", "t", hf.Log("memory/log")).capturing
        with pytest.raises(Damaged, match="not a database"):
            Capture(of, MemoryObjects(), lambda _: None, StopRequest()).run()


class TestDoctor:
    def test_reports_the_state_and_changes_nothing(self, folder: Path) -> None:
        table = plain(folder)
        of = hf.SQLiteChanges(table.path, "t", hf.Log("memory/log")).capturing
        assert capturer.probe(of, table.store).endswith("can be captured")
        assert sorted(each.name for each in folder.iterdir()) == ["a.db"]
        table.catch_up()
        table.ask("INSERT INTO t VALUES (3, 'c')")
        assert capturer.probe(of, table.store).endswith("no process captures it now, 1 change behind")
        with closing(Lock(of.path, "t")) as lock:
            assert lock.try_take()
            assert capturer.probe(of, table.store).endswith("a process captures it, 1 change behind")
        table.ask("DELETE FROM _holdfast_captures")
        with pytest.raises(ConfigError, match="do not fit"):
            capturer.probe(of, table.store)
