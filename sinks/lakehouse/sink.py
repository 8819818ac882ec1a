"""A table of a lakehouse as a sink: everything but its place and its format.

A public sink is a frozen dataclass that derives from `LakehouseSink`. It gives its place, the connection of its
format's client.py, and the properties that a table of that format must not have.

Pure: no clock, thread or I/O of its own. Source: API.md (sinks); docs/decisions/0084-delta-sink.md,
0099-iceberg-sink.md, 0110-lakehouse-tables-with-one-owner.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Writer
from holdfast.secrets import Secret
from holdfast.sinks.contract.owners import Claim, Holding, Ownership, Rival, at_start, belongs_to
from holdfast.sinks.contract.sink import Repair, Repairs, Rewinding, Sink
from holdfast.sinks.contract.target import Fault, no_fault
from holdfast.sinks.lakehouse.book import Book, Deliverer, namesake
from holdfast.sinks.lakehouse.columns import TableColumns
from holdfast.sinks.lakehouse.history import taken_back
from holdfast.sinks.lakehouse.rewind import RewindVersion, plan, repair
from holdfast.sinks.lakehouse.target import TableTarget
from holdfast.traits import SinkTraits


class SinkVersion(RewindVersion, Protocol):
    """A version of the table as starts see it. Its calls raise a HoldfastError."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns by which it is partitioned."""

    def deliverers(self) -> Collection[Deliverer]:
        """Return the sinks that are known to have delivered to the table."""


V = TypeVar("V", bound=SinkVersion)
V_co = TypeVar("V_co", bound=SinkVersion, covariant=True)


class SinkConnection(Protocol[V_co]):
    """A way to the table. Its calls raise a HoldfastError."""

    def found(self) -> V_co | None:
        """Load the newest version; None if there is no table."""

    def latest(self) -> V_co:
        """Load the newest version. Raises Damaged if there is no table."""

    def create(self, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table; if another process was first, change nothing."""

    def close(self) -> None:
        """Release connections; the next use opens them again."""


class LakehouseSink(Repairs, Ownership, Sink, Generic[V]):
    """A table as a sink. See contract.Sink.

    Attributes:
        key: The columns by which rows replace each other; None: rows are only added.
        partition_by: The columns by which the table is partitioned.
    """

    key: tuple[str, ...] | None
    partition_by: tuple[str, ...]

    @property
    @abstractmethod
    def _columns(self) -> TableColumns:
        """How rows become rows of the table."""

    @abstractmethod
    def _connection(self) -> SinkConnection[V]:
        """Return a way to the table. Raises ConfigError if the library is missing."""

    @abstractmethod
    def _compare(self, table: V, schema: pa.Schema) -> None:
        """Refuse a table that cannot take the rows of the stream. Raises ConfigError."""

    def traits_of(
        self, kind: str, place: Mapping[str, str], local_paths: tuple[str, ...], secrets: tuple[Secret, ...]
    ) -> SinkTraits:
        """Return the traits of a table. It takes one epoch per commit, so that a rewind can restore any of them."""
        return SinkTraits(
            kind=kind,
            local_paths=local_paths,
            place=place,
            secrets=secrets,
            keyed=self.key is not None,
            exclusive=self.key is not None,
            commits_once=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self._columns.check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check(schema, upsert_key)
        with closing(self._connection()) as connection:
            if (table := self._found(connection)) is None:
                connection.create(self._columns.stored(schema), self.partition_by)
                table = connection.latest()
            self._compare(table, schema)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        self.check(schema, upsert_key)
        with closing(self._connection()) as connection:
            if (table := self._found(connection)) is None:
                return "there is no table; the first start creates it"
            self._compare(table, schema)
            return f"the table, at version {table.version}, has the columns of the stream"

    def accept(self, batch: pa.RecordBatch) -> None:
        self._columns.accept(batch)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """For a table with a key, `holding` reports the sink that the table belongs to."""
        ours = (job_uuid or "", name)
        with closing(self._connection()) as connection:
            table = connection.latest()
            book = Book(self.where, table.number)
            another, rival = book.another_job(job_uuid, name), self._rival(table, book, ours)
        if another and (self.key is None or rival is None):
            raise at_start(namesake(self.where, name))
        if rival is not None and self.key is None:
            raise at_start(belongs_to(self.where, job_uuid, rival))

    def holding(self, job_uuid: str, name: str) -> Holding:
        with closing(self._connection()) as connection:
            if (table := connection.found()) is None:
                return Holding(None, None)
            book = Book(self.where, table.number)
            rival = None if self.key is None else self._rival(table, book, (job_uuid, name))
            newest = book.newest(job_uuid, name)
            lost = None if newest is None else taken_back(table.history(), job_uuid, name, newest)
            return Holding(book.held(job_uuid, name), newest, rival, lost)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> TableTarget:
        return self.opened(job_uuid, writer, claim)

    def opened(self, job_uuid: str, writer: Writer, claim: Claim | None = None, fault: Fault = no_fault) -> TableTarget:
        """Return a target that calls `fault` at every point of a delivery."""
        read = self._columns.table_of
        return TableTarget(self.where, self._connection(), read, self.key, job_uuid, writer, claim, fault)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        with closing(self._connection()) as connection:
            return plan(self.where, connection.latest(), rewinding, self.key).repair

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        return self.repaired(rewinding)

    def repaired(self, rewinding: Rewinding, fault: Fault = no_fault) -> Repair:
        """Repair, and call `fault` at every point."""
        with closing(self._connection()) as connection:
            return repair(self.where, connection, rewinding, self.key, fault)

    def _found(self, connection: SinkConnection[V]) -> V | None:
        """Return the table; None if it is missing and may be created."""
        return connection.found()

    def _rival(self, table: V, book: Book, ours: Deliverer) -> Rival | None:
        """Return another sink to which the table belongs, also if an earlier version, which noted none, wrote to it."""
        keyed = self.key is not None
        if book.noted() or not keyed or book.newest(*ours) is not None:
            return book.rival(*ours, keyed)
        others = sorted(each for each in table.deliverers() if each != ours)
        return Rival(*others[0], book.held(*others[0])) if others and table.files() else None

    def _unfit(self, what: str, next_step: str) -> ConfigError:
        return ConfigError(
            f"{self.where}: {what}",
            not_done="the table was not changed",
            next_step=f"{next_step}, or give the sink another table",
        )
