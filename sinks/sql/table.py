"""The user's table: a sink's requirements, creating it, and whether an existing one fits the stream.

An existing table must have exactly the stream's columns, each stored as the dialect would store it, and the sink's key
as its primary key. Rows that it can never take are refused here, before the job starts: after the commit of an epoch, a
row that the table refuses could no longer be left out.

Invariants
    - A difference is reported with all others, and nothing was created or changed then.

Source: docs/formats.md, "Tables in a SQL target".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.sinks.contract.target import OP
from holdfast.sinks.sql.dialect import Column, Dialect
from holdfast.sinks.sql.session import Session

TAG_COLUMN = "_holdfast_tag"
"""The column with a row's tag, with delivery="idempotent" (row_tags.py)."""
OURS = "holdfast_"
"""The prefix of all tables of Holdfast's."""


class SqlTable(Protocol):
    """The table that a connection writes to; every public SQL sink is one."""

    @property
    def dialect(self) -> Dialect:
        """The database and its place."""

    @property
    def table(self) -> str: ...
    @property
    def key(self) -> tuple[str, ...] | None: ...
    @property
    def where(self) -> str:
        """How messages name the target."""

    @property
    def tags_rows(self) -> bool:
        """Whether every row carries its tag."""

    def accept(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the table can never take."""


@dataclass(frozen=True)
class DatabaseTable:
    """The table as it is in the database.

    Args:
        name: As SQL names it.
        columns: Those of the stream, as the table declares them.
        key: The sink's key, in its order; (): rows are only added.
        noted: As tables of Holdfast name it.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[Column, ...]
    noted: str

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return tuple(column.name for column in self.key)

    @property
    def values(self) -> tuple[Column, ...]:
        """The columns outside the key."""
        return tuple(column for column in self.columns if column not in self.key)


def stored(s: Session, sink: SqlTable) -> DatabaseTable | None:
    """Return the sink's table as it is now; None if it is missing."""
    columns = {c.name: c for c in s.dialect.columns(s.db, sink.table) if not (sink.tags_rows and c.name == TAG_COLUMN)}
    if not columns:
        return None
    key = tuple(columns[name] for name in sink.key or () if name in columns)
    return DatabaseTable(s.dialect.table(sink.table), tuple(columns.values()), key, s.dialect.folded(sink.table))


def check_name(where: str, dialect: Dialect, kind: str, name: str) -> None:
    """Refuse a name that the database cannot hold even quoted."""
    limit = dialect.limits.name_bytes
    if not name or "\x00" in name:
        raise ConfigError(f"{where}: {name!r} is not a name for a {kind}", next_step=f"rename the {kind}")
    if limit is not None and len(name.encode()) > limit:
        raise ConfigError(
            f"{where}: the name {name!r} has {len(name.encode())} bytes, and {dialect.database} cuts names at {limit}",
            next_step=f"give the {kind} a shorter name",
        )


def check_table_name(where: str, dialect: Dialect, table: str) -> None:
    """Refuse a name that cannot name a table, or is not for a user's table."""
    check_name(where, dialect, "table", table)
    if dialect.folded(table).startswith(tuple(map(dialect.folded, (OURS, *dialect.limits.reserved)))):
        raise ConfigError(f"{where}: names with this prefix are reserved", next_step="choose another table")


def check_columns(where: str, dialect: Dialect, schema: pa.Schema) -> None:
    """Refuse columns that no table can have.

    Raises:
        ConfigError: too many columns, a name or a type that the database does not take or reserves, or two names that
            it takes for one.
    """
    if len(schema) > dialect.limits.columns:
        raise ConfigError(
            f"{where}: {len(schema)} columns are more than the {dialect.limits.columns} it takes",
            next_step="select the columns you need before the sink",
        )
    folded_names = {dialect.folded(OP)}
    for field in schema:
        check_name(where, dialect, "column", field.name)
        if dialect.folded(field.name) in dialect.limits.reserved_columns:
            raise ConfigError(
                f"{where}: the name {field.name!r} of a column is reserved",
                next_step="rename the column before the sink",
            )
        declared_type(where, dialect, field)
        if dialect.folded(field.name) in folded_names:
            raise ConfigError(
                f"{where}: the column {field.name!r} appears twice; {dialect.database} takes upper and lower case as "
                "one",
                next_step="rename one of the columns before the sink",
            )
        folded_names.add(dialect.folded(field.name))


def declared_type(where: str, dialect: Dialect, field: pa.Field) -> str:
    """Return the type that holds the column.

    Raises:
        ConfigError: no type of the database holds every value of the column.
    """
    sql_type = dialect.tag_type if field.name == TAG_COLUMN else dialect.declared(field.type)
    if sql_type is None:
        raise ConfigError(
            f"{where}: the column {field.name!r} has the type {field.type}, which this sink cannot store",
            next_step="cast it before the sink to an integer up to 64 bits (not uint64), a float, bool, text, "
            "binary, date, time64[us], timestamp[us, tz=UTC], or lists, structs and maps of them",
        )
    return sql_type


def create_table(where: str, dialect: Dialect, table: str, schema: pa.Schema, key: tuple[str, ...] | None) -> str:
    """Return the statement that creates a table for the stream."""
    columns = [
        f"{dialect.quoted(field.name)} {declared_type(where, dialect, field)}"
        f"{' NOT NULL' if field.name in (key or ()) else ''}"
        for field in schema
    ]
    if key is not None:
        columns.append(f"PRIMARY KEY ({', '.join(map(dialect.quoted, key))})")
    elif dialect.row_order_column:
        columns.append(dialect.row_order_column)
    return f"CREATE TABLE {dialect.table(table)} ({', '.join(columns)})"


def check_existing(where: str, s: Session, table: str, schema: pa.Schema, key: tuple[str, ...] | None) -> None:
    """Refuse a table that the stream does not fit.

    Raises:
        ConfigError: columns, their types or the primary key differ, a column takes no null and may get one, or
            different keys are the same in the table.
    """
    table_columns = {column.name: column for column in s.dialect.columns(s.db, table)}
    stream_types = {field.name: declared_type(where, s.dialect, field) for field in schema}
    differences = [f"{name!r} is missing" for name in stream_types if name not in table_columns]
    differences += [f"{name!r} is not a column of the stream" for name in table_columns if name not in stream_types]
    differences += [
        f"{name!r} is declared {table_columns[name].declared or 'without a type'}, needed is {declared}"
        for name, declared in stream_types.items()
        if name in table_columns and not s.dialect.holds(table_columns[name], declared)
    ]
    differences += _may_be_null(s.dialect, table_columns, schema, key or ())
    primary = {name for name, column in table_columns.items() if column.key_place}
    if key is not None and primary != set(key):
        differences.append(f"its primary key is {sorted(primary)}, the sink's key is {sorted(key)}")
    text = s.dialect.declared(pa.string())
    differences += [
        f"{name!r} is compared by {collation}: different keys would be one row"
        for name, collation in s.dialect.loosely_compared(s.db, table).items()
        if key is not None and stream_types.get(name) == text
    ]
    if differences:
        raise ConfigError(
            f"{where}: the existing table differs: {'; '.join(differences)}",
            not_done="the job was not started, the table was not changed",
            next_step="name another table, or change or drop this one; a missing table is created to fit",
        )


def _may_be_null(dialect: Dialect, found: dict[str, Column], schema: pa.Schema, key: tuple[str, ...]) -> list[str]:
    """Return which columns take no null, and may get one: a row with it would be refused after its epoch is committed.

    Columns of the key may get none: `accept` refuses it.
    """
    strict = {name for name, column in found.items() if not column.nullable} - set(key)
    differences = []
    for field in schema:
        if field.name in strict and field.nullable:
            differences.append(f"{field.name!r} is NOT NULL, and may be null in the stream")
        elif field.name in strict and pa.types.is_floating(field.type) and not dialect.keeps_nan:
            differences.append(f"{field.name!r} is NOT NULL, and may be NaN in the stream, which is stored as NULL")
    return differences
