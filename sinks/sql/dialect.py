"""The contract of a dialect: everything in which SQL databases differ, and nothing else.

sinks/sql is written once, against `Dialect` and `Connection`. A database is added by one class that has these members,
and by one public sink that names its place (sinks/sql/sink.py); docs/decisions/0034 lists the members for Postgres.

A dialect is configuration, bound to one place: a file, or a schema of a server. It is picklable and holds no
connection. Rows travel as canonical values (values.py); the dialect alone knows how its tables store them.

Invariants
    - Names reach a statement only through `quoted`, `table`, `own` and `temporary`; values only as parameters.
    - Rows that a write transaction changes, or holds, have the values that it has read until it commits.
    - `row_order` is the order in which one connection added rows, and in which before-images of one key were added.
    - A driver's error that has no meaning here is a bug, and is raised as it is.

Pure: no clock, thread or I/O. PROTOCOL P17; docs/decisions/0034-sql-dialects.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import pyarrow as pa

from holdfast.errors import HoldfastError, NotAdmitted, Unavailable
from holdfast.sinks.sql.values import Value

T = TypeVar("T")

Purpose = Literal["create", "deliver", "read"]
"""Purpose of a connection: create the tables and their place, deliver for a long time, or read or repair once."""


class Cursor(Protocol):
    """The result of a statement. Rows are tuples."""

    @property
    def rowcount(self) -> int:
        """How many rows an INSERT, UPDATE or DELETE changed."""

    def fetchone(self) -> Any: ...
    def fetchmany(self, size: int) -> list[Any]: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection that begins no transaction implicitly. Closing it rolls back an open transaction."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor:
        """Run one statement, whose marks stand for the values in order."""

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Cursor:
        """Run one statement for each row of values."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        declared: Its type, as a CREATE TABLE of this database takes it.
        key_place: Its place in the primary key, from 1; 0: it is not part of it.
        nullable: Whether it takes NULL.
    """

    name: str
    declared: str
    key_place: int = 0
    nullable: bool = True


@dataclass(frozen=True)
class TemporaryTable:
    """A temporary table, which only its connection sees.

    Args:
        name: As SQL names it.
        columns: All columns; those outside the key take NULL, also where the user's table does not.
        key: If several rows have the same key, it keeps the last; (): it keeps all rows, in `row_order`.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]


@dataclass(frozen=True)
class Upsert:
    """Rows to put into a table, where a row may have their key already.

    In `sets` and `only_if`, `t` is the row in the table, and `excluded` the row of `source` with the same key.

    Args:
        into: The table, as SQL names it.
        columns: The columns that `source` returns, in this order.
        key: Those of them over which the table has its primary key.
        source: VALUES (...), or a SELECT with a WHERE.
        values: For the marks of `source`, then for those of `only_if`.
        sets: New values of columns of a row in the table: column -> expression. None: each column outside the key takes
            the value of `source`. Empty: the row stays.
        only_if: A condition; where it does not hold, the row in the table stays. "": always.
    """

    into: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    source: str
    values: Sequence[object] = ()
    sets: Mapping[str, str] | None = None
    only_if: str = ""


@dataclass(frozen=True)
class TableLimits:
    """Limits of a table.

    Args:
        columns: Columns of the stream.
        name_bytes: Length of a name in UTF-8; None: unlimited. A longer name is refused, as it could be cut.
        reserved: Prefixes of table names that the database keeps for itself.
        reserved_columns: Names of columns that no table of a user's may have, as the database compares them.
    """

    columns: int
    name_bytes: int | None = None
    reserved: tuple[str, ...] = ()
    reserved_columns: tuple[str, ...] = ()


class Missing(Exception):
    """The place of the target is missing, as a whole: for example its file.

    Args:
        what: A clause for a message, such as "the file is missing (No such file or directory)".
        next_step: How a user brings it back.
    """

    def __init__(self, what: str, next_step: str) -> None:
        self.what, self.next_step = what, next_step
        super().__init__(what)


class Dialect(Protocol):
    """One SQL database, at one place."""

    # -- names and marks

    @property
    def database(self) -> str:
        """The product, for messages: "SQLite"."""

    @property
    def place(self) -> str:
        """The word for the place, for messages: "file"."""

    @property
    def unavailable_next(self) -> str:
        """Instruction to a user while the place is unavailable."""

    def quoted(self, name: str) -> str:
        """Return a name as SQL takes it, whatever it holds but NUL."""

    def folded(self, name: str) -> str:
        """Return a name as the database compares it: two names are one exactly if they fold to the same text."""

    def table(self, name: str) -> str:
        """Return the user's table as SQL names it, whatever else is called so."""

    def own(self, name: str) -> str:
        """Return a table of Holdfast's, whose name needs no quotes, as SQL names it."""

    def temporary(self, name: str) -> str:
        """Return a temporary table, whose name needs no quotes, as SQL names it."""

    def mark(self, place: int) -> str:
        """Return the mark of a statement's n-th parameter, from 1: "?", "%s", ":1"."""

    # -- types and values

    @property
    def tag_type(self) -> str:
        """The type of a text that is compared byte by byte: tags of rows have to sort."""

    @property
    def keeps_nan(self) -> bool:
        """Whether a float column keeps NaN; else NaN is stored as NULL."""

    @property
    def limits(self) -> TableLimits: ...

    def declared(self, kind: pa.DataType) -> str | None:
        """Return the type that holds every value of a column; None if there is none."""

    def holds(self, column: Column, declared: str) -> bool:
        """Return whether an existing column stores and compares values as one of this type, from `declared`, does."""

    def bound(self, column: Column, value: Value) -> object:
        """Return a canonical value as a parameter that is compared with this column."""

    def readable(self, alias: str, column: Column) -> str:
        """Return the expression that reads a column as its canonical value (values.py)."""

    def row_json(self, alias: str, columns: Sequence[Column]) -> str:
        """Return the expression that writes columns as canonical JSON (values.py); without columns it is `{}`."""

    # -- catalogue

    def kind_of(self, db: Connection, name: str) -> str | None:
        """Return the kind of a name: "table", or another word such as "view"; None if nothing has this name."""

    def columns(self, db: Connection, table: str) -> list[Column]:
        """Return the columns of a table, in order, without `row_order`; none if there is no such table."""

    def loosely_compared(self, db: Connection, table: str) -> dict[str, str]:
        """Return columns of the primary key that take different texts as the same one.

        Returns:
            Column -> its collation and the one it needs: "NOCASE, needed is BINARY".
        """

    def check_rights(self, db: Connection, where: str, table: str, own: Sequence[str], keyed: bool) -> None:
        """Refuse a user without the privileges that deliveries to an existing table need.

        Args:
            own: Tables of Holdfast that they write too.

        Raises:
            NotAdmitted: permissions are missing, on the table, on one of Holdfast's or on the database.
        """

    # -- numbers of rows

    @property
    def row_order(self) -> str:
        """The column that numbers the rows of `holdfast_undo`, and of tables without a key, as they are added."""

    @property
    def row_order_column(self) -> str:
        """Its declaration, for tables without a key too; "" if every table has it. `columns` leaves it out."""

    def row_number(self, db: Connection, table: str) -> str | None:
        """Return the name of the number that identifies each row of a user's table; None if it has none."""

    def numbering(self, db: Connection) -> object:
        """Return a value that differs after row numbers changed other than by a delivery or a rewind."""

    @property
    def renumbered_by(self) -> str:
        """The operation that renumbers rows, for messages: " (VACUUM does)"; "" if there is none."""

    # -- writing

    def create_temporary(self, db: Connection, table: TemporaryTable) -> None:
        """Create a temporary table."""

    def clear(self, db: Connection, table: TemporaryTable) -> None:
        """Remove its rows."""

    def load(self, db: Connection, table: TemporaryTable, rows: Iterable[tuple[Value, ...]]) -> None:
        """Add rows of canonical values, in the order of its columns, by the fastest way that the database has.

        Args:
            rows: Runs no statement of this connection; it may read the result of an earlier one.
        """

    def upsert(self, db: Connection, put: Upsert) -> int:
        """Put rows; return how many were added or replaced. Where one is put, it is locked until the commit."""

    # -- place, connections, transactions

    def check_place(self, where: str) -> None:
        """Refuse, before the first connection, a place that can hold no target. Raises ConfigError."""

    def identity(self) -> Hashable:
        """Return a value that distinguishes the place from another one under the same name. Raises Missing."""

    def connect(self, purpose: Purpose) -> Connection:
        """Open a connection; only for "create" it creates the place."""

    def look(self, db: Connection, work: Callable[[], T]) -> T:
        """Read something before a transaction, when writers leave room for it; `work` may be called several times."""

    def begin_schema(self, db: Connection) -> None:
        """Begin a transaction that creates tables; no other connection does so until it ends."""

    def begin_write(self, db: Connection) -> None:
        """Begin a transaction that writes."""

    def begin_read(self, db: Connection) -> None:
        """Begin a transaction that reads as of one moment and writes to temporary tables only."""

    @property
    def reads_in_pieces(self) -> bool:
        """Whether a long transaction that reads keeps deliveries out, so that an audit reads in short ones."""

    @property
    def hold(self) -> str:
        """Suffix of a SELECT that locks its row until the transaction ends; "" if no suffix is needed."""

    # -- errors

    @property
    def errors(self) -> type[Exception]:
        """Errors that the driver raises."""

    def meaning_of(self, where: str, error: Exception) -> HoldfastError | None:
        """Return the meaning of one of `errors` for a delivery: who acts. None if it is a bug here.

        Unavailable: busy, interrupted, a conflict of transactions, a lost connection: the outcome is unknown.
        NotAdmitted: the user may not log in, or lacks a permission; an administrator may change that at any time.
        Damaged: the database's own bytes are broken. ConfigError: the table, as it is, never takes these rows.
        """


@contextmanager
def translated(dialect: Dialect, where: str) -> Iterator[None]:
    """Raise the driver's errors as the kind that names who acts."""
    try:
        yield
    except dialect.errors as error:
        meaning = dialect.meaning_of(where, error)
        if meaning is None:
            raise
        raise meaning from error


@contextmanager
def preparing(dialect: Dialect, where: str) -> Iterator[None]:
    """Raise the errors of a driver while a target is prepared: no delivery is in progress, and nothing is retried."""
    try:
        with translated(dialect, where):
            yield
    except Unavailable as error:
        error.not_done = "the table was neither checked nor created"
        if not isinstance(error, NotAdmitted):
            error.next_step = f"{dialect.unavailable_next}; then run the job again"
        raise


def on_conflict(dialect: Dialect, put: Upsert) -> str:
    """Return the statement that puts rows, for databases that have INSERT ... ON CONFLICT."""
    columns, key = (", ".join(map(dialect.quoted, names)) for names in (put.columns, put.key))
    sets = put.sets
    if sets is None:
        sets = {name: f"excluded.{dialect.quoted(name)}" for name in put.columns if name not in put.key}
    insert = f"INSERT INTO {put.into} AS t ({columns}) {put.source} ON CONFLICT ({key})"
    if not sets:
        return f"{insert} DO NOTHING"
    update = ", ".join(f"{dialect.quoted(name)} = {value}" for name, value in sets.items())
    return f"{insert} DO UPDATE SET {update}{f' WHERE {put.only_if}' if put.only_if else ''}"
