"""The records of an epoch as its sources gave them, and the source that gives them again.

Invariants
    - Records, their offsets, the batches that they came in, and gaps between them are those of the job's source.
    - A source of recorded records gives those alone, and refuses an offset before them.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import pyarrow as pa

from holdfast.errors import Damaged, Unavailable, Where
from holdfast.runtime.plan.ahead import Ahead, DirectReader, Read, inline
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.source import OpenSource, PartitionReader
from holdfast.runtime.replay.incidents.container import IncidentWriter, RecordedPartition, RecordedRead, Unpacked
from holdfast.runtime.replay.player import PAUSE_S, SILENT_S
from holdfast.runtime.replay.sources import ReplayedSource
from holdfast.runtime.replay.spans import Range, Span
from holdfast.runtime.sources.reading import split

BYTES_AT_ONCE = 4 << 20
IDENTITY = "incident"


@dataclass(frozen=True)
class TakenPartition:
    """The records of one partition, in memory.

    Args:
        at: Their offsets.
        watermark: The event time that the source itself reports at the first.
        reads: In order, each with the event time that the source reports behind it.
    """

    at: Range
    watermark: int | None
    reads: tuple[tuple[Read, int | None], ...]


def taken_from(job: str, spec: SourceSpec, opened: OpenSource, span: Span) -> Iterator[TakenPartition]:
    """Read the records of a span from a source. Raises Damaged, Unavailable."""
    source = ReplayedSource(spec, opened, span)
    for at in span:
        if at.source == spec.name:
            source.allow(at)
            reader = source.reader(at.partition, at.first, inline())
            try:
                reads = [(read, opened.watermark(at.partition, read.following)) for read in _reads(job, reader, at)]
            finally:
                reader.close()
            yield TakenPartition(at, opened.watermark(at.partition, at.first), tuple(reads))


def _reads(job: str, reader: PartitionReader, at: Range) -> Iterator[Read]:
    offset, until = at.first, time.monotonic() + SILENT_S
    while offset < at.end:
        piece = reader.poll(BYTES_AT_ONCE)
        if piece is not None and piece.following > offset:
            assert not piece.further, "an inline reader joins nothing"
            offset, until = piece.following, time.monotonic() + SILENT_S
            yield piece
        elif time.monotonic() > until:
            raise _silent(job, at, offset)
        else:
            time.sleep(PAUSE_S)


def pack(taken: TakenPartition, into: IncidentWriter) -> RecordedPartition:
    """Write the records of a partition."""
    members = list[tuple[str, tuple[RecordedRead, ...]]]()
    for schema, group in groupby(taken.reads, key=lambda each: _schema(each[0])):
        reads = list(group)
        path = f"input/{taken.at.source}/{taken.at.partition}-{len(members)}.arrow"
        batches = [piece.batch for piece, _ in reads if piece.batch is not None]
        if schema is not None:
            into.add_batches(path, schema, batches)
        places = (
            RecordedRead(0 if piece.batch is None else piece.batch.num_rows, piece.following, watermark, piece.lost)
            for piece, watermark in reads
        )
        members.append(("" if schema is None else path, tuple(places)))
    at = taken.at
    return RecordedPartition(at.source, at.partition, at.first, at.end, taken.watermark, tuple(members))


def _schema(read: Read) -> pa.Schema | None:
    return None if read.batch is None else read.batch.schema


def unpacked(of: RecordedPartition, file: Unpacked) -> TakenPartition:
    """Read the records of a partition back. Raises Damaged."""
    reads = list[tuple[Read, int | None]]()
    for path, recorded in of.members:
        batches = iter(file.batches(path) if path else ())
        for each in recorded:
            batch = next(batches, None) if each.rows else None
            if each.rows != (0 if batch is None else batch.num_rows):
                raise _unlike(of)
            reads.append((Read(batch, each.following, lost=each.lost), each.watermark))
        if next(batches, None) is not None:
            raise _unlike(of)
    places = [of.first, *(read.following for read, _ in reads)]
    if places[-1] < of.end or any(one >= other for one, other in pairwise(places)):
        raise _unlike(of)
    return TakenPartition(Range(of.source, of.partition, of.first, of.end), of.watermark, tuple(reads))


class RecordedSource(OpenSource):
    """A source that has recorded records alone.

    Args:
        name: Its name in the plan.
    """

    def __init__(self, name: str, partitions: Sequence[TakenPartition]) -> None:
        self._name = name
        self._partitions = {each.at.partition: each for each in partitions}
        self._places = {number: [read.following for read, _ in each.reads] for number, each in self._partitions.items()}

    def identity(self, partition: int, offset: int) -> str:
        return IDENTITY

    def changed(self, identity: str) -> str | None:
        return None

    def partitions(self) -> list[int]:
        return sorted(self._partitions)

    def end_offsets(self) -> dict[int, int]:
        return {number: each.at.end for number, each in self._partitions.items()}

    def retention_start(self, partition: int) -> int:
        return self._partitions[partition].at.first

    def watermark(self, partition: int, offset: int) -> int | None:
        records, places = self._partitions[partition], self._places[partition]
        before = bisect_right(places, offset)
        return records.reads[before - 1][1] if before else records.watermark

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        return DirectReader(lambda at, _: self._read(partition, at), offset)

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        read = self._read(partition, offset)
        return read.batch, read.following

    def _read(self, partition: int, offset: int) -> Read:
        records, places = self._partitions[partition], self._places[partition]
        if offset < records.at.first:
            raise self._before(records.at, offset)
        number = bisect_right(places, offset)
        if number == len(places):
            return Read(None, offset)
        piece, _ = records.reads[number]
        first = places[number - 1] if number else records.at.first
        if piece.batch is None or offset == first:
            return piece
        return Read(_behind(piece, offset), piece.following)

    def _before(self, at: Range, offset: int) -> Unavailable:
        return Unavailable(
            f"the incident file has no record {offset:,} of partition {at.partition} of source {self._name!r}: they "
            f"begin at {at.first:,}",
            not_done="the rest was not replayed",
            next_step="report it",
            where=Where(source=self._name, partition=at.partition, offset=offset),
        )


def _behind(read: Read, offset: int) -> pa.RecordBatch:
    """Return the records of a read from an offset on."""
    assert read.batch is not None
    _, offsets = split(read.batch)
    if offsets is None:
        return read.batch.slice(read.batch.num_rows - (read.following - offset))
    return read.batch.slice(int(offsets.searchsorted(offset)))


def _unlike(of: RecordedPartition) -> Damaged:
    return Damaged(
        f"the incident file is damaged: the records of partition {of.partition} of source {of.source!r} are not those "
        "that it names",
        not_done="nothing was replayed",
        next_step="copy the file again, and compare its checksum with that of the original",
        where=Where(source=of.source, partition=of.partition),
    )


def _silent(job: str, at: Range, offset: int) -> Unavailable:
    return Unavailable(
        f"source {at.source!r} gave no record of partition {at.partition} for {SILENT_S:.0f} s: {offset:,} of "
        f"{at.end:,} was reached",
        not_done="no incident file was written",
        next_step="check that the source can be reached, then try again",
        where=Where(job=job, source=at.source, partition=at.partition, offset=offset),
    )
