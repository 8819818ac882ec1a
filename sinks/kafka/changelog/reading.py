"""Reads the changelog of a job from a Kafka topic, as of the tag in its progress topic.

Each partition is read from its first record, or from the end of a delivery before which nothing is wanted, up to the
end of the delivery that the progress topic names. A record to which no chain of ends leads is never used (format.py).

Invariants
    - Records behind the delivery that the progress topic named when the topic was opened are not read.
    - Rows of a delivery that is not on the lineage, or not in the range of epochs, are checked and left out.
    - A record that is missing is damage, unless a compaction of the job was named since the topic was opened.

Pure: no clock, thread or I/O of its own; brokers.py has the connections.
Source: docs/decisions/0111-changelogs-in-kafka.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import NamedTuple, Protocol

import pyarrow as pa

from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import CHANGELOG, NO_EPOCH, Epoch, Subtask, Tag
from holdfast.sinks.contract.changelogs import AsOf, CompactedMeanwhile, OpenChangelog, is_on, unseen
from holdfast.sinks.contract.owners import Holding
from holdfast.sinks.kafka.changelog.format import Broken, Decoder, Delivery, damaged, end_of
from holdfast.sinks.kafka.changelog.layout import check_layout
from holdfast.sinks.kafka.progress import Layout, Progress

COMMITTER = Subtask(0)
"""The writer that delivers the segments of all (traits.commits_once)."""
LOOK_BACK = 512
"""Records between the end of a partition and the first place at which an older delivery is looked for."""
LOOK_FURTHER = 8
"""How much farther each next place is."""


class FeedRecord(NamedTuple):
    """A record, or the present end of a partition, which has no value."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


class RecordsGone(Exception):
    """The brokers no longer have the record at which a partition was to be read: see ChangelogFeed.poll."""

    def __init__(self, partition: int, offset: int) -> None:
        self.partition, self.offset = partition, offset
        super().__init__(f"the brokers removed records from offset {offset} on, or lost its end")

    def unless_held(self, where: str, topic: ReadableTopic) -> HoldfastError | None:
        """Return the error of a broker that refused a record which the topic has; None if the topic has lost it."""
        each = [self.partition]
        if not topic.first(each)[self.partition] <= self.offset <= topic.written(each)[self.partition]:
            return None
        return Unavailable(
            f"{where}: a broker refused offset {self.offset} of partition {self.partition}, which is in the topic",
            not_done="no state was restored",
            next_step="no action needed: the read begins again; if this persists, check that the replicas are in sync",
        )


class ChangelogFeed(Protocol):
    """Records of some partitions, in the order of each."""

    def poll(self) -> Sequence[FeedRecord]:
        """Return the next ones that readers of committed records see; nothing if there are none now.

        Raises:
            RecordsGone: records were removed where it reads, or it would begin behind the last one.
            Unavailable: nothing has come for long, though there is more.
        """

    def drop(self, partition: int) -> None:
        """Read no more of a partition."""

    def close(self) -> None:
        """Release the connection."""


class ReadableTopic(Protocol):
    """A topic and its progress topic, for readers. Its calls raise Unavailable, NotAdmitted or ConfigError."""

    def layout(self) -> Layout:
        """Return what the topic is now."""

    def progress(self) -> Progress:
        """Read the progress topic to its end."""

    def first(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset of the first record that is left in each partition."""

    def written(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset behind the last record of each partition, committed or not."""

    def read(self, begins: Mapping[int, int]) -> ChangelogFeed:
        """Read partitions, each from an offset on."""

    def holds_records(self) -> bool:
        """Return whether a reader of committed records sees any."""

    def close(self) -> None:
        """Release what is open."""


class OpenKafkaChangelog(OpenChangelog):
    """The part of a job's changelog that a topic holds; see changelogs.OpenChangelog.

    Args:
        where: How messages name it.
    """

    def __init__(self, where: str, job_uuid: str, topic: ReadableTopic) -> None:
        self._where, self._job_uuid, self._topic = where, job_uuid, topic
        self._progress = topic.progress()
        self._base = self._progress.base_of(job_uuid, CHANGELOG)

    @property
    def empty(self) -> bool:
        return self._tag is None

    @property
    def holding(self) -> Holding:
        job = self._job_uuid
        return Holding(self._progress.held(job, CHANGELOG), self._progress.newest(job, CHANGELOG))

    @cached_property
    def delivered(self) -> Mapping[Subtask, Epoch]:
        found = self._progress.tags_of(self._job_uuid, CHANGELOG)
        return {writer: tag.epoch for writer, tag in found.items()}

    @property
    def floor(self) -> Epoch:
        return NO_EPOCH if self._base is None else self._base.through.epoch

    def records(self, which: AsOf, advanced: Callable[[int, int], object] = unseen) -> Iterator[pa.RecordBatch]:
        target = self._tag
        if target is None:
            return
        assert which.after == NO_EPOCH or which.after >= self.floor, "deletes may be gone"
        layout = self._progress.layout
        assert layout is not None, "every delivery is behind the record that describes the topic"
        check_layout(self._where, layout, self._topic.layout())
        partitions = asked_of(which, layout.partitions)
        if (base := self._base) is not None and which.after == NO_EPOCH:
            based = {each: Decoder(self._job_uuid, None, lambda _: True, base.id) for each in partitions}
            yield from self._read({each: base.at[each][0] for each in partitions}, based, base.through, advanced)
        begins = self._begins(partitions, which.after, advanced)
        counts = lambda tag: which.after < tag.epoch <= which.through and is_on(which.history, tag.timeline, tag.epoch)
        decoders = {each: Decoder(self._job_uuid, before, counts) for each, (_, before) in begins.items()}
        yield from self._read({each: offset for each, (offset, _) in begins.items()}, decoders, target, advanced)

    def delivery_before(self, horizon: Epoch) -> tuple[Tag, float] | None:
        """Return a delivery at or before an epoch, as late as is found quickly, and the share of records up to it.

        None if there is none behind the last compaction. All partitions have the same deliveries, so one is looked at.
        """
        if self._tag is None:
            return None
        begin, before = self._begins([0], NO_EPOCH)[0]
        end = self._topic.written([0])[0]
        step = max(1, min(LOOK_BACK, (end - begin) // LOOK_FURTHER))
        offset, tag = self._behind(0, begin, before, end, horizon, step)
        return None if tag is None or tag == before else (tag, (offset - begin) / (end - begin))

    @property
    def _tag(self) -> Tag | None:
        return self._progress.tags_of(self._job_uuid, CHANGELOG).get(COMMITTER)

    def _read(
        self,
        begins: Mapping[int, int],
        decoders: dict[int, Decoder],
        target: Tag,
        advanced: Callable[[int, int], object],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of deliveries up to the target."""
        left = {each for each, decoder in decoders.items() if decoder.tag != target}
        share = ReadShare(begins, self._topic.written(begins))
        with closing(self._topic.read({each: begins[each] for each in left})) as feed:
            while left:
                for record in self._polled(feed):
                    if record.partition not in left:
                        continue
                    if record.value is None:
                        self._check_end(record, decoders[record.partition], target)
                        continue
                    share.read(record)
                    delivery = self._taken(record, decoders[record.partition])
                    if delivery is not None and delivery.rows.num_rows:
                        yield delivery.rows
                    if delivery is not None and delivery.ended and delivery.tag == target:
                        left.discard(record.partition)
                        feed.drop(record.partition)
                advanced(*share.shown())

    def _polled(self, feed: ChangelogFeed) -> Sequence[FeedRecord]:
        try:
            return feed.poll()
        except RecordsGone as gone:
            refused = gone.unless_held(self._where, self._topic)
            raise refused or self._damaged(gone.partition, str(gone)) from gone

    def _taken(self, found: FeedRecord, decoder: Decoder) -> Delivery | None:
        try:
            return decoder.follow(found.key, found.value)
        except Broken as error:
            raise self._damaged(found.partition, str(error)) from error

    def _damaged(self, partition: int, why: str) -> HoldfastError:
        """Return what to raise for a partition that is not what was expected."""
        if self._topic.progress().base_of(self._job_uuid, CHANGELOG) != self._base:
            return CompactedMeanwhile(
                f"{self._where}: was compacted while it was read",
                not_done="no state was restored",
                next_step="no action needed: the read begins again",
            )
        return damaged(self._where, partition, why)

    def _check_end(self, found: FeedRecord, decoder: Decoder, target: Tag) -> None:
        """Refuse a partition that ends before the target, unless an open transaction hides the rest.

        A commit is confirmed, and its tag can be read, before every partition has its marker.
        """
        if found.offset >= self._topic.written([found.partition])[found.partition]:
            ends = "nowhere" if decoder.tag is None else f"with epoch {decoder.tag.epoch}"
            why = f"it ends {ends}, but epoch {target.epoch} of timeline {target.timeline} was delivered"
            raise self._damaged(found.partition, decoder.broken or why)

    def _begins(
        self, partitions: Iterable[int], after: Epoch, advanced: Callable[[int, int], object] = unseen
    ) -> dict[int, tuple[int, Tag | None]]:
        """Return where to begin in each partition, and the delivery that ends there."""
        first: dict[int, tuple[int, Tag | None]]
        if (base := self._base) is not None:
            first = {each: (base.at[each][1], base.through) for each in partitions}
        else:
            first = {each: (offset, None) for each, offset in self._topic.first(partitions).items()}
        if after == NO_EPOCH:
            return first
        ends = self._topic.written(first)
        return {each: self._behind(each, *first[each], ends[each], after, advanced=advanced) for each in first}

    def _behind(
        self,
        partition: int,
        first: int,
        stood: Tag | None,
        end: int,
        after: Epoch,
        step: int = LOOK_BACK,
        advanced: Callable[[int, int], object] = unseen,
    ) -> tuple[int, Tag | None]:
        """Return a place behind which all records of later epochs are.

        That is true of the end of each delivery at which the writer was not beyond the epoch, so any of them will do;
        the search goes back from the newest one in growing steps, since it is asked for epochs near the end.
        """
        while (probe := end - step) > first:
            found = self._next_end(partition, probe, end, advanced)
            if found is not None and found[1].epoch <= after:
                return found
            step *= LOOK_FURTHER if step >= LOOK_BACK else 2
        return first, stood

    def _next_end(
        self, partition: int, probe: int, end: int, advanced: Callable[[int, int], object]
    ) -> tuple[int, Tag] | None:
        """Return the offset behind the first end of a delivery from an offset on, and its tag."""
        with closing(self._topic.read({partition: probe})) as feed:
            while True:
                advanced(0, 0)  # a delivery may be as large as the whole state
                for record in self._polled(feed):
                    if record.value is None or record.offset >= end:
                        return None
                    if (tag := end_of(record.value)) is not None:
                        return record.offset + 1, tag


class ReadShare:
    """How much of some partitions is read, for display: bytes are estimated from offsets.

    Args:
        begins: Where reading begins, per partition.
        ends: Where it ends.
    """

    def __init__(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> None:
        self._all = sum(max(0, ends[each] - begins[each]) for each in begins)
        self._begins, self._offsets, self._bytes = begins, dict(begins), 0

    def read(self, found: FeedRecord) -> None:
        """Take a record in."""
        self._offsets[found.partition] = found.offset + 1
        self._bytes += len(found.key or b"") + len(found.value or b"")

    def shown(self) -> tuple[int, int]:
        """Return the bytes read, and an estimate of all."""
        passed = sum(self._offsets[each] - self._begins[each] for each in self._begins)
        return self._bytes, max(self._bytes, self._bytes * self._all // max(passed, 1))


def asked_of(which: AsOf, partitions: int) -> list[int]:
    """Return the partitions that hold records of the key groups asked for."""
    first, last = which.key_groups[0], max(which.key_groups[1] - 1, which.key_groups[0])
    return list(range(first * partitions // which.count, last * partitions // which.count + 1))
