"""Connectors of captured tables: what all have in common, and the arguments of `hf.SQLiteChanges`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError, Unavailable
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects

ROWS = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.utf8())])


def postgres(tables: Any, log: Any) -> hf.PostgresChanges:
    return hf.PostgresChanges("postgresql://app@db.example/sales", tables, log)


def sqlite(tables: Any, log: Any) -> hf.SQLiteChanges:
    return hf.SQLiteChanges("sales.db", tables, log)


@pytest.mark.parametrize("made", [postgres, sqlite])
class TestEachConnector:
    @pytest.mark.parametrize("tables", [["a", "b"], []])
    def test_refuses_several_tables(self, made: Any, tables: list[str]) -> None:
        with pytest.raises(ConfigError, match="a log has the columns of one table") as refused:
            made(tables, hf.Log("data/customers"))
        assert "--source NAME" in refused.value.next_step

    @pytest.mark.parametrize("log", ["data/customers", hf.Log("data/customers", key=["id"]), hf.Log("data/c", ROWS)])
    def test_refuses_what_is_no_plain_log(self, made: Any, log: Any) -> None:
        with pytest.raises(ConfigError, match="into "):
            made("customers", log)

    def test_lets_a_job_read_the_log_without_the_database(self, made: Any, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "log"), ROWS, 2, ["id"], changelog=True)
        app = hf.App("customers")
        app.table("customers", made("customers", hf.Log(tmp_path / "log")), key="id").to_changes().sink(
            "out", hf.Console()
        )
        (source,) = (spec.source for spec in app.plan().sources)
        source.check()
        assert source.schema.names == ["holdfast_deleted", "id", "name"]
        assert source.traits.kind == "Log" and source.captured is not None

    def test_lets_a_job_name_the_log_itself(self, made: Any, tmp_path: Path) -> None:
        log = hf.Log(tmp_path / "log")
        assert made("customers", log).source().traits.place == log.source().traits.place

    def test_names_the_command_that_creates_the_log(self, made: Any, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="nothing was captured yet") as refused:
            made("customers", hf.Log(tmp_path / "log")).source().open()
        assert "holdfast capture JOB.py" in refused.value.next_step


class TestSQLite:
    @pytest.mark.parametrize("path", ["", ":memory:", "file:a.db", "s3://bucket/a.db"])
    def test_refuses_what_is_no_local_file(self, path: str) -> None:
        with pytest.raises(ConfigError, match="the path is"):
            hf.SQLiteChanges(path, "t", hf.Log("data/t"))

    @pytest.mark.parametrize("table", ["", "a\0b", "sqlite_master"])
    def test_refuses_what_names_no_table(self, table: str) -> None:
        with pytest.raises(ConfigError, match="the table is"):
            sqlite(table, hf.Log("data/t"))

    def test_has_the_columns_of_the_table_as_long_as_there_is_no_log(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "a.db")) as db:
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, twice INT AS (id * 2))")
        source = hf.SQLiteChanges(tmp_path / "a.db", "T", hf.Log(tmp_path / "log")).source()
        assert source.schema.names == ["holdfast_deleted", "id", "name"]

    def test_without_log_and_database_is_refused_when_planned(self, tmp_path: Path) -> None:
        app = hf.App("customers")
        with pytest.raises(Unavailable, match="the file does not exist"):
            app.table("t", hf.SQLiteChanges(tmp_path / "a.db", "t", hf.Log(tmp_path / "log")), key="id")

    @pytest.mark.parametrize(("names", "given"), [(["id"], "schema has id"), (["id", "x"], "schema has id, x")])
    def test_refuses_a_schema_without_all_columns(self, tmp_path: Path, names: list[str], given: str) -> None:
        with closing(sqlite3.connect(tmp_path / "a.db")) as db:
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v)")
        schema = pa.schema([(name, pa.int64()) for name in names])
        with pytest.raises(ConfigError, match=given):
            _ = hf.SQLiteChanges(tmp_path / "a.db", "t", hf.Log(tmp_path / "log"), schema=schema).source().schema

    def test_refuses_a_type_that_no_value_has(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "a.db")) as db:
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v)")
        schema = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int64()))])
        with pytest.raises(ConfigError, match="which SQLite has no values of"):
            _ = hf.SQLiteChanges(tmp_path / "a.db", "t", hf.Log(tmp_path / "log"), schema=schema).source().schema

    def test_is_checked_by_doctor(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from holdfast.runtime.cli.main import main

        with closing(sqlite3.connect(tmp_path / "a.db")) as db:
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        job = tmp_path / "job.py"
        job.write_text(
            "import holdfast as hf\napp = hf.App('t')\n"
            f"table = app.table('t', hf.SQLiteChanges({str(tmp_path / 'a.db')!r}, 't', "
            f"hf.Log({str(tmp_path / 'log')!r})), key='id')\ntable.to_changes().sink('out', hf.Console())\n"
        )
        main(["doctor", str(job)])
        assert "can be captured" in capsys.readouterr().out
