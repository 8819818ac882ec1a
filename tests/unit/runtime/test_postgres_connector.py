"""`hf.PostgresChanges`: its arguments, and what a job sees of it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects

DSN = "postgresql://app@db.example/sales"
ROWS = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.utf8())])


def made(tables: Any = "customers", log: Any = None, dsn: str = DSN, **given: Any) -> hf.PostgresChanges:
    return hf.PostgresChanges(dsn, tables, hf.Log("data/customers") if log is None else log, **given)


class TestArguments:
    @pytest.mark.parametrize(
        ("tables", "expected"),
        [
            ("customers", ("public", "customers")),
            ("sales.customers", ("sales", "customers")),
            (["sales.Customers"], ("sales", "Customers")),
        ],
    )
    def test_name_one_table(self, tables: Any, expected: tuple[str, str]) -> None:
        of = made(tables).capturing
        assert (of.schema, of.table) == expected

    @pytest.mark.parametrize("tables", [["a", "b"], []])
    def test_that_name_several_tables_are_refused(self, tables: list[str]) -> None:
        with pytest.raises(ConfigError, match="a log has the columns of one table") as refused:
            made(tables)
        assert "--source NAME" in refused.value.next_step

    @pytest.mark.parametrize("tables", ["", ".", "a.b.c", "x" * 64, "public."])
    def test_that_name_no_table_are_refused(self, tables: str) -> None:
        with pytest.raises(ConfigError, match="the table is"):
            made(tables)

    def test_refuse_a_password_in_the_string(self) -> None:
        with pytest.raises(ConfigError, match="holds a secret") as refused:
            made(dsn="postgresql://app:hunter2@db.example/sales")
        assert "hunter2" not in str(refused.value)

    @pytest.mark.parametrize("log", ["data/customers", hf.Log("data/customers", key=["id"]), hf.Log("data/c", ROWS)])
    def test_refuse_what_is_no_plain_log(self, log: Any) -> None:
        with pytest.raises(ConfigError, match="into "):
            made(log=log)


class TestJob:
    def test_reads_the_log_without_the_server(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "log"), ROWS, 2, ["id"], changelog=True)
        connector = made(log=hf.Log(tmp_path / "log"))
        app = hf.App("customers")
        app.table("customers", connector, key="id").to_changes().sink("out", hf.Console())
        (source,) = (spec.source for spec in app.plan().sources)
        source.check()
        assert source.schema.names == ["holdfast_deleted", "id", "name"]
        assert (source.traits.kind, source.traits.captured) == ("Log", True)

    def test_may_name_the_log_itself(self, tmp_path: Path) -> None:
        assert (
            made(log=hf.Log(tmp_path / "log")).source().traits.place == hf.Log(tmp_path / "log").source().traits.place
        )

    def test_sends_no_secret_to_its_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PG_PASSWORD", "hunter2")
        sent = pickle.dumps(made(password=hf.secret("env:PG_PASSWORD")).source())
        assert b"hunter2" not in sent
