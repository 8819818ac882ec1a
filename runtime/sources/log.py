"""`hf.Log`: the embedded log, as a connector: a source, and a sink.

Only the path and the expected columns are sent to the workers; each worker opens the log itself. As a source, a log
that is missing or has other columns is refused at plan time. As a sink, a missing log is created when the job starts
and an existing one is checked; see sinks/log/sink.py.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.plan.ahead import Ahead, Read, ReaderAhead
from holdfast.runtime.plan.source import OFFSETS, OpenSource, PartitionReader, Source
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.schema import data_schema_of, difference_to_read
from holdfast.runtime.sources.connector import ChangelogConnector, Connector
from holdfast.sinks.log.changelog import LogChangelog
from holdfast.sinks.log.sink import LogSink
from holdfast.storage.bulk import read_together
from holdfast.storage.log.changelog import DELETED
from holdfast.storage.log.format import LogMeta, describe_column
from holdfast.storage.log.log import LogReader, read_meta
from holdfast.storage.log.reader import CommitOrigin, Fetched
from holdfast.storage.log.segment import SegmentPiece
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import refuse_password
from holdfast.traits import SourceTraits, local

LOOK_EVERY_S = 0.1
"""How often a worker looks for new commits in a store in which that costs a round trip, and money."""


class Log(Connector, ChangelogConnector, RowsOf[T]):
    """A partitioned, append-only log on a folder or an object store; a source, a sink, or the changelog of a job.

    As a sink it gives exactly-once delivery: the rows of an epoch and their tag are one commit of the log. A stream
    that replaces rows by key needs `key`, and becomes a changelog: records that put and delete rows, marked by the
    column `holdfast_deleted`. `hf.log(path, as_table=True)` gives the rows. As a source, a changelog gives its records.

    As `hf.App(changelog=)` it holds the job's state, one record per key and epoch, and takes `path` and `partitions`
    alone.

    Args:
        path: A folder or URL. A relative path is resolved in the working directory of the program that creates this.
        schema: A dataclass or pyarrow.Schema. As a source: the columns that the job reads; the log may have more. As a
            sink: the columns of a log that it creates. None means the log's own columns, and for a log that a sink
            creates those of the stream.
        key: Columns by which rows are partitioned when a log is created. Without it a sink cycles over the partitions.
            For a stream that replaces rows, the columns by which it does.
        partitions: Number of partitions when a log is created.
    """

    @checked("hf.Log", '("data/bids", Bid)')
    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: type[T] | ArrowSchema | None = None,
        key: Sequence[str] | None = None,
        partitions: int = 4,
    ) -> None:
        text = os.fspath(path)
        refuse_password(text, "the path of hf.Log")
        self.path = text if "://" in text else os.path.abspath(text)
        self._row_type = schema if isinstance(schema, type) else None
        self._expected = None if schema is None else data_schema_of(schema)
        self._key = None if key is None else (key,) if isinstance(key, str) else tuple(key)
        self._partitions = partitions

    @classmethod
    def example(cls) -> Log[Any]:
        """Return a log that has every trait; see listed.py."""
        return cls("data/bids", key=["auction"])

    def __repr__(self) -> str:
        return f"Log({self.path!r})"

    def source(self) -> LogSource:
        return LogSource(self.path, self._expected, self._row_type, self._key, self._partitions)

    def sink(self) -> LogSink:
        return LogSink(self.path, self._key, self._partitions, self._expected)

    @classmethod
    def placed(cls, place: Mapping[str, str]) -> Log[Any]:
        return cls(place["path"])

    def changelog(self) -> LogChangelog:
        arguments = [name for name, value in (("schema", self._expected), ("key", self._key)) if value is not None]
        if arguments:
            raise ConfigError(
                f"the changelog {self!r} is given with {' and '.join(arguments)}, but its columns and key are fixed",
                not_done="the job was not planned",
                next_step=f"leave {' and '.join(arguments)} out",
            )
        return LogChangelog(self.path, self._partitions)


@dataclass(frozen=True)
class LogSource(Source):
    """A log to read; the arguments are those of `Log`."""

    path: str
    expected: pa.Schema | None = None
    row_type: type | None = None
    key: tuple[str, ...] | None = None
    partitions: int = 4

    def __repr__(self) -> str:
        return f"Log({self.path!r})"

    @property
    def schema(self) -> pa.Schema:
        """The expected columns, else those of the log itself. Raises ConfigError if the log does not exist."""
        return self._meta().schema if self.expected is None else self.expected

    @property
    def where(self) -> str:
        """The name of the log in messages."""
        return f"log {self.path}"

    @property
    def traits(self) -> SourceTraits:
        return SourceTraits(
            kind="Log",
            local_paths=local(self.path),
            place={"path": self.path},
            log=self.path,
            partitioned_by=self.key or (),
        )

    def check(self) -> None:
        """Raise ConfigError unless the log exists with the expected columns."""
        self._check_schema(self._meta())

    def open(self) -> OpenLog:
        self._check_schema(self._meta())
        store = open_objects(self.path, writable=False)
        return OpenLog(LogReader(store), LOOK_EVERY_S if read_together(store) > 1 else 0.0)

    def _meta(self) -> LogMeta:
        meta = read_meta(open_objects(self.path, writable=False))
        if meta is None:
            columns = ",".join(map(describe_column, self.expected)) if self.expected is not None else "name:int64"
            key = f" --key {','.join(self.key)}" if self.key else ""
            raise ConfigError(
                f"no log exists at {self.path}",
                not_done="the source was not opened",
                next_step=f'create it: holdfast log create {self.path} --schema "{columns}" '
                f"--partitions {self.partitions}{key}",
            )
        return meta

    def _check_schema(self, meta: LogMeta) -> None:
        if self.key is not None and set(self.key) != set(meta.key):
            raise ConfigError(
                f"the log at {self.path} is partitioned by {list(meta.key) or 'no key'}, not by {list(self.key)}",
                not_done="the source was not opened",
                next_step="correct key in the job, or leave it out",
            )
        if self.expected is None:
            return
        if meta.changelog:
            self._check_marked(self.expected, meta)
        if difference := difference_to_read(self.expected, meta.schema):
            raise ConfigError(
                f"the log at {self.path} does not have the columns that the job expects: {difference}",
                not_done="the source was not opened",
                next_step=self._way_out(meta.schema),
            )

    def _check_marked(self, expected: pa.Schema, meta: LogMeta) -> None:
        """Refuse columns by which deletes would pass for rows, or for undecodable records."""
        strict = [f.name for f in expected if not f.nullable and f.name not in (DELETED.name, *meta.key)]
        if DELETED.name not in expected.names:
            what = f"without its column {DELETED.name!r}, records that delete would be read as rows"
            next_step = f"declare it in the job's schema: {DELETED.name}: bool"
        elif strict:
            what = f"records that delete have nothing but their key, but the job's schema allows no null in {strict}"
            next_step = f"let {', '.join(strict)} be null in the job's schema (| None)"
        else:
            return
        raise ConfigError(
            f"the log at {self.path} is a changelog: {what}", not_done="the source was not opened", next_step=next_step
        )

    def _way_out(self, has: pa.Schema) -> str:
        """Return what to do about columns that do not agree; missing columns can be added."""
        assert self.expected is not None
        missing = [field for field in self.expected if field.name not in has.names]
        if not missing:
            return "correct the job's schema, or create another log and copy the rows into it"
        columns = ",".join(describe_column(field.with_nullable(True)) for field in missing)
        strict = [field.name for field in missing if not field.nullable]
        nulls = f", and let {', '.join(strict)} be null in the job (| None), as in existing rows" if strict else ""
        return (
            "correct the job's schema, or add the missing columns: "
            f'holdfast log add-columns {self.path} --schema "{columns}"{nulls}'
        )


class OpenLog(OpenSource):
    """The log as one worker reads it; at the end of the known commits it looks for new ones.

    Args:
        reader: Reads the log.
        every_s: How long it waits at least between two looks.
        clock: Seconds, monotonic.

    Its position is before void ranges at the end, not behind them, until rows follow (storage/log/voids.py). Rows that
    were read ahead count as read only when they are taken, and only if no rows of the log were taken back meanwhile.

    Invariants
        - The operator thread and the lane of the readers take turns: every call that reads the store holds the lock.
        - Rows are taken without the lock: the operator thread does not wait while other partitions are read.
    """

    def __init__(self, reader: LogReader, every_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader, self._lock = reader, Lock()
        self._every_s, self._clock, self._next_look = every_s, clock, -math.inf

    def identity(self, partition: int, offset: int) -> str:
        """Return UUID, number and hash of the first commit that reaches the offset, or a later one; and the place."""
        if (origin := self._reader.known_origin(partition, offset)) is None:
            with self._lock:
                origin = self._reader.origin(partition, offset)
        return f"log {self._reader.meta.uuid} {origin.sequence} {origin.xxh3} {partition} {offset}"

    def changed(self, identity: str) -> str | None:
        kind, *rest = identity.split(" ")
        if kind != "log" or len(rest) not in (3, 5):
            return f"it is a log, but a {kind} was read"
        # Earlier versions did not store the place.
        read = (int(rest[3]), int(rest[4])) if len(rest) == 5 else None
        with self._lock:
            return self._reader.changed(rest[0], CommitOrigin(int(rest[1]), rest[2]), read)

    def partitions(self) -> list[int]:
        with self._lock:
            self._look()
            return list(range(self._reader.meta.partitions))

    def end_offsets(self) -> dict[int, int]:
        with self._lock:
            self._look()
            return {p: self._reader.last_position(p) for p in range(self._reader.meta.partitions)}

    def retention_start(self, partition: int) -> int:
        return self._reader.retention_start(partition)

    def whole_from(self, partition: int) -> int:
        with self._lock:
            self._look()
            return self._reader.whole_from(partition)

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        while not self._take(partition, offset, found := self._fetch(partition, offset, max_bytes)):
            pass
        return found.batch, found.following

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        known = partial(self._known, partition)
        return ReaderAhead(partial(self._fetch, partition), partial(self._take, partition), offset, ahead, known=known)

    def ended(self, partition: int, offset: int) -> bool:
        if not self._reader.sealed:
            return False
        with self._lock:
            return offset >= self._reader.last_position(partition)

    def close(self) -> None:
        with self._lock:
            self._reader.close()

    def _fetch(self, partition: int, offset: int, max_bytes: int) -> Read:
        with self._lock:
            if offset >= self._reader.last_position(partition):
                self._look()
        return self._known(partition, offset, max_bytes)

    def _known(self, partition: int, offset: int, max_bytes: int) -> Read:
        with self._lock:
            fetched = self._reader.fetch(partition, offset, max_bytes)
        return Read(_with_offsets(fetched.piece, offset), fetched.piece.following, fetched)

    def _look(self) -> None:
        """Look for new commits, on behalf of all partitions, unless it was done just now. No row follows a seal."""
        if not self._reader.sealed and (now := self._clock()) >= self._next_look:
            self._reader.refresh()
            self._next_look = now + self._every_s  # a look that failed is repeated by the next call

    def _take(self, partition: int, offset: int, found: Read) -> bool:
        assert isinstance(found.token, Fetched)
        return self._reader.take(partition, offset, found.token)


def _with_offsets(piece: SegmentPiece, offset: int) -> pa.RecordBatch | None:
    batch, offsets, following = piece.rows, piece.offsets, piece.following
    if batch is None or (offsets is None and following - offset == batch.num_rows):
        return batch
    offsets = np.arange(following - batch.num_rows, following) if offsets is None else offsets
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(offsets)], names=[*batch.schema.names, OFFSETS])
