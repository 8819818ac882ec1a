"""The data source `holdfast-log` as a stream: one micro-batch after the other, each between two positions of the log.

Spark keeps the positions in the checkpoint of the query, and repeats a batch between the same two after a crash. So
every position names the history of the log up to there, and each is checked before rows that follow it are read.

Invariants
    - The batches of a query, one after the other, hold every row of the log once; a query that cannot keep this fails.
    - A log without new rows gives the same position, byte for byte: Spark then runs no batch.

Source: docs/decisions/0050-spark-sources.md; pyspark.sql.streaming.datasource.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.errors import ConfigError
from holdfast.runtime.spark.tables.columns import arrow_schema
from holdfast.runtime.spark.tables.log_ranges import (
    LogRange,
    Position,
    check_history,
    check_whole,
    position_at,
    ranges_between,
    rows_of,
)
from holdfast.runtime.spark.tables.log_source import FORMAT, NOT_DONE, LogOptions, offsets_of
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import open_objects

_VERSION = 1


class _Stored(Position, frozen=True):
    """A position as Spark stores it."""

    v: int


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as a stream. Sent to the tasks pickled, before it has opened the log."""

    def __init__(self, given: LogOptions, schema: StructType) -> None:
        self._given, self._schema = given, schema
        self._opened: LogReader | None = None
        self._target: Mapping[int, int] | None = None
        """Offsets at which a bounded query stops; None: the query does not end."""

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins."""
        reader = self._reader()
        reader.refresh()
        return _as_json(position_at(reader, offsets_of(reader, "startingOffsets", self._given.starting)))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        return ReadAllAvailable() if self._given.records_max is None else ReadMaxRows(self._given.records_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end at the present end of the log."""
        reader = self._reader()
        reader.refresh()
        self._target = _ends(reader)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next micro-batch ends.

        Raises:
            Damaged: the log is not the one that the query has read, or has lost rows that it has or has not read.
        """
        reader, before = self._reader(), _position(start)
        check_history(reader, before)
        for partition, offset in before.offsets.items():
            if before.seen.commit:  # otherwise nothing was read, and the query begins with the present log
                check_whole(reader, before.seen, partition, offset)
        ends = _ends(reader) if self._target is None else self._target
        # A compaction may have removed the last rows: then the end is before the position.
        lags = {each: lag for each, end in ends.items() if (lag := end - before.of(each)) > 0}
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else sum(lags.values())
        after = dict[int, int]()
        for partition, rows in _shares(lags, rows_max).items():
            to = min(reader.position_after(partition, before.of(partition), rows), ends[partition])
            to = reader.begin(partition, to)  # The target may be in a range that a rewind has taken back since.
            if to > before.of(partition):
                after[partition] = to
        return _as_json(position_at(reader, before.offsets | after)) if after else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LogRange]:
        """Return the ranges of a micro-batch, after a restart also of one that was planned before. Raises Damaged."""
        reader, before, after = self._reader(), _position(start), _position(end)
        check_history(reader, after)
        ranges = [each for each in ranges_between(self._given.path, before.offsets, after) if each.first < each.end]
        for each in ranges:
            check_whole(reader, after.seen, each.partition, each.first)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range, in a task."""
        assert isinstance(partition, LogRange)
        return rows_of(partition, arrow_schema(self._schema))

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: reading removes no row from a log."""

    def stop(self) -> None:
        """Close the log."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _reader(self) -> LogReader:
        if self._opened is None:
            self._opened = LogReader(open_objects(self._given.path, writable=False))
        return self._opened


def _ends(reader: LogReader) -> dict[int, int]:
    return {each: reader.last_position(each) for each in range(reader.meta.partitions)}


def _shares(lags: Mapping[int, int], rows_max: int) -> dict[int, int]:
    """Divide the rows of a micro-batch among partitions; those with fewer rows leave their share to the others."""
    shares, left = dict[int, int](), rows_max
    for number, (partition, lag) in enumerate(sorted(lags.items(), key=lambda each: each[1])):
        share = min(lag, left // (len(lags) - number))
        left -= share
        if share:
            shares[partition] = share
    return shares


def _as_json(position: Position) -> dict[str, Any]:
    stored: dict[str, Any] = msgspec.to_builtins(_Stored(position.seen, position.offsets, _VERSION), str_keys=True)
    return stored


def _position(stored: dict[str, Any]) -> Position:
    """Return the position that Spark stored. Raises ConfigError if it is of another source, or of a newer version."""
    try:
        position = msgspec.convert(stored, _Stored, str_keys=True)
    except msgspec.ValidationError as error:
        raise _foreign("the checkpoint of this query holds no position of a log") from error
    if position.v != _VERSION:
        raise _foreign(f"the checkpoint of this query has format {position.v}; this version reads format {_VERSION}")
    return position


def _foreign(what: str) -> ConfigError:
    return ConfigError(
        f"{FORMAT}: {what}",
        not_done=NOT_DONE,
        next_step="give the query the checkpointLocation that it had, or a new one to start over",
    )
