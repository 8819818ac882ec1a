"""The table of a Delta target: the library deltalake, with its own retries off, since only the book decides.

Every look at the table loads it from the start. A table that is refreshed would not notice that it was restored from a
backup, and would commit with a gap. The entries of the book are cached as long as the newest commit is our own last
one.

Source: delta-io.github.io/delta-rs; docs/decisions/0084-delta-sink.md.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from holdfast.errors import ConfigError, Damaged
from holdfast.sinks.contract.phrases import NOTHING
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.delta.columns import DELTA
from holdfast.sinks.delta.errors import RAISED, is_conflict, meaning_of
from holdfast.sinks.delta.place import DeltaPlace, unsafe
from holdfast.sinks.lakehouse.book import Deliverer
from holdfast.sinks.lakehouse.columns import changed_columns
from holdfast.sinks.lakehouse.history import UNKNOWN, Entry
from holdfast.sinks.lakehouse.rewind import digest
from holdfast.sinks.lakehouse.target import TableCommit
from holdfast.traits import local

INFO = "holdfast"
"""Key of the sink's own description of a commit, one member of its commitInfo."""
COMMIT = "commit"
"""A random name in it, by which a process recognises its own last commit."""
AT_ATTEMPTS = 2
"""How often an older version is loaded before it counts as gone. The library has no error for that alone."""
_CHECKPOINT_INTERVAL = 100
"""Commits per checkpoint of a table that does not configure it."""
HISTORY_READ = (8, 128, 2_048)
"""How many commits of a history are read at first, and how many next; then all that are left."""
_IDENTITY_VERSION = 6
"""The version of the protocol whose writers have to support identity columns."""


class DeltaConnection:
    """A way to a table. See target.Connection; nothing stays open."""

    def __init__(self, place: DeltaPlace) -> None:
        self.place = place
        self._last: str | None = None
        self._numbers: dict[str, int | None] = {}

    def found(self) -> LoadedVersion | None:
        """Load the newest version; None if there is no table."""
        if variable := unsafe(os.environ):
            raise ConfigError(
                f"{self.place.where}: the environment has {variable}, with which two commits can take the same version",
                not_done="nothing was opened",
                next_step=f"unset {variable} for the driver and for each worker",
            )
        if local(self.place.path) and os.path.isfile(self.place.path):
            raise ConfigError(
                f"{self.place.where}: the path is a file, and a table is a folder",
                not_done="nothing was opened",
                next_step="name a folder, or a path that does not exist yet",
            )
        with self.raising():
            try:
                return LoadedVersion(self, self.load())
            except TableNotFoundError:
                return None

    def latest(self) -> LoadedVersion:
        """See target.Connection. Raises ConfigError if there is no table."""
        if (version := self.found()) is not None:
            return version
        raise Damaged(
            f"{self.place.where}: there is no table any more: it was deleted since the job started",
            not_done=NOTHING,
            next_step="bring the table back from a backup, and rewind the job to a checkpoint that the backup covers",
        )

    def close(self) -> None:
        """See target.Connection. Nothing is open."""

    def others(self) -> str | None:
        """Return files in a local folder without a table that VACUUM would delete; None if none, or unknown."""
        if not local(self.place.path):
            return None
        try:
            names = os.listdir(self.place.path)
        except OSError:  # there is no such folder, or creating the table reports the error
            return None
        return min((name for name in names if not name.startswith(("_", "."))), default=None)

    def create(self, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table; if another process was first, change nothing."""
        with self.raising():
            try:
                DeltaTable.create(
                    self.place.path,
                    pa.schema(columns),
                    mode="error",
                    partition_by=list(partition_by),
                    storage_options=self.place.settings(),
                )
            except DeltaError as error:
                if not (is_conflict(error) or "already exist" in str(error)):
                    raise

    def load(self, version: int | None = None) -> DeltaTable:
        """Load a version of the table, or the newest one. Raises the errors of the library."""
        return DeltaTable(self.place.path, version=version, storage_options=self.place.settings())

    def numbers(self, table: DeltaTable) -> dict[str, int | None] | None:
        """Return the known part of the book of a table's newest version; None if another process made its commit."""
        if self._last is not None:
            newest = table.history(1)
            if newest and (_info(newest[0]) or {}).get(COMMIT) == self._last:
                return dict(self._numbers)
        return None

    def committed(self, name: str, numbers: dict[str, int | None]) -> None:
        """Remember our own last commit, and the book after it."""
        self._last, self._numbers = name, numbers

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise the library's errors as a HoldfastError."""
        try:
            yield
        except RAISED as error:
            raise meaning_of(self.place, error) from None
        except Exception as error:
            if type(error) is not Exception:
                raise
            raise meaning_of(self.place, error) from None  # the library raises no more for some errors of Arrow


class LoadedVersion:
    """One version of the table. See target.Version and rewind.RewindVersion."""

    def __init__(self, connection: DeltaConnection, table: DeltaTable, *, newest: bool = True) -> None:
        self._connection, self._table = connection, table
        self.version: int = table.version()
        known = connection.numbers(table) if newest else None
        self.continues = known is not None
        self._numbers = known or {}

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""
        return pa.schema(self._table.schema().to_arrow())

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns by which it is partitioned."""
        return tuple(self._table.metadata().partition_columns)

    @property
    def configuration(self) -> Mapping[str, str]:
        """The properties of the table."""
        return dict(self._table.metadata().configuration)

    @property
    def features(self) -> tuple[str, ...]:
        """The features that a writer of the table has to support: those listed, or the one that the library lacks."""
        protocol = self._table.protocol()
        if protocol.writer_features is None:
            return ("identityColumns",) if protocol.min_writer_version == _IDENTITY_VERSION else ()
        return tuple(protocol.writer_features)

    @property
    def generated(self) -> tuple[str, ...]:
        """The columns that the table computes or checks itself."""
        marks = ("delta.generationExpression", "delta.invariants", "delta.identity")
        fields = self._table.schema().fields
        return tuple(each.name for each in fields if any(name.startswith(marks) for name in each.metadata))

    def number(self, name: str) -> int | None:
        """See target.Version."""
        if name not in self._numbers:
            with self._connection.raising():
                self._numbers[name] = self._table.transaction_version(name)
        return self._numbers[name]

    def commit(self, change: TableCommit) -> bool:
        """See target.Version."""
        name = uuid.uuid4().hex
        properties = CommitProperties(
            custom_metadata={INFO: {**change.info, COMMIT: name}},
            max_commit_retries=0,
            app_transactions=[Transaction(each, number) for each, number in sorted(change.numbers.items())],
        )
        with self._connection.raising():
            try:
                self._write(change, properties)
            except DeltaError as error:
                if is_conflict(error):
                    return False
                raise
        self._connection.committed(name, {**self._numbers, **change.numbers})
        return True

    def history(self) -> Iterator[Entry]:
        """See rewind.RewindVersion. Each commit is a file, so they are read as far as they are asked for."""
        count = 0
        for limit in (*HISTORY_READ, None):
            with self._connection.raising():
                commits = self._table.history(limit)
            for each in commits[count:]:
                info = _info(each)
                restored = _restored(each) if info is None else None
                yield Entry(each["version"], str(each.get("operation")), info, restored=restored)
            if limit is None or len(commits) < limit:
                return
            count = len(commits)

    def deliverers(self) -> Collection[Deliverer]:
        """See sink.SinkVersion. The book cannot be listed, so they are those of the commits that the log still has."""
        made = [entry.info for entry in self.history() if entry.info is not None]
        return {(str(info.get("job")), str(info.get("sink"))) for info in made}

    def at(self, version: int) -> LoadedVersion | None:
        """See rewind.RewindVersion."""
        connection = self._connection
        with connection.raising():
            for _ in range(AT_ATTEMPTS):
                with suppress(DeltaError, FileNotFoundError):
                    return LoadedVersion(connection, connection.load(version), newest=False)
                connection.load()  # fails, too, if it is the store that cannot be read
        return None

    def files(self) -> Mapping[str, int]:
        """See rewind.RewindVersion."""
        with self._connection.raising():
            found = pa.table(self._table.get_add_actions())
        rows = found.column("num_records").to_pylist() if "num_records" in found.column_names else [None] * len(found)
        paths = map(unquote, found.column("path").to_pylist())  # the log quotes them again
        return {path: count or 0 for path, count in zip(paths, rows, strict=True)}

    def missing(self, files: Iterable[str]) -> int:
        """See rewind.RewindVersion."""
        with self._connection.raising():
            found = self._files().get_file_info(list(files))
        return sum(each.type is not fs.FileType.File for each in found)

    def digests(self, files: Iterable[str], key: Sequence[str]) -> pl.DataFrame:
        """See rewind.RewindVersion."""
        import pyarrow.dataset as ds  # it imports pandas, which only a rewind should wait for

        paths = set(files)
        with self._connection.raising():
            whole = self._table.to_pyarrow_dataset()
            chosen = [each for each in whole.get_fragments() if each.path in paths]
            assert len(chosen) == len(paths), "a version has the files that it lists"
            part = ds.FileSystemDataset(chosen, whole.schema, whole.format, whole.filesystem)
            found = [digest(batch, key) for batch in part.to_batches() if batch.num_rows]
        return pl.concat(found or [digest(pa.RecordBatch.from_pylist([], whole.schema), key)])

    def _files(self) -> Any:
        handler = DeltaStorageHandler.from_table(self._table._table)
        return fs.PyFileSystem(handler)

    def _write(self, change: TableCommit, properties: CommitProperties) -> None:
        if change.restore is not None:
            # The library writes version + 1 or fails. Then it loads the newest version, which may be another one's.
            self._table.restore(change.restore, commit_properties=properties)
            return
        if change.rows is None:
            return self._write_nothing(properties)
        self._must_have_columns(change.rows)
        if change.key is None:
            write_deltalake(
                self._table,
                change.rows.select(self.columns.names),
                mode="append",
                commit_properties=properties,
                post_commithook_properties=self._afterwards(),
            )
        else:
            self._merge(change.rows, change.key, properties)
            if self._table.version() == self.version:  # it found nothing to change, and committed nothing
                return self._write_nothing(properties)
        assert self._table.version() == self.version + 1, "a commit lands on the version after the one compared"

    def _write_nothing(self, properties: CommitProperties) -> None:
        """Commit the tag alone; the library does not load the new version then."""
        schema, partition_by = self._table.schema(), list(self.partition_by)
        self._table.create_write_transaction(
            [],
            "append",
            schema,
            partition_by,
            commit_properties=properties,
            post_commithook_properties=self._afterwards(),
        )

    def _must_have_columns(self, rows: pa.Table) -> None:
        """Refuse a table whose columns another program has changed since the job started. Raises ConfigError."""
        needed = {field.name: field.type for field in rows.schema if field.name != OP}
        found = {field.name: DELTA.stored_type(field.type) for field in self.columns}
        if needed != found:
            raise changed_columns(self._connection.place.where, needed, found)

    def _afterwards(self) -> PostCommitHookProperties:
        """Clean the log with each checkpoint. The library does it with each commit, and lists a month of commits."""
        given = self.configuration.get("delta.checkpointInterval", "")
        interval = int(given) if given.isdecimal() else _CHECKPOINT_INTERVAL
        due = interval > 0 and (self.version + 2) % interval == 0  # so the library decides, too
        return PostCommitHookProperties(cleanup_expired_logs=None if due else False)

    def _merge(self, rows: pa.Table, key: Sequence[str], properties: CommitProperties) -> None:
        names = [name for name in rows.column_names if name != OP]
        values = {f"target.`{name}`": f"source.`{name}`" for name in names}
        merger = self._table.merge(
            rows,
            " AND ".join(f"target.`{name}` = source.`{name}`" for name in key),
            source_alias="source",
            target_alias="target",
            commit_properties=properties,
            post_commithook_properties=self._afterwards(),
        )
        merger.when_matched_delete(f"source.`{OP}` = {DELETE}")
        merger.when_matched_update(values)
        merger.when_not_matched_insert(values, f"source.`{OP}` = {PUT}")
        merger.execute()


def _restored(commit: Mapping[str, Any]) -> int | None:
    """Return the version that a commit restored; `UNKNOWN` if it names a time instead. None: it restored none."""
    if commit.get("operation") != "RESTORE":
        return None
    given = str((commit.get("operationParameters") or {}).get("version"))
    return int(given) if given.isdecimal() else UNKNOWN


def _info(commit: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the sink's description in a commit; None: another program made the commit."""
    found = commit.get(INFO)
    return found if isinstance(found, Mapping) else None
