"""`hf.Delta`: a Delta Lake table as a sink.

Each epoch becomes one commit, after its checkpoint (lakehouse/). deltalake is loaded at the first connection.

Source: API.md (sinks); docs/decisions/0084-delta-sink.md.
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
from holdfast.sinks.delta.columns import DELTA
from holdfast.sinks.delta.place import DeltaPlace, place_of
from holdfast.sinks.lakehouse.columns import TableColumns
from holdfast.sinks.lakehouse.options import Option
from holdfast.sinks.lakehouse.sink import LakehouseSink, SinkConnection
from holdfast.storage.paths import refuse_password
from holdfast.traits import Library, SinkTraits, local

if TYPE_CHECKING:
    from holdfast.sinks.delta.client import DeltaConnection, LoadedVersion

_FORGETS = "delta.setTransactionRetentionDuration"
"""A property that lets a table drop old transaction identifiers."""
_MAPS = "delta.columnMapping.mode"
"""A property that gives columns other names in the files."""
_KNOWN_FEATURES = ("appendOnly", "changeDataFeed", "invariants", "checkConstraints", "timestampNtz")
"""Features of a table that a delivery can leave as they are; some are then checked one by one."""


@dataclass(frozen=True, init=False)
class Delta(LakehouseSink["LoadedVersion"]):
    """A Delta Lake table; created if it is missing, else checked.

    The rows of an epoch become visible in one commit, after its checkpoint.

    Args:
        path: A folder that the driver and every worker see, relative to the working directory, or a URL such as
            "s3://bucket/table".
        key: Columns by which rows replace each other: each epoch is merged into the table. Without it, rows are only
            added.
        partition_by: Columns whose values make the folders of the table, in this order; whole numbers, text or dates.
        options: Options of the object store, such as {"AWS_ENDPOINT_URL": "http://minio:9000"}. Secret values take an
            hf.secret. Without options, the environment of the driver and of each worker counts.
    """

    place: DeltaPlace
    key: tuple[str, ...] | None
    partition_by: tuple[str, ...]
    library: ClassVar[Library] = Library(name="deltalake", extra="delta")

    @checked("hf.Delta", '("data/hot", key=["auction"])')
    def __init__(
        self,
        path: str | os.PathLike[str],
        key: Iterable[str] | None = None,
        partition_by: Iterable[str] = (),
        options: Mapping[str, Option] | None = None,
    ) -> None:
        location = os.fspath(path)
        refuse_password(location, "the path of hf.Delta")
        if not location:
            raise ConfigError(
                "hf.Delta: the path is empty", not_done="the job was not planned", next_step="give a folder or a URL"
            )
        key = (key,) if isinstance(key, str) else key
        partition_by = (partition_by,) if isinstance(partition_by, str) else partition_by
        place = place_of(location if "://" in location else os.path.abspath(location), options)
        object.__setattr__(self, "place", place)
        object.__setattr__(self, "key", None if key is None else tuple(key))
        object.__setattr__(self, "partition_by", tuple(partition_by))

    @classmethod
    def example(cls) -> Delta:
        """Return a sink that has every trait; see sources/listed.py."""
        return cls("data/hot", key=["auction"])

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self.place.where

    @property
    def traits(self) -> SinkTraits:
        place = {"path": self.place.path}
        return self.traits_of("Delta", place, local(self.place.path), self.place.secrets)

    @property
    def _columns(self) -> TableColumns:
        return TableColumns(DELTA, self.where, self.key, self.partition_by)

    def _connection(self) -> DeltaConnection:
        try:
            from holdfast.sinks.delta.client import DeltaConnection
        except ImportError as error:
            raise ConfigError(
                f"hf.Delta needs deltalake, which cannot be imported: {error}",
                not_done="nothing was opened",
                next_step=f"install it here and on every worker: {install('delta')}",
            ) from error
        return DeltaConnection(self.place)

    def _found(self, connection: SinkConnection[LoadedVersion]) -> LoadedVersion | None:
        """Refuse to create a table around files of others: VACUUM deletes files that a table does not name."""
        table = connection.found()
        if table is None and (found := self._connection().others()) is not None:
            raise ConfigError(
                f"{self.where}: the folder holds no table, but other things, such as {found}; VACUUM would delete them",
                not_done="no table was created",
                next_step="correct the path, name a new folder for the table, or move the other files away",
            )
        return table

    def _compare(self, table: LoadedVersion, schema: pa.Schema) -> None:
        """Refuse a table that cannot take the rows of the stream, or forgets tags. Raises ConfigError."""
        settings = table.configuration
        checks = sorted(name for name in settings if name.startswith("delta.constraints."))
        unknown = sorted(set(table.features) - set(_KNOWN_FEATURES))
        if differs := self._columns.differences(table.columns, table.partition_by, schema):
            raise self._unfit(f"its columns are not the stream's: {differs}", "select the columns before the sink")
        if _FORGETS in settings:
            raise self._unfit(
                f"it has {_FORGETS}, which lets it forget the tags that make each delivery happen once",
                f"remove the property: ALTER TABLE ... UNSET TBLPROPERTIES ('{_FORGETS}')",
            )
        if (mapping := settings.get(_MAPS, "none")) != "none":
            raise self._unfit(f"it has {_MAPS}={mapping}, which rewinds and some readers do not support", "disable it")
        if self.key is not None and settings.get("delta.appendOnly") == "true":
            raise self._unfit("it has delta.appendOnly, but the sink replaces rows by key", "remove the property")
        if checks or table.generated:
            found = ", ".join([*checks, *table.generated])
            raise self._unfit(f"it checks or computes values itself: {found}", "drop these rules")
        if unknown:
            raise self._unfit(f"it has features that a sink does not support: {', '.join(unknown)}", "disable them")
