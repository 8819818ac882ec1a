"""`hf.Log`: the embedded log, as a source and as a sink.

Only the path and the expected columns travel to the workers; each opens the log for itself. As a source, a log that is
missing or has other columns is refused at plan time. As a sink, a missing log is created when the job starts and an
existing one is checked; all of that is in sinks/log.py. What the methods are given tells which is meant.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import overload

import numpy as np
import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.model import Writer
from holdfast.runtime.schema import describe_difference, schema_of
from holdfast.runtime.sources.source import OFFSETS
from holdfast.sinks.audited import Asked, Shown
from holdfast.sinks.contract import Repair, Rewinding
from holdfast.sinks.log import LogSink, LogTarget
from holdfast.sinks.owners import Claim, Holding
from holdfast.storage.log import LogReader, read_meta
from holdfast.storage.logformat import LogMeta, describe_column
from holdfast.storage.logreader import Origin
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import refuse_password


class Log:
    """A partitioned, append-only log on a folder or an object store; a source, or a sink of append streams.

    As a sink it is exactly-once: the rows of an epoch and the tag that says so are one commit of the log. A stream
    that replaces rows by key is refused, as a log keeps every row.

    Args:
        path: A folder or URL. A relative path is taken from the working directory of the program that creates this.
        schema: A dataclass or pyarrow.Schema. As a source: the columns that the job reads; the log may have more. As a
            sink: the columns that a log gets when it is created. None takes the log's own, and that of the stream for
            a log that a sink creates.
        key: Columns by which rows are partitioned when a log is created. Without it a sink goes round the partitions.
        partitions: Number of partitions when a log is created.
    """

    @checked("hf.Log", '("data/bids", Bid)')
    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: type | pa.Schema | None = None,
        key: Sequence[str] | None = None,
        partitions: int = 4,
    ) -> None:
        text = os.fspath(path)
        refuse_password(text, "the path of hf.Log")
        self.path = text if "://" in text else os.path.abspath(text)
        self.row_type = schema if isinstance(schema, type) else None
        self._expected = None if schema is None else schema_of(schema)
        self.key = None if key is None else (key,) if isinstance(key, str) else tuple(key)
        self.partitions = partitions

    def __repr__(self) -> str:
        return f"Log({self.path!r})"

    @property
    def schema(self) -> pa.Schema:
        """The expected columns, else those of the log itself. Raises ConfigError if there is no log."""
        return self._meta().schema if self._expected is None else self._expected

    @property
    def where(self) -> str:
        """How messages name the log as a target."""
        return self._sink().where

    @overload
    def check(self) -> None: ...
    @overload
    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None: ...
    def check(self, schema: pa.Schema | None = None, upsert_key: tuple[str, ...] | None = None) -> None:
        """Raise ConfigError unless the log exists with the expected columns; with a stream's schema, see Sink.check."""
        if schema is None:
            self._check_schema(self._meta())
        else:
            self._sink().check(schema, upsert_key)

    @overload
    def open(self) -> OpenLog: ...
    @overload
    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> LogTarget: ...
    def open(
        self, job_uuid: str | None = None, writer: Writer | None = None, claim: Claim | None = None
    ) -> OpenLog | LogTarget:
        """Open it for reading; for a writer of a job, see Sink.open."""
        if job_uuid is not None and writer is not None:
            return self._sink().open(job_uuid, writer, claim)
        self._check_schema(self._meta())
        return OpenLog(LogReader(open_objects(self.path, writable=False)))

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """See Sink.prepare."""
        self._sink().prepare(schema, upsert_key)

    def holding(self, job_uuid: str, name: str) -> Holding:
        """See HeldSink.holding."""
        return self._sink().holding(job_uuid, name)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """See OwnedSink.check_owner."""
        self._sink().check_owner(job_uuid, name)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.plan_repair."""
        return self._sink().plan_repair(rewinding, schema, upsert_key)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        """See RepairableSink.repair."""
        return self._sink().repair(rewinding, schema, upsert_key)

    def shown(self, asked: Asked) -> Shown:
        """See AuditableSink.shown."""
        return self._sink().shown(asked)

    def accept(self, batch: pa.RecordBatch) -> None:
        """See Sink.accept."""
        self._sink().accept(batch)

    def _sink(self) -> LogSink:
        return LogSink(self.path, self.key, self.partitions, self._expected)

    def _meta(self) -> LogMeta:
        meta = read_meta(open_objects(self.path, writable=False))
        if meta is None:
            columns = ",".join(map(describe_column, self._expected)) if self._expected is not None else "name:int64"
            key = f" --key {','.join(self.key)}" if self.key else ""
            raise ConfigError(
                f"there is no log at {self.path}",
                not_done="the source was not opened",
                next_step=f'create it: holdfast log create {self.path} --schema "{columns}" '
                f"--partitions {self.partitions}{key}",
            )
        return meta

    def _check_schema(self, meta: LogMeta) -> None:
        if self.key is not None and set(self.key) != set(meta.key):
            raise ConfigError(
                f"the log at {self.path} is partitioned by {list(meta.key) or 'no key'}, the job says {list(self.key)}",
                not_done="the source was not opened",
                next_step="correct key in the job, or leave it out",
            )
        if self._expected is None:
            return
        # A column may be null in the log alone: where it is, the record is undecodable (API.md).
        strict = {field.name for field in self._expected if not field.nullable}
        there = [meta.schema.field(name) for name in self._expected.names if name in meta.schema.names]
        found = pa.schema([f.with_nullable(f.nullable and f.name not in strict) for f in there])
        if difference := describe_difference(self._expected, found):
            raise ConfigError(
                f"the log at {self.path} does not have the columns that the job expects: {difference}",
                not_done="the source was not opened",
                next_step=self._way_out(meta.schema),
            )

    def _way_out(self, has: pa.Schema) -> str:
        """Return what to do about columns that do not agree; those that are only missing can be added."""
        assert self._expected is not None
        missing = [field for field in self._expected if field.name not in has.names]
        if not missing:
            return "correct the job's schema, or create another log and copy the rows into it"
        columns = ",".join(describe_column(field.with_nullable(True)) for field in missing)
        strict = [field.name for field in missing if not field.nullable]
        nulls = f", and let {', '.join(strict)} be null in the job (| None), as in the rows so far" if strict else ""
        return (
            "correct the job's schema, or add what is missing: "
            f'holdfast log add-columns {self.path} --schema "{columns}"{nulls}'
        )


class OpenLog:
    """The log as one worker reads it; at the end of what is known it looks for new commits.

    A reader stands before void ranges at the end, not behind them, until rows follow (storage/voids.py).
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def identity(self, partition: int, offset: int) -> str:
        """Return UUID, number and hash of the first commit that reaches the offset, or a later one."""
        origin = self._reader.origin(partition, offset)
        return f"log {self._reader.meta.uuid} {origin.sequence} {origin.xxh3}"

    def changed(self, identity: str) -> str | None:
        kind, *rest = identity.split(" ")
        if kind != "log" or len(rest) != 3:
            return f"it is a log, but a {kind} was read"
        return self._reader.changed(rest[0], Origin(int(rest[1]), rest[2]))

    def partitions(self) -> list[int]:
        return list(range(self._reader.meta.partitions))

    def end_offsets(self) -> dict[int, int]:
        self._reader.refresh()
        return {partition: self._reader.last_position(partition) for partition in self.partitions()}

    def retention_start(self, partition: int) -> int:
        return self._reader.retention_start(partition)

    def whole_from(self, partition: int) -> int:
        self._reader.refresh()
        return self._reader.whole_from(partition)

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        if offset >= self._reader.last_position(partition):
            self._reader.refresh()
        batch, offsets, following = self._reader.read_placed(partition, offset, max_bytes)
        if batch is not None and (offsets is not None or following - offset != batch.num_rows):
            offsets = np.arange(following - batch.num_rows, following) if offsets is None else offsets
            columns = [*batch.columns, pa.array(offsets)]
            batch = pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, OFFSETS])
        return batch, following

    def ended(self, partition: int, offset: int) -> bool:
        return self._reader.sealed and offset >= self._reader.last_position(partition)

    def close(self) -> None:
        self._reader.close()
