"""The table of an Iceberg target: the library pyiceberg, with its own retries off, since only the book decides.

A commit of Iceberg is one statement of the catalogue: it sets the table's file of metadata if it still is the one that
was read. The library reads it again just before, and compares no more than the current snapshot. So each commit has a
requirement of its own: the whole metadata is as it was when tag, owner and columns were compared.

- The book is in the table's properties, which no expiry of snapshots, compaction or rollback changes.
- The description of a commit is in the summary of its snapshot. So is each sink's newest tag, for older versions.
- A version is the sequence number of a snapshot; 0 is the table before its first one.

Source: iceberg.apache.org/spec; docs/decisions/0099-iceberg-sink.md.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy
from pydantic import PrivateAttr
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    ValidatableTableRequirement,
)
from pyiceberg.table.update.snapshot import ManageSnapshots, _ManifestMergeManager, _OverwriteFiles
from pyiceberg.transforms import IdentityTransform

from holdfast.errors import ConfigError, Damaged
from holdfast.extras import install
from holdfast.sinks.contract.phrases import NOTHING
from holdfast.sinks.contract.target import OP, PUT
from holdfast.sinks.iceberg.columns import ranges, replaced, stored_schema
from holdfast.sinks.iceberg.errors import meaning_of, no_metadata, raised
from holdfast.sinks.iceberg.place import IcebergPlace
from holdfast.sinks.iceberg.transaction import OneCopy
from holdfast.sinks.lakehouse.book import NEWEST, Deliverer, deliverers
from holdfast.sinks.lakehouse.columns import changed_columns
from holdfast.sinks.lakehouse.history import UNKNOWN, Entry
from holdfast.sinks.lakehouse.rewind import digest
from holdfast.sinks.lakehouse.target import TableCommit

INFO = "holdfast"
"""Key of the sink's own description of a commit, as JSON in the summary of its snapshot."""
SMALL_BYTES = 32 << 20
"""A file below this size that a merge changes is written into one file with the new rows."""
MANIFESTS_MAX = 20
"""From this many small manifests on, a merge by key writes them as one."""
MANIFEST_BYTES = 8 << 20
"""The size to which it merges them, as the library does for appends."""
_AT_LEAST: Any = GreaterThanOrEqual
_AT_MOST: Any = LessThanOrEqual
"""Their type hints do not describe how they are called."""
CREATED_WITH: Mapping[str, str] = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Properties of a table that Holdfast creates: without them, files of metadata pile up with each epoch."""


class Unchanged(ValidatableTableRequirement):
    """The condition of a commit: the table's metadata is as it was compared."""

    type: Literal["holdfast-unchanged"] = "holdfast-unchanged"
    _compared: TableMetadata = PrivateAttr()

    @classmethod
    def since(cls, compared: TableMetadata) -> Unchanged:
        """Return the condition for this metadata."""
        made = cls()
        made._compared = compared
        return made

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override] # pydantic's own is another
        """Raise CommitFailedException if another commit was first."""
        if base_metadata != self._compared:
            raise CommitFailedException("another commit was first")


class MergedOverwrite(_OverwriteFiles):
    """The snapshot of a merge. The library's own never merges manifests, which each merge reads: one for each epoch."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        data = [each for each in manifests if each.content == ManifestContent.DATA]
        rest = [each for each in manifests if each.content != ManifestContent.DATA]
        return _ManifestMergeManager(MANIFEST_BYTES, MANIFESTS_MAX, True, self).merge_manifests(data) + rest


class IcebergConnection:
    """A way to a table. See target.Connection; the catalogue's database stays open until `close`."""

    def __init__(self, place: IcebergPlace) -> None:
        self.place = place
        self._catalog: SqlCatalog | None = None

    def close(self) -> None:
        """See target.Connection."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def found(self) -> LoadedSnapshot | None:
        """Load the newest version; None if there is no table."""
        with self.raising():
            if not self._has_catalog():
                return None
            try:
                table = self._opened().load_table(self.place.table)
            except NoSuchTableError:
                return None
            except FileNotFoundError as error:
                raise no_metadata(self.place, error) from None
        return LoadedSnapshot(self, table, table.metadata.current_snapshot())

    def latest(self) -> LoadedSnapshot:
        """See target.Connection. Raises Damaged if there is no table."""
        if (version := self.found()) is not None:
            return version
        raise Damaged(
            f"{self.place.where}: there is no table any more: it was dropped since the job started",
            not_done=NOTHING,
            next_step="bring the table back from a backup, and rewind the job to a checkpoint that the backup covers",
        )

    def create(self, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the catalogue, the namespace and the table, as far as they are missing."""
        with self.raising():
            if self.place.sqlite is not None:
                os.makedirs(os.path.dirname(self.place.sqlite), exist_ok=True)
            catalog = self._opened(create=True)
            catalog.create_namespace_if_not_exists(self.place.table.rpartition(".")[0])
            try:
                schema = assign_fresh_schema_ids(catalog._convert_schema_if_needed(columns))
                catalog.create_table(
                    self.place.table,
                    schema,
                    partition_spec=_spec(schema, partition_by),
                    properties=dict(CREATED_WITH),
                )
            except TableAlreadyExistsError:
                pass  # another process was first; its table is checked as any other

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise the library's errors as a HoldfastError."""
        try:
            yield
        except raised() as error:
            raise meaning_of(self.place, error) from None

    def _opened(self, *, create: bool = False) -> SqlCatalog:
        if self._catalog is None or create:
            self.close()
            place, wanted = self.place, "true" if create else "false"
            try:
                self._catalog = SqlCatalog(
                    place.catalog_name, uri=place.url(), init_catalog_tables=wanted, **place.settings()
                )
                self._catalog.engine.dispose()
                if place.sqlite is not None:  # an open file would hide that another one took its place, from a backup
                    self._catalog.engine = sqlalchemy.create_engine(place.url(), poolclass=sqlalchemy.NullPool)
                else:
                    sqlalchemy.event.listen(self._catalog.engine, "connect", _durable)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"{place.where}: the driver of the catalogue's database cannot be imported: {error}",
                    not_done="nothing was opened",
                    next_step=f"install it here and on every worker: {install('iceberg', 'postgres')}",
                ) from error
        return self._catalog

    def _has_catalog(self) -> bool:
        """Return whether the database is a catalogue, without making it one."""
        if self.place.sqlite is not None and not os.path.exists(self.place.sqlite):
            return False
        return bool(sqlalchemy.inspect(self._opened().engine).has_table(IcebergTables.__tablename__))


def _durable(connection: Any, _record: Any) -> None:
    """Begin a session of Postgres: a commit that a catalogue confirms survives a crash of its server."""
    from holdfast.sinks.postgres.place import DURABLE  # needs a library that a catalogue in a file does not

    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {DURABLE}")
    connection.commit()


class LoadedSnapshot:
    """One version of the table. See target.Version and rewind.RewindVersion.

    Args:
        snapshot: None: the table before its first snapshot.
        newest: The numbers of an older version, which has no properties of its own; None: this is the newest version.
    """

    def __init__(
        self,
        connection: IcebergConnection,
        table: Table,
        snapshot: Snapshot | None,
        newest: Mapping[str, str] | None = None,
    ) -> None:
        self._connection, self._table, self._snapshot = connection, table, snapshot
        self.version: int = 0 if snapshot is None else snapshot.sequence_number or 0
        self._numbers: Mapping[str, str] = table.metadata.properties if newest is None else newest
        self.continues = False  # its history is in memory, so it can be looked at each time

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # it imports pandas, which only a table should wait for

        return pa.schema(schema_to_pyarrow(self._table.schema(), include_field_ids=False))

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns by which it is partitioned; others than by their values with the function."""
        metadata = self._table.metadata
        names = [
            (each.transform, metadata.schema().find_column_name(each.source_id)) for each in metadata.spec().fields
        ]
        return tuple(
            str(name) if isinstance(transform, IdentityTransform) else f"{transform}({name})"
            for transform, name in names
        )

    @property
    def format_version(self) -> int:
        """The version of Iceberg's format."""
        return int(self._table.metadata.format_version)

    def number(self, name: str) -> int | None:
        """See target.Version."""
        found = self._numbers.get(name)
        if found is None:
            return None
        return int(found) if found.isdecimal() else UNKNOWN  # which the book reports as damage

    def commit(self, change: TableCommit) -> bool:
        """See target.Version."""
        metadata = self._table.metadata
        after = self.version if change.restore is None else change.restore
        own = {"version": metadata.next_sequence_number(), "after": after, "commit": uuid.uuid4().hex}
        info = {**change.info, **own}
        numbers = {name: str(number) for name, number in change.numbers.items()}
        newest = {**metadata.properties, **numbers}
        summary = {INFO: json.dumps(info), **{name: n for name, n in newest.items() if name.startswith(NEWEST)}}
        with self._connection.raising():
            transaction = OneCopy(self._table)
            try:
                self._stage(transaction, change, summary)
                transaction.set_properties(numbers)
                conditions: Any = (AssertTableUUID(uuid=metadata.table_uuid), Unchanged.since(metadata))
                # Not commit_transaction: it would retry on top of the first commit, according to the table's
                # properties.
                self._table._do_commit(transaction._updates, (*transaction._requirements, *conditions))
            except CommitFailedException:
                return False
        return True

    def history(self) -> Iterable[Entry]:
        """See rewind.RewindVersion."""
        for snapshot, parent in self._lineage():
            summary = snapshot.summary
            said = None if summary is None else summary.additional_properties.get(INFO)
            operation = "unknown" if summary is None else summary.operation.value
            yield Entry(snapshot.sequence_number or 0, operation, _info(said), parent)

    def deliverers(self) -> Collection[Deliverer]:
        """See sink.SinkVersion."""
        return deliverers(self._numbers)

    def at(self, version: int) -> LoadedSnapshot | None:
        """See rewind.RewindVersion. Also None if the snapshots with its tags were expired."""
        target_snapshot: Snapshot | None = None
        for snapshot, parent in self._lineage():
            if snapshot.sequence_number == version:
                target_snapshot = snapshot
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if target_snapshot is not None and INFO in summary:
                return LoadedSnapshot(self._connection, self._table, target_snapshot, summary)
            if parent == UNKNOWN:
                return None
        return (
            LoadedSnapshot(self._connection, self._table, target_snapshot, {})
            if target_snapshot is not None or version == 0
            else None
        )

    def files(self) -> Mapping[str, int]:
        """See rewind.RewindVersion."""
        if self._snapshot is None:
            return {}
        with self._connection.raising():
            return {
                entry.data_file.file_path: entry.data_file.record_count
                for manifest in self._snapshot.manifests(self._table.io)
                if manifest.content == ManifestContent.DATA
                for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            }

    def missing(self, files: Iterable[str]) -> int:
        """See rewind.RewindVersion."""
        with self._connection.raising():
            return sum(not self._table.io.new_input(path).exists() for path in files)

    def digests(self, files: Iterable[str], key: Sequence[str]) -> pl.DataFrame:
        """See rewind.RewindVersion."""
        paths = set(files)
        empty = digest(pa.RecordBatch.from_pylist([], self.columns), key)
        if self._snapshot is None or not paths:
            return empty
        with self._connection.raising():
            tasks = self._table.scan(snapshot_id=self._snapshot.snapshot_id).plan_files()
            rows = self._read([each for each in tasks if each.file.file_path in paths], self.columns.names)
        return pl.concat([empty, *(digest(batch, key) for batch in rows.to_batches())])

    def _lineage(self) -> Iterator[tuple[Snapshot, int]]:
        """Return this snapshot and those before it, each with the version that it was made on."""
        snapshot, metadata = self._snapshot, self._table.metadata
        while snapshot is not None:
            parent = snapshot.parent_snapshot_id
            before = None if parent is None else metadata.snapshot_by_id(parent)
            if before is not None:
                yield snapshot, before.sequence_number or 0
            else:
                yield snapshot, 0 if parent is None and _is_first(snapshot) else UNKNOWN
            snapshot = before

    def _stage(self, transaction: Transaction, change: TableCommit, summary: dict[str, str]) -> None:
        if change.restore is not None:
            return self._restore(transaction, change.restore, summary)
        if change.rows is None:
            return _stage_nothing(transaction, summary)
        self._must_have_columns(change.rows)
        if change.key is None:
            return transaction.append(change.rows.select(self.columns.names), snapshot_properties=summary)
        self._merge(transaction, change.rows, change.key, summary)

    def _restore(self, transaction: Transaction, version: int, summary: dict[str, str]) -> None:
        """Go back to an older snapshot, and put a new one with the tag on top of it.

        The snapshots that are undone are not ancestors of the new one. So expiring them keeps the files that they
        deleted and the older one has.
        """
        older = next((each for each, _ in self._lineage() if each.sequence_number == version), None)
        if older is not None:
            ManageSnapshots(transaction).set_current_snapshot(older.snapshot_id)
        else:
            assert version == 0, "a rewind restores a version that it has read"
            found = None if self._snapshot is None else self._snapshot.snapshot_id
            stands = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=found)  # type: ignore[call-arg] # an alias
            transaction._stage((RemoveSnapshotRefUpdate(ref_name=MAIN_BRANCH),), (stands,))  # type: ignore[call-arg]
        _stage_nothing(transaction, summary)

    def _must_have_columns(self, rows: pa.Table) -> None:
        """Refuse a table whose columns another program has changed since the job started. Raises ConfigError."""
        needed = {field.name: field.type for field in rows.schema if field.name != OP}
        found = {field.name: field.type for field in stored_schema(self.columns)}
        if needed != found:
            raise changed_columns(self._connection.place.where, needed, found)

    def _merge(self, transaction: Transaction, rows: pa.Table, key: Sequence[str], summary: dict[str, str]) -> None:
        """Write each file without the rows that are replaced or deleted, and the new rows, in one snapshot."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        names = self.columns.names
        small_tables = [rows.filter(pc.equal(rows.column(OP), PUT)).select(names)]
        alone: list[pa.Table] = []
        replaced_tasks: list[FileScanTask] = []
        for task in self._table.scan(row_filter=_between(rows, key)).plan_files():
            mask = replaced(self._read([task], key), rows, key)
            if mask is None:
                continue
            replaced_tasks.append(task)
            kept = self._read([task], names).filter(pc.invert(mask))
            (small_tables if task.file.file_size_in_bytes < SMALL_BYTES else alone).append(kept)
        operation = Operation.APPEND if self._snapshot is None else Operation.OVERWRITE
        producer = MergedOverwrite(operation, transaction, self._table.io, snapshot_properties=summary)
        with producer:
            for task in replaced_tasks:
                producer.delete_data_file(task.file)
            for each in (pa.concat_tables(small_tables), *alone):
                if not each.num_rows:
                    continue
                for file in _dataframe_to_data_files(self._table.metadata, each, self._table.io):
                    producer.append_data_file(file)

    def _read(self, tasks: Iterable[FileScanTask], names: Sequence[str]) -> pa.Table:
        """Return columns of files, without the rows that other programs have marked as deleted."""
        from pyiceberg.io.pyarrow import ArrowScan

        schema = self._table.schema().select(*names)
        found = (
            ArrowScan(self._table.metadata, self._table.io, schema, AlwaysTrue()).to_table(tasks).select(list(names))
        )
        return pa.table(found.cast(stored_schema(found.schema)))


def _stage_nothing(transaction: Transaction, summary: dict[str, str]) -> None:
    with transaction.update_snapshot(snapshot_properties=summary).fast_append():
        pass  # a snapshot with the tag alone


def _between(rows: pa.Table, key: Sequence[str]) -> BooleanExpression:
    """Return the condition by which files without any of these keys are left out by their statistics."""
    found: BooleanExpression = AlwaysTrue()
    for name, least, greatest in ranges(rows, key):
        found = And(found, _AT_LEAST(name, least), _AT_MOST(name, greatest))
    return found


def _spec(schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    """Return a partition for each value of these columns. Every field of the schema has its own id."""
    if not partition_by:
        return UNPARTITIONED_PARTITION_SPEC
    ids = {field.name: field.field_id for field in schema.fields}
    assert len(set(ids.values())) == len(ids), "fields of one id cannot be told apart"
    fields = (PartitionField(ids[name], 1000 + n, IdentityTransform(), name) for n, name in enumerate(partition_by))
    return PartitionSpec(*fields)


def _is_first(snapshot: Snapshot) -> bool:
    """Return whether the table had no rows before a snapshot without a parent: expiry by pyiceberg removes its name."""
    said = None if snapshot.summary is None else _info(snapshot.summary.additional_properties.get(INFO))
    return snapshot.sequence_number == 1 if said is None else said.get("after") == 0


def _info(said: str | None) -> Mapping[str, Any] | None:
    """Return the sink's description in a commit; None: another program made the commit."""
    if said is None:
        return None
    try:
        found = json.loads(said)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
