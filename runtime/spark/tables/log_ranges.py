"""Which rows of a log a Spark query reads, and proof that they are still those that it planned.

Spark plans a query in one process and reads it in others, later and perhaps again. So a range carries the identity of
the log's history up to its end, and every task checks this before its first row and after each read.

Invariants
    - A task reads the rows that were in the log when the query was planned, all of them, or fails.
    - A position that was once reached stays valid until the log loses or takes back a row before it.

Source: docs/decisions/0050-spark-sources.md; storage/log/reader.py (Origin), voids.py, compacted.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

from holdfast.errors import Damaged, Where
from holdfast.runtime.spark.tables.columns import converted
from holdfast.storage.log.format import VoidRange
from holdfast.storage.log.log import LogReader
from holdfast.storage.log.reader import CommitOrigin
from holdfast.storage.objects import open_objects

PARTITION, OFFSET = "_partition", "_offset"
READ_BYTES_MAX = 4 * 1024 * 1024


class LogIdentity(msgspec.Struct, frozen=True):
    """Identity of a log and its history."""

    log: str
    """The log's UUID."""
    commit: int
    """The sequence of a commit; no earlier one reached the position, and no earlier one took rows back. 0: none."""
    xxh3: str
    """The hash of that commit."""
    compact: int
    """The sequence of the newest compaction; 0: there was none."""


class Position(msgspec.Struct, frozen=True):
    """How far a query reads every partition of a log. A partition that is not named was added later, and is at 0."""

    seen: LogIdentity
    offsets: dict[int, int]

    def of(self, partition: int) -> int:
        """Return the offset of a partition."""
        return self.offsets.get(partition, 0)


@dataclass(frozen=True)
class LogRange(InputPartition):
    """The offsets [first, end) of one partition."""

    partition: int
    first: int
    end: int
    seen: LogIdentity
    """As of the end."""
    path: str


def position_at(reader: LogReader, offsets: Mapping[int, int]) -> Position:
    """Return a position of the log as of the reader's last `refresh`."""
    # The newest of these commits vouches for the others: a commit is never replaced without those that follow it.
    origin = max((reader.origin(*each) for each in offsets.items()), default=CommitOrigin(0, ""))
    seen = LogIdentity(reader.meta.uuid, origin.sequence, origin.xxh3, reader.newest().compact)
    return Position(seen, dict(sorted(offsets.items())))


def ranges_between(path: str, start: Mapping[int, int], end: Position) -> list[LogRange]:
    """Return the range of every partition, also if it is empty."""
    return [LogRange(each, start.get(each, 0), to, end.seen, path) for each, to in end.offsets.items()]


def check_history(reader: LogReader, position: Position) -> None:
    """Take in new commits, and check that the log still holds every row before a position.

    Raises:
        Damaged: the log was recreated or restored, or a rewind took back rows before the position.
    """
    _check_log(reader, position.seen)
    reader.refresh()
    for partition, offset in position.offsets.items():
        end = reader.end_offset(partition) if partition < reader.meta.partitions else 0
        if not 0 <= offset <= end:
            raise _changed(f"partition {partition} of the log ends at offset {end}, but was read up to offset {offset}")
    lost = [one for each, offset in position.offsets.items() for one in _lost(reader, position.seen, each, offset)]
    if lost:
        first = lost[0]
        again = position.offsets | {one.partition: one.first for one in reversed(lost)}
        raise Damaged(
            f"{_taken_back(first)}, but this query has read up to offset {position.of(first.partition)}",
            not_done="no further row was read, and no row that the query has written was taken back",
            next_step="remove what the query wrote of the rows from these offsets on, then start it with a new "
            f"checkpointLocation and startingOffsets {msgspec.json.encode(again).decode()}",
            where=Where(partition=first.partition, offset=first.first),
        )


def check_whole(reader: LogReader, seen: LogIdentity, partition: int, first: int) -> None:
    """Check that no compaction removed rows from this offset on, except those that removed them before `seen`.

    Raises:
        Damaged: one did.
    """
    if reader.newest().compact == seen.compact or reader.whole_from(partition) <= first:
        return
    raise Damaged(
        f"the log was compacted: rows of partition {partition} from offset {first} on were removed unread",
        not_done="no further row was read",
        next_step="to read the rows that are left, run the query again, a stream with a new checkpointLocation; "
        "to avoid this, give holdfast log compact a longer --older-than",
        where=Where(partition=partition, offset=first),
    )


def rows_of(part: LogRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a range, in a task.

    Args:
        schema: The columns to read, with the types that Spark expects.

    Raises:
        Damaged: the rows are not those that the query planned.
    """
    if part.first >= part.end:
        return
    reader, offset = LogReader(open_objects(part.path, writable=False)), part.first
    try:
        _check_log(reader, part.seen)
        if lost_ranges := _lost(reader, part.seen, part.partition, part.end):
            raise Damaged(
                f"{_taken_back(lost_ranges[0])}, after this query was planned",
                not_done="the rows of this partition were not read",
                next_step="run the query again; a stream then reports whether it has read some of these rows",
                where=Where(partition=part.partition, offset=lost_ranges[0].first),
            )
        while offset < part.end:
            batch, offsets, following = reader.read_placed(part.partition, offset, READ_BYTES_MAX)
            check_whole(reader, part.seen, part.partition, part.first)  # a read may have met a compaction
            if batch is None:
                break
            at = np.arange(following - batch.num_rows, following) if offsets is None else offsets
            yield converted(_placed(batch, part.partition, at, part.end), schema)
            offset = following
    finally:
        reader.close()


def _placed(batch: pa.RecordBatch, partition: int, at: NDArray[np.int64], end: int) -> pa.RecordBatch:
    """Return the rows before an offset, with the place of each; a column of the log with such a name stays."""
    count = int(np.searchsorted(at, end))
    rows = batch.slice(0, count)
    place = {PARTITION: pa.array(np.full(count, partition, np.int32)), OFFSET: pa.array(at[:count])}
    columns = place | dict(zip(rows.schema.names, rows.columns, strict=True))
    return pa.RecordBatch.from_pydict(columns)


def _check_log(reader: LogReader, seen: LogIdentity) -> None:
    if changed := reader.changed(seen.log, CommitOrigin(seen.commit, seen.xxh3)):
        raise _changed(changed)


def _lost(reader: LogReader, seen: LogIdentity, partition: int, end: int) -> list[VoidRange]:
    """Return the rows before an offset that commits after `seen` took back, in order."""
    return [one for one in reader.taken_back_since(seen.commit) if one.partition == partition and one.first < end]


def _taken_back(lost: VoidRange) -> str:
    return (
        f"the rows from offset {lost.first} to before {lost.end} of partition {lost.partition} were removed "
        "by a rewind of the job that wrote them"
    )


def _changed(what: str) -> Damaged:
    return Damaged(
        what,
        not_done="no further row was read",
        next_step="restore the log as it was; or run the query again, a stream with a new checkpointLocation, to read "
        "this log from its beginning",
    )
