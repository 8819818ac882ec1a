"""`hf.Iceberg`: an Apache Iceberg table as a sink.

Each epoch becomes one snapshot, after its checkpoint (lakehouse/target.py). pyiceberg is loaded at the first
connection.

Source: API.md (sinks); docs/design/0099-iceberg-sink.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.model import Writer
from holdfast.secrets import Secret
from holdfast.sinks.contract import Fault, Repair, Rewinding, no_fault
from holdfast.sinks.iceberg.columns import ICEBERG
from holdfast.sinks.iceberg.place import SINK, IcebergPlace, place_of
from holdfast.sinks.lakehouse.book import Book
from holdfast.sinks.lakehouse.columns import Columns
from holdfast.sinks.lakehouse.options import Option, refused
from holdfast.sinks.lakehouse.rewind import plan, repair
from holdfast.sinks.lakehouse.target import TableTarget
from holdfast.sinks.owners import Claim, Holding
from holdfast.traits import Library, SinkTraits, local

if TYPE_CHECKING:
    from holdfast.sinks.iceberg.client import IcebergConnection, LoadedVersion

_FORMAT_VERSION = 2
"""Version 1 has no sequence numbers; of version 3, pyiceberg cannot write all."""


@dataclass(frozen=True, init=False)
class Iceberg:
    """An Apache Iceberg table in a SQL catalogue; created if it is missing, else checked.

    The rows of an epoch become visible in one snapshot, after its checkpoint.

    Args:
        table: The namespace and the name of the table, such as "shop.sales".
        catalog: The database of the catalogue, as a URL of SQLAlchemy without a password: "sqlite:///lake/catalog.db",
            relative to the working directory, or "postgresql://USER@HOST/DATABASE".
        warehouse: The folder of the catalogue's tables, which the driver and every worker see, or a URL such as
            "s3://bucket/lake". A table that exists is where the catalogue says.
        key: Columns by which rows replace each other: each epoch is merged into the table. Without it, rows are only
            added.
        partition_by: Columns by whose values the table is partitioned; whole numbers, text or dates.
        catalog_name: The name under which the catalogue keeps its tables: several can share one database.
        options: Options of pyiceberg for the object store, such as {"s3.endpoint": "http://minio:9000"}. What is secret
            takes an hf.secret. Without them, the environment of the driver and of each worker counts.
        password: Where the driver and each worker read the password of the catalogue's database.
    """

    place: IcebergPlace
    key: tuple[str, ...] | None
    partition_by: tuple[str, ...]
    library: ClassVar[Library] = Library(name="pyiceberg", extra="iceberg")

    @checked(SINK, '("shop.sales", catalog="sqlite:///lake/catalog.db", warehouse="lake", key=["auction"])')
    def __init__(
        self,
        table: str,
        catalog: str,
        warehouse: str | os.PathLike[str],
        key: Iterable[str] | None = None,
        partition_by: Iterable[str] = (),
        catalog_name: str = "default",
        options: Mapping[str, Option] | None = None,
        password: Secret | None = None,
    ) -> None:
        given = os.fspath(warehouse)
        if not given:
            raise refused(SINK, "the warehouse is empty", "give a folder or a URL")
        head, slashes, path = catalog.partition(":///")
        if head.startswith("sqlite") and slashes and path and not path.startswith(":memory:"):
            catalog = f"{head}:///{os.path.abspath(path)}"
        key = (key,) if isinstance(key, str) else key
        partition_by = (partition_by,) if isinstance(partition_by, str) else partition_by
        folder = given if "://" in given else os.path.abspath(given)
        object.__setattr__(self, "place", place_of(table, catalog, folder, catalog_name, options, password))
        object.__setattr__(self, "key", None if key is None else tuple(key))
        object.__setattr__(self, "partition_by", tuple(partition_by))

    @classmethod
    def example(cls) -> Iceberg:
        """Return a sink that has every trait; see sources/listed.py."""
        return cls("shop.hot", "sqlite:///lake/catalog.db", "lake", key=["auction"])

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self.place.where

    @property
    def traits(self) -> SinkTraits:
        """See Sink.traits. It takes one epoch per commit, so that a rewind can restore any of them."""
        place = self.place
        return SinkTraits(
            kind="Iceberg",
            local_paths=local(*place.paths),
            place={"table": place.table, "catalog": place.catalog, "warehouse": place.warehouse},
            secrets=place.secrets,
            keyed=self.key is not None,
            repairs=True,
            exclusive=self.key is not None,
            checks_owner=True,
            remembers_owner=True,
            commits_once=True,
            probes=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.check."""
        self._columns.check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.prepare."""
        self.check(schema, upsert_key)
        with self._connected() as connection:
            if (table := connection.found()) is None:
                connection.create(self._columns.stored(schema), self.partition_by)
                table = connection.latest()
            self._compare(table, schema)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        """See ProbingSink.probe."""
        self.check(schema, upsert_key)
        with self._connected() as connection:
            if (table := connection.found()) is None:
                return "there is no table; the first start creates it"
            self._compare(table, schema)
            return f"the table, at version {table.version}, has the columns of the stream"

    def accept(self, batch: pa.RecordBatch) -> None:
        """See Sink.accept."""
        self._columns.accept(batch)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """See OwnedSink.check_owner."""
        with self._connected() as connection:
            another = Book(self.where, connection.latest().number).another_job(job_uuid, name)
        if another:
            raise ConfigError(
                f"{self.where}: holds output of a sink {name!r} of another job",
                not_done="the job was not started, the table was not changed",
                next_step="if that job was deleted and recreated, its rows would come twice: name another table, or "
                "delete this one. If both jobs are to write here, give this sink another name",
            )

    def holding(self, job_uuid: str, name: str) -> Holding:
        """See HeldSink.holding."""
        with self._connected() as connection:
            if (table := connection.found()) is None:
                return Holding(None, None)
            book = Book(self.where, table.number)
        return Holding(book.held(job_uuid, name), book.newest(job_uuid, name))

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> TableTarget:
        """See Sink.open."""
        return self.opened(job_uuid, writer, claim)

    def opened(self, job_uuid: str, writer: Writer, claim: Claim | None = None, fault: Fault = no_fault) -> TableTarget:
        """Return a target that calls `fault` at every point of a delivery."""
        read = self._columns.table_of
        return TableTarget(self.where, self._connection(), read, self.key, job_uuid, writer, claim, fault)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.plan_repair."""
        with self._connected() as connection:
            return plan(self.where, connection.latest(), rewinding, self.key).repair

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.repair."""
        return self.repaired(rewinding)

    def repaired(self, rewinding: Rewinding, fault: Fault = no_fault) -> Repair:
        """Repair, and call `fault` at every point."""
        with self._connected() as connection:
            return repair(self.where, connection, rewinding, self.key, fault)

    @property
    def _columns(self) -> Columns:
        return Columns(ICEBERG, self.where, self.key, self.partition_by)

    @contextmanager
    def _connected(self) -> Iterator[IcebergConnection]:
        with closing(self._connection()) as connection:
            yield connection

    def _connection(self) -> IcebergConnection:
        try:
            from holdfast.sinks.iceberg.client import IcebergConnection
        except ImportError as error:
            raise ConfigError(
                f"hf.Iceberg needs pyiceberg and SQLAlchemy, which cannot be imported: {error}",
                not_done="nothing was opened",
                next_step="install them here and on every worker: pip install 'holdfast[iceberg]'",
            ) from error
        return IcebergConnection(self.place)

    def _compare(self, table: LoadedVersion, schema: pa.Schema) -> None:
        """Refuse a table that cannot take the rows of the stream. Raises ConfigError."""
        if differs := self._columns.differences(table.columns, table.partition_by, schema):
            raise self._unfit(f"its columns are not the stream's: {differs}", "select the columns before the sink")
        if table.format_version != _FORMAT_VERSION:
            raise self._unfit(
                f"it has format version {table.format_version}, and a sink needs {_FORMAT_VERSION}",
                "upgrade a table of version 1 with ALTER TABLE ... SET TBLPROPERTIES ('format-version' = '2')",
            )

    def _unfit(self, what: str, next_step: str) -> ConfigError:
        return ConfigError(
            f"{self.where}: {what}",
            not_done="the table was not changed",
            next_step=f"{next_step}, or give the sink another table",
        )
