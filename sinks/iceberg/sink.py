"""`hf.Iceberg`: an Apache Iceberg table as a sink.

Each epoch becomes one snapshot, after its checkpoint (lakehouse/). pyiceberg is loaded at the first
connection.

Source: API.md (sinks); docs/decisions/0099-iceberg-sink.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.extras import install
from holdfast.secrets import Secret
from holdfast.sinks.iceberg.columns import ICEBERG
from holdfast.sinks.iceberg.place import SINK, IcebergPlace, place_of
from holdfast.sinks.lakehouse.columns import TableColumns
from holdfast.sinks.lakehouse.options import Option, refused
from holdfast.sinks.lakehouse.sink import LakehouseSink
from holdfast.traits import Library, SinkTraits, local

if TYPE_CHECKING:
    from holdfast.sinks.iceberg.client import IcebergConnection, LoadedSnapshot

_FORMAT_VERSION = 2
"""Version 1 has no sequence numbers; of version 3, pyiceberg cannot write all."""


@dataclass(frozen=True, init=False)
class Iceberg(LakehouseSink["LoadedSnapshot"]):
    """An Apache Iceberg table in a SQL catalogue; created if it is missing, else checked.

    The rows of an epoch become visible in one snapshot, after its checkpoint.

    Args:
        table: The namespace and the name of the table, such as "shop.sales".
        catalog: The database of the catalogue, as a URL of SQLAlchemy without a password: "sqlite:///lake/catalog.db",
            relative to the working directory, or "postgresql://USER@HOST/DATABASE".
        warehouse: The folder of the catalogue's tables, which the driver and every worker see, or a URL such as
            "s3://bucket/lake". An existing table stays at its location in the catalogue.
        key: Columns by which rows replace each other: each epoch is merged into the table. Without it, rows are only
            added.
        partition_by: Columns by whose values the table is partitioned; whole numbers, text or dates.
        catalog_name: The name under which the catalogue keeps its tables: several can share one database.
        options: Options of pyiceberg for the object store, such as {"s3.endpoint": "http://minio:9000"}. Secret values
            take an hf.secret. Without options, the environment of the driver and of each worker counts.
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
        location = os.fspath(warehouse)
        if not location:
            raise refused(SINK, "the warehouse is empty", "give a folder or a URL")
        head, slashes, path = catalog.partition(":///")
        if head.startswith("sqlite") and slashes and path and not path.startswith(":memory:"):
            catalog = f"{head}:///{os.path.abspath(path)}"
        key = (key,) if isinstance(key, str) else key
        partition_by = (partition_by,) if isinstance(partition_by, str) else partition_by
        folder = location if "://" in location else os.path.abspath(location)
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
        place = {"table": self.place.table, "catalog": self.place.catalog, "warehouse": self.place.warehouse}
        return self.traits_of("Iceberg", place, local(*self.place.paths), self.place.secrets)

    @property
    def _columns(self) -> TableColumns:
        return TableColumns(ICEBERG, self.where, self.key, self.partition_by)

    def _connection(self) -> IcebergConnection:
        try:
            from holdfast.sinks.iceberg.client import IcebergConnection
        except ImportError as error:
            raise ConfigError(
                f"hf.Iceberg needs pyiceberg and SQLAlchemy, which cannot be imported: {error}",
                not_done="nothing was opened",
                next_step=f"install them here and on every worker: {install('iceberg')}",
            ) from error
        return IcebergConnection(self.place)

    def _compare(self, table: LoadedSnapshot, schema: pa.Schema) -> None:
        """Refuse a table that cannot take the rows of the stream. Raises ConfigError."""
        if differs := self._columns.differences(table.columns, table.partition_by, schema):
            raise self._unfit(f"its columns are not the stream's: {differs}", "select the columns before the sink")
        if table.format_version != _FORMAT_VERSION:
            raise self._unfit(
                f"it has format version {table.format_version}, and a sink needs {_FORMAT_VERSION}",
                "upgrade a table of version 1 with ALTER TABLE ... SET TBLPROPERTIES ('format-version' = '2')",
            )
