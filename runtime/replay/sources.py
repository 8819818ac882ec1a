"""The sources of a replay: the job's own, read no further than the replay has come.

Invariants
    - A record at or behind the limit of its partition is never given; moving the limit gives it.
    - Records are those that the job's source gives. Nothing is written, and no position is shown to other systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError, Where
from holdfast.model import SourcePosition
from holdfast.runtime.plan.ahead import Ahead, Read
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.same_source import refuse_other_sources
from holdfast.runtime.plan.source import OpenSource, PartitionReader, Source, same_from
from holdfast.runtime.replay.spans import Range, Span
from holdfast.runtime.sources.reading import split
from holdfast.traits import SourceTraits

NOT_REPLAYED = "nothing was replayed, and the job was only read"


class ReplayedSource(Source, OpenSource):
    """A source with limits; a configuration and its one connection.

    Args:
        spec: The job's source.
        opened: Its connection, which the caller closes.
        span: The records of the whole replay. The limits begin at its start.
    """

    schema: pa.Schema
    row_type: type | None
    where: str
    traits = SourceTraits(kind="ReplayedSource", local_paths=())

    def __init__(self, spec: SourceSpec, opened: OpenSource, span: Span) -> None:
        self.schema, self.row_type, self.where = spec.source.schema, spec.source.row_type, spec.source.where
        self._opened = opened
        self._limits = {each.partition: each.first for each in span if each.source == spec.name}

    def allow(self, wanted: Range) -> None:
        """Move the limit of a partition to the end of a range."""
        self._limits[wanted.partition] = max(self._limits[wanted.partition], wanted.end)

    def limit(self, partition: int) -> int:
        """Return the offset before which records are given."""
        return self._limits[partition]

    def open(self) -> ReplayedSource:
        return self

    def identity(self, partition: int, offset: int) -> str:
        return self._opened.identity(partition, offset)

    def changed(self, identity: str) -> str | None:
        return self._opened.changed(identity)

    def partitions(self) -> list[int]:
        return sorted(self._limits)

    def end_offsets(self) -> dict[int, int]:
        return dict(self._limits)

    def retention_start(self, partition: int) -> int:
        return self._opened.retention_start(partition)

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        if offset >= self._limits[partition]:
            return None, offset
        batch, following = self._opened.read(partition, offset, max_bytes)
        read, _ = divided(Read(batch, following), self._limits[partition])
        return read.batch, read.following

    def watermark(self, partition: int, offset: int) -> int | None:
        return self._opened.watermark(partition, offset)

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        return _LimitedReader(self, partition, offset, self._opened.reader(partition, offset, ahead))


class _LimitedReader:
    """Keeps what lies behind the limit until the limit moves."""

    def __init__(self, source: ReplayedSource, partition: int, offset: int, reader: PartitionReader) -> None:
        self._source, self._partition, self._offset, self._reader = source, partition, offset, reader
        self._kept: Read | None = None

    def poll(self, bytes_max: int) -> Read | None:
        """See PartitionReader.poll."""
        limit = self._source.limit(self._partition)
        if self._offset >= limit:
            return Read(None, self._offset)
        read, self._kept = self._kept or self._reader.poll(bytes_max), None
        if read is None:
            return None
        given, self._kept = divided(read, limit)
        self._offset = given.following
        return given

    def close(self) -> None:
        """See PartitionReader.close."""
        self._reader.close()


def divided(read: Read, limit: int) -> tuple[Read, Read | None]:
    """Return the records before a limit, and those at or behind it, None if there are none."""
    batch = read.batch
    if batch is None or read.following <= limit:
        return read, None
    _, places = split(batch)
    offsets = np.arange(read.following - batch.num_rows, read.following) if places is None else places
    count = int(np.searchsorted(offsets, limit))
    if count == batch.num_rows:
        return read, None
    rest = Read(batch.slice(count), read.following, read.token, read.lost)
    given = Read(batch.slice(0, count) if count else None, int(offsets[count]), read.token, read.lost)
    return given, rest


def check_readable(job: str, spec: SourceSpec, opened: OpenSource, span: Span, end: tuple[SourcePosition, ...]) -> None:
    """Refuse a replay of records that the source no longer has.

    Args:
        end: The positions behind the records.

    Raises:
        ConfigError: some were removed.
        Damaged: the source was recreated, or restored from a copy that lacks records that were read.
    """
    refuse_other_sources(job, [at for at in end if at.source == spec.name], {spec.name: opened})
    for each in span:
        if each.source == spec.name and each.offsets and (kept := same_from(opened, each.partition)) > each.first:
            gone = opened.gone(each.partition) or f"it keeps those from offset {kept:,} on"
            raise ConfigError(
                f"source {spec.name!r} no longer has the records from offset {each.first:,} of partition "
                f"{each.partition}: {gone}",
                not_done=NOT_REPLAYED,
                next_step="choose a later epoch; holdfast checkpoints list shows the offsets of each",
                where=Where(job=job, source=spec.name, partition=each.partition, offset=each.first),
            )


def check_known(job: str, sources: Sequence[str], span: Span) -> None:
    """Refuse a replay of records whose source the code no longer has. Raises ConfigError."""
    for each in span:
        if each.source not in sources:
            raise ConfigError(
                f"the epoch read source {each.source!r}, which the app no longer has",
                not_done=NOT_REPLAYED,
                next_step=f"choose a later epoch, or give the file as it was: its sources are {', '.join(sources)}",
                where=Where(job=job, source=each.source),
            )


def record_at(opened: OpenSource, schema: pa.Schema, partition: int, offset: int) -> dict[str, Any] | None:
    """Return the record at an offset with the columns of the source; None if there is none."""
    batch, following = opened.read(partition, offset, 1)
    if batch is None or batch.num_rows == 0:
        return None
    piece, _ = divided(Read(batch, following), offset + 1)
    if piece.batch is None:
        return None
    columns = [name for name in schema.names if name in piece.batch.schema.names]
    row: dict[str, Any] = piece.batch.select(columns).slice(0, 1).to_pylist()[0]
    return row
