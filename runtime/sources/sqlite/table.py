"""A table of SQLite that is captured, and its values as columns of Arrow.

SQLite takes a value of any type in every column, unless the table is STRICT. Here a value has to be of the column's
type, or the capture stops: none is converted, and none is rounded.

Pure: no clock, thread or I/O. Source: sqlite.org/datatype3.html, sqlite.org/stricttables.html.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError

WRITER = "sqlite"
"""The name of the tag of a capture, in its log."""
OWN = "_holdfast_"
"""How the names of tables, triggers and columns of a capture begin."""
DECLARED: dict[str, pa.DataType] = {
    **dict.fromkeys(("INT", "INTEGER", "TINYINT", "SMALLINT", "MEDIUMINT", "BIGINT", "INT2", "INT8"), pa.int64()),
    **dict.fromkeys(("REAL", "DOUBLE", "DOUBLE PRECISION", "FLOAT"), pa.float64()),
    **dict.fromkeys(("TEXT", "CLOB", "CHAR", "CHARACTER", "VARCHAR", "NCHAR", "NVARCHAR"), pa.utf8()),
    **dict.fromkeys(("BOOL", "BOOLEAN"), pa.bool_()),
    "BLOB": pa.binary(),
}
"""By the declared type, in upper case and without a length."""
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_TEXTS = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
_STORED: dict[pa.DataType, frozenset[type]] = {
    **dict.fromkeys((*_SIGNED, pa.bool_()), frozenset({int})),
    pa.float64(): frozenset({float, int}),
    **dict.fromkeys((pa.utf8(), *_TEXTS), frozenset({str})),
    pa.binary(): frozenset({bytes}),
}
"""As which types SQLite may have stored the values of a column; null besides."""
_LENGTH = re.compile(r"\s*\(.*\)\s*$")


@dataclass(frozen=True)
class SqliteColumn:
    """A column as the database declares it."""

    name: str
    declared: str


@dataclass(frozen=True)
class Unique:
    """Columns of which no two rows may have the same values, each with collation and default for null."""

    columns: tuple[tuple[str, str, str | None], ...]
    where: str | None = None
    """The condition of a partial index; None: there is none, or it is not known."""


@dataclass(frozen=True)
class SqliteTable:
    """A table, as it is captured."""

    name: str
    columns: tuple[SqliteColumn, ...]
    """Without generated ones."""
    key: tuple[str, ...]
    """The primary key."""
    uniques: tuple[Unique, ...] = ()
    """Besides the primary key: by them, REPLACE may remove rows that have another key."""
    schema: pa.Schema | None = None
    """The types of the columns; None: those that are declared."""

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"table {self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def rows(self) -> pa.Schema:
        """Return the columns of its rows.

        Raises:
            ConfigError: the type of a column is unknown, or the given schema has other columns.
        """
        if self.schema is not None:
            return self._given(self.schema)
        kinds = [DECLARED.get(_LENGTH.sub("", column.declared).upper()) for column in self.columns]
        if unknown := [column for column, kind in zip(self.columns, kinds, strict=True) if kind is None]:
            shown = ", ".join(f"{column.name} ({column.declared or 'no type'})" for column in unknown)
            raise refused(
                f"{self.where}: the declared types of these columns do not say which values they have: {shown}",
                "give schema= to hf.SQLiteChanges: a dataclass, or a pyarrow.Schema, with all columns of the table",
            )
        return pa.schema(
            [pa.field(name, kind, name not in self.key) for name, kind in zip(self.names, kinds, strict=True)]
        )

    def _given(self, schema: pa.Schema) -> pa.Schema:
        if sorted(schema.names) != sorted(self.names):
            raise refused(
                f"{self.where} has the columns {', '.join(self.names)}; schema has {', '.join(schema.names)}",
                "give schema all columns of the table, by their names; generated ones are left out",
            )
        if odd := [field for field in schema if field.type not in _STORED]:
            raise refused(
                f"{self.where}: schema gives {odd[0].name!r} the type {odd[0].type}, which SQLite has no values of",
                f"use one of {', '.join(map(str, _STORED))}",
            )
        return pa.schema([pa.field(name, schema.field(name).type, name not in self.key) for name in self.names])

    def table_of(self, rows: Sequence[Sequence[Any]], deleted: Sequence[bool]) -> pa.Table:
        """Return rows as columns; of one that is deleted, only the key matters.

        Raises:
            ConfigError: a value is not of its column's type, or a key is null.
        """
        columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in self.columns]
        arrays = []
        for field, values in zip(self.rows(), columns, strict=True):
            try:
                array = _array(values, field.type)
            except _UNFIT:
                array = None
            if array is None or (field.name in self.key and array.null_count):
                raise self._unfit(field, rows, values)
            arrays.append(array)
        assert len(deleted) == len(rows)
        return pa.Table.from_arrays(arrays, schema=pa.schema([pa.field(f.name, f.type) for f in self.rows()]))

    def _unfit(self, field: pa.Field, rows: Sequence[Sequence[Any]], values: Sequence[Any]) -> ConfigError:
        """Return the error for the first value that does not fit."""
        at = next(at for at, value in enumerate(values) if not _fits(value, field, field.name in self.key))
        row = ", ".join(f"{name}={rows[at][self.names.index(name)]!r}" for name in self.key)
        kind = {int: "integer", float: "real", str: "text", bytes: "blob"}.get(type(values[at]), "null")
        return ConfigError(
            f"{self.where}: the column {field.name!r} of the row {row} has a value of type {kind} that {field.type} "
            "cannot hold",
            not_done="the changes since the last append were not captured; they stay in the database",
            next_step=f"correct the row by an UPDATE; then remove the change that has this value from "
            f'"{OWN}changes_{self.name}", and start the process again',
        )


_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError)


def refused(what: str, next_step: str) -> ConfigError:
    """Return the error for a table that cannot be captured."""
    return ConfigError(what, not_done="nothing was captured", next_step=next_step)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array. Raises: see _UNFIT."""
    if not set(map(type, values)) <= _STORED[kind] | {type(None)}:
        raise pa.ArrowTypeError("a value of another type")
    if kind in _TEXTS:
        return pa.array(values, pa.utf8()).cast(kind)
    if kind == pa.bool_():
        if not set(values) <= {0, 1, None}:
            raise pa.ArrowInvalid("neither 0 nor 1")
        return pa.array([None if value is None else value == 1 for value in values], kind)
    return pa.array(values, kind)


def _fits(value: Any, field: pa.Field, is_key: bool) -> bool:
    try:
        return not (_array([value], field.type).null_count and is_key)
    except _UNFIT:
        return False
