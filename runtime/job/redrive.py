"""Redrive: append the source records behind dead letters to the log that they came from, or to another one.

The dead letters of one DLQ partition are taken in order, in chunks. Each chunk is one commit of the target log: its
records, and a tag with the offset up to which letters of that partition were taken. The commit succeeds only if the tag
in the target is where the chunk begins. So a redrive that is repeated after a kill, or runs twice concurrently, appends
every record once per target log. It never offers a redriven letter again.

A record with several dead letters, from several functions, is redriven once: with its first letter in the order of
(partition, offset) of the DLQ. All its letters are one commit of the DLQ, so this order never changes. A rewind of the
job takes back letters, not redriven records; if such a record fails again, its new letter is another letter of a record
that was redriven. So letters before a tag are read ahead of all others, including letters that were taken back since.

Invariants
    - A record is appended as it was in the source, never as a step has changed it: from the letter if that kept the
      record, else read again from the source's log at the offset in the letter.
    - Nothing is appended before every letter was examined; no letter is left out unless the caller allowed it.

Source: PROTOCOL P4, P17; docs/decisions/0009-dead-letters.md.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS, decode_row
from holdfast.runtime.rows.schema import describe_difference
from holdfast.storage.log.format import LogMeta, extends
from holdfast.storage.log.log import BEFORE_FIRST, LogReader, LogWriter
from holdfast.storage.log.partitioning import partition_rows
from holdfast.storage.log.segment import widened

CHUNK_BYTES = 4 << 20
_TIMELINE = Timeline(1)


@dataclass
class Count:
    """Counts of a redrive of one source, planned or done."""

    waiting: int = 0
    """Dead letters that have not been redriven to this target."""
    records: int = 0
    """Records to append."""
    repeated: int = 0
    """Further letters of a record that another letter already redrives."""
    unfit: Counter[str] = field(default_factory=Counter)
    """Why letters cannot be redriven, and how many."""


@dataclass(frozen=True)
class _Chunk:
    partition: int
    """The partition of the DLQ."""
    end: int
    """The offset in that partition after the last letter of the chunk."""
    follows: Mapping[str, Tag]
    """The tags that the target must hold, per partition of the DLQ: the letters before them were examined."""
    rows: tuple[tuple[int, pa.RecordBatch], ...]
    """Partition of the target, and a record."""


class Redrive:
    """The dead letters of one source, on their way to one log.

    Args:
        dlq: The log of dead letters, as far as it extends now.
        target: The log to append to.
        records: The source's own log, if it has one.

    Raises:
        ConfigError: the target is a changelog.
    """

    def __init__(self, source: str, dlq: ObjectStore, target: ObjectStore, records: ObjectStore | None) -> None:
        self._source, self._target = source, target
        self._dlq = open_dlq(dlq)
        self._writer = LogWriter(target)
        if self._writer.meta.changelog:
            raise _refused(f"the log in {target!r} is a changelog: a redriven record would be the newest of its key")
        self._records = None if records is None else LogReader(records)

    def plan(self) -> Count:
        """Examine every letter; append nothing."""
        count = Count()
        for _ in self._chunks(count):
            pass
        return count

    def apply(self) -> Count:
        """Append the records. Letters that cannot be redriven are skipped, and are not offered again.

        Raises:
            ConfigError: the target is sealed.
            Unavailable: it is unknown whether the last chunk was appended, or another redrive came first; a repeated
                call finds out and resumes.
        """
        count = Count()
        for chunk in self._chunks(count):
            name, tag = self._name(chunk.partition), Tag(_TIMELINE, Epoch(chunk.end))
            placed = _placed(self._writer.meta, chunk.rows)
            if self._writer.append_tagged(placed, name, tag, follows=chunk.follows) is None:
                raise Unavailable(
                    f"another redrive of source {self._source!r} to {self._target!r} came first",
                    not_done="the rest was not appended; nothing was appended twice",
                    next_step="run the command again",
                )
        return count

    def _chunks(self, count: Count) -> Iterator[_Chunk]:
        """Yield the chunks to append, in order, and count."""
        letter_places: set[tuple[int, int]] = set()
        ends = sorted(self._dlq.end_offsets().items())
        tags = {partition: self._writer.tag_of(self._name(partition)) or BEFORE_FIRST for partition, _ in ends}
        for partition, end in ends:
            for _, letters in chunks_of(self._dlq, partition, 0, min(end, tags[partition].epoch), taken_back=True):
                self._rows(partition, letters, letter_places, Count())
        for partition, end in ends:
            for following, letters in chunks_of(self._dlq, partition, tags[partition].epoch, end):
                rows = self._rows(partition, letters, letter_places, count)
                stand = {self._name(other): tag for other, tag in tags.items()}
                yield _Chunk(partition, following, stand, tuple(rows))
                tags[partition] = Tag(_TIMELINE, Epoch(following))

    def _rows(
        self, partition: int, letters: list[dict[str, Any]], seen: set[tuple[int, int]], count: Count
    ) -> list[tuple[int, pa.RecordBatch]]:
        rows = []
        for letter in letters:
            if letter["source"] != self._source:
                continue
            count.waiting += 1
            place = (letter["partition"], letter["offset"])
            if place in seen:
                count.repeated += 1
                continue
            try:
                record = fitted(self._record(letter), self._writer.meta)
            except ConfigError as error:
                count.unfit[error.what] += 1
                continue
            if None not in place:
                seen.add(place)
            to = partition if letter["partition"] is None else letter["partition"]
            rows.append((to % self._writer.meta.partitions, record))
        count.records += len(rows)
        return rows

    def _record(self, letter: Mapping[str, Any]) -> pa.RecordBatch:
        if letter["form"] == "record":
            return decode_row(letter["raw"])
        if letter["form"] != "row":
            raise _refused(f"the source kept its records as {letter['form']}, which is not a row of a log")
        if self._records is None or letter["offset"] is None:
            why = "its offset is unknown" if letter["offset"] is None else "the source is not a log"
            raise _refused(f"{letter['operator']} kept a row that steps have changed, and {why}")
        if letter["offset"] >= self._records.end_offset(letter["partition"]):
            raise _refused("the source's log ends before the record; it is not the log that the job has read")
        begin = self._records.begin(letter["partition"], letter["offset"])
        record, _, following = self._records.read_placed(letter["partition"], begin, 1)
        if record is None or following != letter["offset"] + 1:
            raise _refused("a rewind of its writer, or a compaction, removed the record")
        return record

    def _name(self, partition: int) -> str:
        """Return the writer's name in the target; no sink can have it, because names contain no `~`."""
        return f"{self._dlq.meta.uuid}/~redrive/{self._source}/{partition}"


def open_dlq(store: ObjectStore) -> LogReader:
    """Open a log of dead letters.

    Raises:
        ConfigError: the log does not exist, or it does not hold dead letters.
    """
    reader = LogReader(store)
    if difference := describe_difference(DEAD_LETTERS, reader.meta.schema):
        raise ConfigError(
            f"the log in {store!r} does not hold dead letters: {difference}",
            not_done="nothing was read",
            next_step="inspect it with holdfast log read",
        )
    return reader


def placed_letters(
    reader: LogReader, partition: int, first: int, end: int, *, taken_back: bool = False
) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Yield the letters between two offsets, end exclusive, each with its own offset, in batches.

    Args:
        taken_back: Include letters that a rewind took back.
    """
    read = reader.read_stored if taken_back else reader.read_placed
    at = first if taken_back else reader.begin(partition, first)
    while at < end:
        batch, offsets, following = read(partition, at, CHUNK_BYTES)
        if batch is None:
            return
        places = range(following - batch.num_rows, following) if offsets is None else offsets.tolist()
        letters = zip(places, batch.to_pylist(), strict=True)
        if inside := [(place, letter) for place, letter in letters if first <= place < end]:
            yield inside
        at = following


def chunks_of(
    reader: LogReader, partition: int, first: int, end: int, *, taken_back: bool = False
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the letters in chunks, each with the offset after its last letter."""
    for letters in placed_letters(reader, partition, first, end, taken_back=taken_back):
        yield letters[-1][0] + 1, [letter for _, letter in letters]


def newest_letters(reader: LogReader, limit: int) -> list[tuple[int, int, dict[str, Any]]]:
    """Return the newest letters, `limit` over all partitions, as (partition, offset, letter) in that order."""
    newest: list[tuple[int, int, int, dict[str, Any]]] = []
    for partition, end in reader.end_offsets().items():
        first = reader.before_the_end(partition, limit)
        letters = [one for some in placed_letters(reader, partition, first, end) for one in some]
        newest += [(len(letters) - n, partition, offset, letter) for n, (offset, letter) in enumerate(letters)]
    chosen = heapq.nsmallest(limit, newest, key=lambda one: one[:3])
    return sorted((one[1:] for one in chosen), key=lambda one: one[:2])


def sources_in(reader: LogReader) -> Counter[str | None]:
    """Return the number of letters per source; the key None counts letters whose source is unknown."""
    counts: Counter[str | None] = Counter()
    for partition, end in reader.end_offsets().items():
        for _, letters in chunks_of(reader, partition, 0, end):
            counts.update(letter["source"] for letter in letters)
    return counts


def fitted(record: pa.RecordBatch, meta: LogMeta) -> pa.RecordBatch:
    """Return a record with exactly the columns of a log.

    Raises:
        ConfigError: it has other columns, or a null where the log allows none.
    """
    missing = [field for field in meta.schema if field.name not in record.schema.names]
    if missing and extends(meta.schema, record.schema):  # the log has grown since
        record = widened(record, meta.schema, record.num_columns)
    loose = pa.schema(
        [
            f.with_nullable(meta.schema.field(f.name).nullable) if f.name in meta.schema.names else f
            for f in record.schema
        ]
    )
    if difference := describe_difference(meta.schema, loose):
        raise _refused(f"the record has other columns than the log: {difference}")
    for column in meta.schema:
        if not column.nullable and record.column(column.name).null_count:
            raise _refused(f"column {column.name!r} is null, which the log does not allow")
    return pa.RecordBatch.from_arrays(record.columns, schema=meta.schema)


def _placed(meta: LogMeta, rows: tuple[tuple[int, pa.RecordBatch], ...]) -> dict[int, pa.Table]:
    if meta.key and rows:
        return partition_rows(pa.Table.from_batches([record for _, record in rows]), meta.key, meta.partitions)
    parts: dict[int, list[pa.RecordBatch]] = {}
    for partition, record in rows:
        parts.setdefault(partition, []).append(record)
    return {partition: pa.Table.from_batches(records) for partition, records in sorted(parts.items())}


def _refused(what: str) -> ConfigError:
    return ConfigError(what, not_done="nothing was appended", next_step="name another log with --to")
