"""`hf.Postgres`: a table of a Postgres database as a sink. sinks/sql writes it, in the words of dialect.py.

psycopg is an extra (`pip install holdfast[postgres]`), so it is imported when a sink is made, not with this module.

Source: DESIGN section 7; API.md (sinks); docs/decisions/0074-postgres.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.extras import install
from holdfast.secrets import Secret, secret_argument
from holdfast.sinks.sql.sink import TableSink
from holdfast.sinks.sql.table import check_name
from holdfast.traits import Library, SinkTraits

if TYPE_CHECKING:
    from holdfast.sinks.postgres.dialect import PostgresDialect

_TEXTS = (pa.string(), pa.large_string(), pa.string_view())


@dataclass(frozen=True, init=False)
class Postgres(TableSink):
    """A table of a Postgres database; created if missing, else checked.

    Args:
        dsn: The database, as a URL ("postgresql://app@db.example/sales") or as parameters ("host=db.example
            dbname=sales user=app"), without a password. Postgres 12 or newer, encoding UTF-8.
        table: The table.
        key: The columns of the primary key; a row replaces the one with its key. Without it, rows are only added.
        delivery: "transactional": the rows of an epoch become visible in one transaction, after its checkpoint.
            "idempotent": so too, and a key changes only by a newer tag than the one its row carries in the column
            `_holdfast_tag`; needs a key. Where no shuffle lies between source and sink, and the source is partitioned
            by columns of the key, rows are written immediately, before the commit; `holdfast plan` shows which applies.
        schema: The schema of the table and of Holdfast's own tables. It must exist.
        password: Where the driver and each worker read the password: hf.secret("env:PG_PASSWORD"). Without it, libpq
            takes one from a password file (~/.pgpass, or `passfile=` in the string) or from PGPASSWORD.
    """

    dsn: str
    table: str
    key: tuple[str, ...] | None
    delivery: str
    schema: str
    password: Secret | None
    library: ClassVar[Library] = Library(name="psycopg", extra="postgres")

    @checked("hf.Postgres", '("postgresql://app@db.example/sales", table="hot", key=["auction"])')
    def __init__(
        self,
        dsn: str,
        table: str,
        key: Iterable[str] | None = None,
        delivery: str = "transactional",
        schema: str = "public",
        password: Secret | None = None,
    ) -> None:
        key = (key,) if isinstance(key, str) else key
        object.__setattr__(self, "dsn", dsn)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "key", None if key is None else tuple(key))
        object.__setattr__(self, "delivery", delivery)
        object.__setattr__(self, "schema", schema)
        object.__setattr__(self, "password", secret_argument(password, "hf.Postgres(password=)"))
        _named(dsn)  # refuses a password before any message repeats the string

    @classmethod
    def example(cls) -> Postgres:
        """Return a table that has every trait; see sources/listed.py."""
        return cls("postgresql://app@db.example/sales", "hot", key=["auction"], delivery="idempotent")

    @property
    def dialect(self) -> PostgresDialect:
        try:
            from holdfast.sinks.postgres.dialect import PostgresDialect
        except ImportError as error:
            raise _no_driver(error) from error
        return PostgresDialect(self.dsn, self.schema, self.password)

    @property
    def where(self) -> str:
        """How messages name the target."""
        return f"Postgres {self.database}, table {self.schema!r}.{self.table!r}"

    @property
    def traits(self) -> SinkTraits:
        place = {"database": self.database, "schema": self.schema, "table": self.table}
        return self.traits_of("Postgres", place, secrets=() if self.password is None else (self.password,))

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """A longer name of the schema would be cut to that of another one."""
        check_name(self.where, self.dialect, "schema", self.schema)
        super().check(schema, upsert_key)

    def accept(self, batch: pa.RecordBatch) -> None:
        """Postgres has no form for a NUL in a text."""
        super().accept(batch)
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if field.type in _TEXTS and _has_nul(column):
                raise ConfigError(
                    f"{self.where}: the column {field.name!r} holds a text with the character NUL, which Postgres "
                    "cannot store",
                    not_done="the rows were not written",
                    next_step="before the sink, remove it with .with_columns(pl.col("
                    f'{field.name!r}).str.replace_all("\\x00", "", literal=True)), or store the column as binary',
                )

    @property
    def database(self) -> str:
        """The server and the database, without a secret."""
        return _named(self.dsn)


def _named(dsn: str) -> str:
    try:
        from holdfast.sinks.postgres.place import named
    except ImportError as error:
        raise _no_driver(error) from error
    return named(dsn)


def _has_nul(column: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring(column.cast(pa.large_string()), "\x00")).as_py())


def _no_driver(error: ImportError) -> ConfigError:
    return ConfigError(
        f"hf.Postgres needs psycopg, which cannot be imported: {error}",
        not_done="the job was not planned",
        next_step=f"install it here and on every worker: {install('postgres')}",
    )
