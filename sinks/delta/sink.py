"""`hf.Delta`: a Delta Lake table as a sink.

Each epoch becomes one commit, after its checkpoint (target.py). deltalake is loaded at the first connection.

Source: API.md (sinks); docs/design/0084-delta-sink.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.model import Writer
from holdfast.sinks.contract import Fault, Repair, Rewinding, no_fault
from holdfast.sinks.delta.columns import DELTA
from holdfast.sinks.delta.place import DeltaPlace, place_of
from holdfast.sinks.lakehouse.book import Book
from holdfast.sinks.lakehouse.columns import Columns
from holdfast.sinks.lakehouse.options import Option
from holdfast.sinks.lakehouse.rewind import plan, repair
from holdfast.sinks.lakehouse.target import TableTarget
from holdfast.sinks.owners import Claim, Holding
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
class Delta:
    """A Delta Lake table; created if it is missing, else checked.

    The rows of an epoch become visible in one commit, after its checkpoint.

    Args:
        path: A folder that the driver and every worker see, relative to the working directory, or a URL such as
            "s3://bucket/table".
        key: Columns by which rows replace each other: each epoch is merged into the table. Without it, rows are only
            added.
        partition_by: Columns whose values make the folders of the table, in this order; whole numbers, text or dates.
        options: Options of the object store, such as {"AWS_ENDPOINT_URL": "http://minio:9000"}. What is secret takes
            an hf.secret. Without them, the environment of the driver and of each worker counts.
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
        given = os.fspath(path)
        refuse_password(given, "the path of hf.Delta")
        if not given:
            raise ConfigError(
                "hf.Delta: the path is empty", not_done="the job was not planned", next_step="give a folder or a URL"
            )
        key = (key,) if isinstance(key, str) else key
        partition_by = (partition_by,) if isinstance(partition_by, str) else partition_by
        place = place_of(given if "://" in given else os.path.abspath(given), options)
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
        """See Sink.traits. It takes one epoch per commit, so that a rewind can restore any of them."""
        return SinkTraits(
            kind="Delta",
            local_paths=local(self.place.path),
            place={"path": self.place.path},
            secrets=self.place.secrets,
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
        connection = self._connection()
        if (table := connection.found()) is None:
            self._refuse_others(connection)
            connection.create(self._columns.stored(schema), self.partition_by)
            table = connection.latest()
        self._compare(table, schema)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        """See ProbingSink.probe."""
        self.check(schema, upsert_key)
        connection = self._connection()
        if (table := connection.found()) is None:
            self._refuse_others(connection)
            return "there is no table; the first start creates it"
        self._compare(table, schema)
        return f"the table, at version {table.version}, has the columns of the stream"

    def accept(self, batch: pa.RecordBatch) -> None:
        """See Sink.accept."""
        self._columns.accept(batch)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """See OwnedSink.check_owner."""
        if self._book().another_job(job_uuid, name):
            raise ConfigError(
                f"{self.where}: holds output of a sink {name!r} of another job",
                not_done="the job was not started, the table was not changed",
                next_step="if that job was deleted and recreated, its rows would come twice: name another table, or "
                "delete this one. If both jobs are to write here, give this sink another name",
            )

    def holding(self, job_uuid: str, name: str) -> Holding:
        """See HeldSink.holding."""
        if (table := self._connection().found()) is None:
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
        return plan(self.where, self._connection().latest(), rewinding, self.key).repair

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.repair."""
        return self.repaired(rewinding)

    def repaired(self, rewinding: Rewinding, fault: Fault = no_fault) -> Repair:
        """Repair, and call `fault` at every point."""
        return repair(self.where, self._connection(), rewinding, self.key, fault)

    @property
    def _columns(self) -> Columns:
        return Columns(DELTA, self.where, self.key, self.partition_by)

    def _book(self) -> Book:
        return Book(self.where, self._connection().latest().number)

    def _connection(self) -> DeltaConnection:
        try:
            from holdfast.sinks.delta.client import DeltaConnection
        except ImportError as error:
            raise ConfigError(
                f"hf.Delta needs deltalake, which cannot be imported: {error}",
                not_done="nothing was opened",
                next_step="install it here and on every worker: pip install 'holdfast[delta]'",
            ) from error
        return DeltaConnection(self.place)

    def _refuse_others(self, connection: DeltaConnection) -> None:
        """Refuse to create a table around files of others: VACUUM deletes what a table does not name."""
        if (found := connection.others()) is not None:
            raise ConfigError(
                f"{self.where}: the folder holds no table, but other things, such as {found}; VACUUM would delete them",
                not_done="no table was created",
                next_step="correct the path, name a new folder for the table, or move the other files away",
            )

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

    def _unfit(self, what: str, next_step: str) -> ConfigError:
        return ConfigError(
            f"{self.where}: {what}",
            not_done="the table was not changed",
            next_step=f"{next_step}, or give the sink another table",
        )
