"""`hf.PostgresChanges`: its arguments, and what it sends to workers; see test_captured_tables.py."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError

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

    @pytest.mark.parametrize("tables", ["", ".", "a.b.c", "x" * 64, "public."])
    def test_arguments_that_name_no_table_are_refused(self, tables: str) -> None:
        with pytest.raises(ConfigError, match="the table is"):
            made(tables)

    def test_refuse_a_password_in_the_string(self) -> None:
        with pytest.raises(ConfigError, match="holds a secret") as refused:
            made(dsn="postgresql://app:hunter2@db.example/sales")
        assert "hunter2" not in str(refused.value)


class TestJob:
    def test_sends_no_secret_to_its_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PG_PASSWORD", "hunter2")
        sent = pickle.dumps(made(password=hf.secret("env:PG_PASSWORD")).source())
        assert b"hunter2" not in sent
