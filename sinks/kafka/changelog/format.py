"""The records of a changelog in a Kafka topic: rows, and the ends of deliveries.

The key of a row is that of its record (state/records.py); its value is a JSON object:

    timeline, epoch      the tag of its delivery
    operator             its name
    row_key, row         key and values, for people
    layout, value        what a restore reads; `value` is base64
    deleted              true: the row is deleted; there is nothing else then
    base                 the record is none of a delivery: a compaction wrote it, which has this id
    piece                [i, n]: one of n records in a row whose `value` are the whole one, which is too large for one

Every delivery ends with one record in each partition, whose object `end` says how many records of the delivery are
before it, the hash of their bytes, and the tag that the writer had before. So a partition is a chain of deliveries: a
record that is missing, changed, or was written by another job breaks it.

Invariants
    - A reader that follows the chain of a partition to the tag of the progress topic has read every record of it.
    - The key of an end occurs once, so a compaction by the brokers removes rows without their end, and is noticed.
    - deltas_in(decoded(encoded(records))) has the same rows, bit for bit.

Pure: no clock, thread or I/O. Source: docs/decisions/0111-changelogs-in-kafka.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from holdfast.errors import ConfigError, Damaged
from holdfast.model import Epoch, Tag, Timeline
from holdfast.sinks.contract.changelogs import partitions_of
from holdfast.sinks.contract.target import DELETE, OP
from holdfast.sinks.kafka.target import Records

VERSION = 1
ROWS_MAX = 50_000
"""Rows of a batch that a reader yields."""
BYTES_MAX = 8 << 20
"""Bytes of keys and values after which a reader yields a batch with fewer rows."""
OVERHEAD = 512
"""More bytes than the client adds to a record, and than the fields of a piece besides its value and layout."""
READ = pa.schema(
    [
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("operator", pa.string(), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("epoch", pa.int64()),
        pa.field("layout", pa.string()),
        pa.field("value", pa.large_binary()),
    ]
)
"""The columns that a reader yields: what state/records.py reads, first the mark of a delete."""
_NOTHING = msgspec.Raw()
Row = TypeVar("Row")


class DeliveryEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record that ends a delivery in a partition."""

    v: int
    job: str
    before: tuple[int, int] | None
    """Timeline and epoch of the delivery before it; None: it is the first."""
    records: int
    digest: str


class ChangelogMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record."""

    timeline: int
    epoch: int
    operator: str = ""
    row_key: msgspec.Raw = _NOTHING
    row: msgspec.Raw = _NOTHING
    layout: msgspec.Raw = _NOTHING
    value: bytes | None = None
    deleted: bool = False
    piece: tuple[int, int] | None = None
    base: str = ""
    end: DeliveryEnd | None = None


_ENCODE = msgspec.json.Encoder().encode
_DECODER = msgspec.json.Decoder(ChangelogMessage)


@dataclass
class Sum:
    """Number and hash of the records since the last end."""

    records: int = 0
    hashed: Any = field(default_factory=xxhash.xxh3_64)

    def add(self, key: bytes, value: bytes) -> None:
        """Take the next record in."""
        self.records += 1
        self.hashed.update(key)
        self.hashed.update(value)

    @property
    def digest(self) -> str:
        """Return the hash so far."""
        text: str = self.hashed.hexdigest()
        return text


@dataclass(frozen=True)
class Encoder:
    """How deliveries become records.

    Args:
        where: How messages name the topic.
        job_uuid: The job.
        partitions: Partitions of the topic.
        key_groups: Key groups of the job.
        record_max: Bytes of the largest record that a producer takes.
    """

    where: str
    job_uuid: str
    partitions: int
    key_groups: int
    record_max: int

    def records(self, tag: Tag, before: Tag | None, batches: Sequence[pa.RecordBatch]) -> Iterator[Records]:
        """Yield the records of one delivery, those of a partition in the order of the batches, then the ends.

        Raises:
            ConfigError: a key is too large for a record.
        """
        sums = [Sum() for _ in range(self.partitions)]
        for batch in batches:
            places = partitions_of(batch.column("key"), self.partitions, self.key_groups)
            for partition in np.unique(places).tolist():
                found = self._rows(tag, batch.take(pa.array(np.flatnonzero(places == partition))))
                for key, value in zip(found.keys or (), found.values, strict=True):
                    sums[partition].add(key or b"", value or b"")
                yield Records(found.keys, found.values, partition)
        stood = None if before is None else (int(before.timeline), int(before.epoch))
        for partition, each in enumerate(sums):
            end = DeliveryEnd(VERSION, self.job_uuid, stood, each.records, each.digest)
            value = _ENCODE(ChangelogMessage(tag.timeline, tag.epoch, end=end))
            yield Records([_end_key(self.job_uuid, tag)], [value], partition)

    def _rows(self, tag: Tag, batch: pa.RecordBatch) -> Records:
        keys, values = list[bytes | None](), list[bytes | None]()
        for key, message in zip(batch.column("key").to_pylist(), _messages(tag, batch), strict=True):
            value = _ENCODE(message)
            if len(key) + len(value) + OVERHEAD <= self.record_max:
                keys.append(key)
                values.append(value)
            else:
                pieces = self._pieces(key, message)
                keys += [key] * len(pieces)
                values += pieces
        return Records(keys, values)

    def _pieces(self, key: bytes, message: ChangelogMessage) -> list[bytes]:
        """Return a row that is too large for a record as several ones, without what is for people."""
        room = self.record_max - OVERHEAD - len(key) - len(message.operator) - len(bytes(message.layout))
        size = room * 3 // 4  # base64
        if size < OVERHEAD:
            raise ConfigError(
                f"{self.where}: a key of operator {message.operator!r} takes {len(key):,} bytes, and a record may have "
                f"{self.record_max:,}",
                not_done="the changes of the epoch were not delivered; they are safe in the job's root",
                next_step='give options={"message.max.bytes": N}, with at least as much in max.message.bytes of the '
                "topic, and start the job again",
            )
        whole = message.value or b""
        parts = [whole[at : at + size] for at in range(0, len(whole), size)] or [b""]
        return [
            _ENCODE(
                ChangelogMessage(
                    message.timeline,
                    message.epoch,
                    message.operator,
                    layout=message.layout,
                    value=part,
                    deleted=message.deleted,
                    piece=(n, len(parts)),
                )
            )
            for n, part in enumerate(parts)
        ]


def base_of(
    job_uuid: str, id: str, through: Tag, rows: Iterable[tuple[bytes, str, bytes]], partition: int
) -> Iterator[Records]:
    """Yield the records of a base in one partition: rows as they were delivered, and an end.

    Args:
        rows: Key, older base and value as they were read; the base is empty for those of a delivery.
    """
    checksum, begins = Sum(), b'{"base":"' + id.encode() + b'",'
    for group in batched(rows, ROWS_MAX):
        keys = [key for key, _, _ in group]
        values = [begins + value[_beginning(older) :] for _, older, value in group]
        for key, value in zip(keys, values, strict=True):
            checksum.add(key, value)
        yield Records(keys, values, partition)
    end = DeliveryEnd(VERSION, job_uuid, None, checksum.records, checksum.digest)
    value = _ENCODE(ChangelogMessage(through.timeline, through.epoch, base=id, end=end))
    yield Records([f"base {id}".encode()], [value], partition)


def _beginning(older: str) -> int:
    """Return the length of what a base replaces: the bracket, or the id of an older base too."""
    return len(b'{"base":"",') + len(older) if older else 1


def batched(rows: Iterable[Row], count: int) -> Iterator[list[Row]]:
    """Yield lists of so many rows, the last one with fewer."""
    rest = iter(rows)
    while group := list(islice(rest, count)):
        yield group


def _messages(tag: Tag, batch: pa.RecordBatch) -> Iterator[ChangelogMessage]:
    timeline, epoch, raw = int(tag.timeline), int(tag.epoch), msgspec.Raw
    names, values = batch.column("operator").to_pylist(), batch.column("value").to_pylist()
    texts = (batch.column(name).cast(pa.binary()).to_pylist() for name in ("row_key", "row", "layout"))
    for deletes, name, value, row_key, row, layout in zip(
        batch.column(OP).to_pylist(), names, values, *texts, strict=True
    ):
        if deletes == DELETE:
            yield ChangelogMessage(timeline, epoch, name, raw(row_key), deleted=True)
        else:
            yield ChangelogMessage(timeline, epoch, name, raw(row_key), raw(row), raw(layout), value)


def _end_key(job_uuid: str, tag: Tag) -> bytes:
    return f"end {job_uuid} {tag.timeline} {tag.epoch}".encode()


class Broken(Exception):
    """A partition is not the chain of deliveries that was written."""


@dataclass
class Delivery:
    """The end of a delivery, and rows of it."""

    tag: Tag
    rows: pa.RecordBatch
    ended: bool


class Decoder:
    """Reads one partition, message by message.

    Args:
        job_uuid: The job that wrote it.
        before: The tag of the delivery before the first message; None: the first message is the first of all.
        wanted: Whether the rows of a delivery are of interest.
        base: Read the records of this base; empty: those of deliveries.
        raw: Takes each row of interest as it is, in place of the batches.
    """

    def __init__(
        self,
        job_uuid: str,
        before: Tag | None,
        wanted: Callable[[Tag], bool],
        base: str = "",
        raw: Callable[[bytes, ChangelogMessage, bytes], None] | None = None,
    ) -> None:
        self._base, self._raw = base, raw
        self._job, self.tag, self._wanted = job_uuid, before, wanted
        """The last delivery that ended."""
        self._sum = Sum()
        self._of: Tag | None = None
        self._keep = False
        self._keys, self._messages, self._bytes = list[bytes](), list[ChangelogMessage](), 0
        self._pieces = list[bytes]()
        self._wants_broken = False
        self.broken = ""
        """Why what follows the last delivery that ended cannot be used; empty: it can."""

    def follow(self, key: bytes | None, value: bytes | None) -> Delivery | None:
        """Take the next message in, as `take` does, and pass over what a rewind behind it has abandoned.

        Damage in the topic is permanent. If it is behind the checkpoint to which the job was rewound since, the end
        that the rewind wrote continues the chain: every delivery up to its epoch was read before the damage.

        Raises:
            Broken: no rewind can cure it.
        """
        if not self.broken:
            try:
                return self.take(key, value)
            except Broken as error:
                if self._base or self.tag is None:
                    raise
                self.broken, self._wants_broken = str(error), self._keep and self._of is not None
                self._pieces.clear()
                self._batch()
        if (found := rewound_at(key, value, self._job, self.tag)) is None:
            return None
        tag, before = found
        if self._wants_broken or self._wanted(before):
            return None
        self.tag, self._of, self._sum, self.broken = tag, None, Sum(), ""
        return Delivery(tag, self._batch(), ended=True)

    def take(self, key: bytes | None, value: bytes | None) -> Delivery | None:
        """Take the next message in; return what is complete with it.

        Raises:
            Broken: see there.
        """
        try:
            message = _DECODER.decode(value or b"")
        except msgspec.DecodeError as error:
            raise Broken(f"a record is none of a changelog: {error}") from error
        if message.base != self._base:
            return None
        tag = Tag(Timeline(message.timeline), Epoch(message.epoch))
        if message.end is not None:
            return self._ended(tag, message.end)
        if self._base:
            self._keep = True
        elif tag != self._of:
            if self._of is not None:
                raise Broken(f"the delivery of epoch {self._of.epoch} has no end")
            self._of, self._keep = tag, self._wanted(tag)
        self._sum.add(key or b"", value or b"")
        if self._keep and self._raw is not None:
            self._raw(key or b"", message, value or b"")
        elif self._keep:
            self._row(key or b"", message)
            if (len(self._keys) >= ROWS_MAX or self._bytes >= BYTES_MAX) and not self._pieces:
                return Delivery(tag, self._batch(), ended=False)
        return None

    def _row(self, key: bytes, message: ChangelogMessage) -> None:
        if message.piece is not None:
            number, count = message.piece
            if number != len(self._pieces):
                raise Broken(f"piece {len(self._pieces)} of a row is missing")
            self._pieces.append(message.value or b"")
            if number + 1 < count:
                return
            message = msgspec.structs.replace(message, value=b"".join(self._pieces))
            self._pieces.clear()
        elif self._pieces:
            raise Broken("the last piece of a row is missing")
        self._keys.append(key)
        self._messages.append(message)
        self._bytes += len(key) + len(message.value or b"")

    def _ended(self, tag: Tag, end: DeliveryEnd) -> Delivery:
        if (end.v, end.job) != (VERSION, self._job):
            raise Broken(f"job {end.job} wrote to it, in version {end.v} of the format")
        if self._of not in (None, tag) or (self._sum.records, self._sum.digest) != (end.records, end.digest):
            raise Broken(
                f"of the {end.records} records of epoch {tag.epoch}, {self._sum.records} are there, or they differ "
                "from what was written"
            )
        stood = None if self.tag is None else (self.tag.timeline, self.tag.epoch)
        if stood != end.before:
            raise Broken(f"what was delivered between {_shown(stood)} and {_shown(end.before)} is missing")
        if self._pieces:
            raise Broken("the last piece of a row is missing")
        found = Delivery(tag, self._batch(), ended=True)
        self.tag, self._of, self._sum = tag, None, Sum()
        return found

    def _batch(self) -> pa.RecordBatch:
        keys, messages = self._keys, self._messages
        self._keys, self._messages, self._bytes = [], [], 0
        columns: Mapping[str, Any] = {
            "deleted": pa.array([each.deleted for each in messages], pa.bool_()),
            "operator": pa.array([each.operator for each in messages], pa.string()),
            "key": pa.array(keys, pa.large_binary()),
            "epoch": pa.array([each.epoch for each in messages], pa.int64()),
            "layout": pa.array([bytes(each.layout).decode() or None for each in messages], pa.string()),
            "value": pa.array([each.value for each in messages], pa.large_binary()),
        }
        return pa.RecordBatch.from_pydict(columns, schema=READ)


def end_of(value: bytes | None) -> Tag | None:
    """Return the tag of a delivery that this record ends; None if it ends none, or is none of a changelog."""
    try:
        message = _DECODER.decode(value or b"")
    except msgspec.DecodeError:
        return None
    return None if message.end is None or message.base else Tag(Timeline(message.timeline), Epoch(message.epoch))


def rewound_at(key: bytes | None, value: bytes | None, job: str, through: Tag | None) -> tuple[Tag, Tag] | None:
    """Return the tag of a rewind to an epoch at or before a delivery, and the newest tag that it abandoned.

    None if the record is no end of such a rewind. A rewind writes no rows, and its epoch is not beyond one that its
    former timeline has, as those of deliveries are.
    """
    try:
        message = _DECODER.decode(value or b"")
    except msgspec.DecodeError:
        return None
    end, tag = message.end, Tag(Timeline(message.timeline), Epoch(message.epoch))
    if end is None or message.base or (end.v, end.job, end.records, end.digest) != (VERSION, job, 0, Sum().digest):
        return None
    if through is None or end.before is None or key != _end_key(job, tag):
        return None
    if tag.timeline <= through.timeline or tag.epoch > through.epoch:
        return None
    return tag, Tag(Timeline(end.before[0]), Epoch(end.before[1]))


def _shown(stood: tuple[int, int] | None) -> str:
    return "the beginning" if stood is None else f"timeline {stood[0]}, epoch {stood[1]}"


def damaged(where: str, partition: int, why: str) -> Damaged:
    """Return the error for a partition that is not what was written."""
    return Damaged(
        f"{where}: partition {partition} is not what was delivered to it: {why}",
        not_done="no state was restored",
        next_step="rewind the job to a checkpoint whose records are all there; or restore the data of the brokers, so "
        "that the topic keeps its id, which a mirror of it does not have. Turn retention and compaction by the brokers "
        "off (cleanup.policy=delete, retention.ms=-1, retention.bytes=-1)",
    )
