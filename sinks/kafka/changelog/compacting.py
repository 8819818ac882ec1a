"""Compacts a changelog in a topic: writes the newest row of each key again, and removes what came before.

A *base* is written at the end of the topic, between deliveries, by a producer without transactions: its records have
an id, and no reader looks at them before the progress topic names the base. Naming it is one transaction after the
init, in which the owner is compared. Only then are the records before it removed.

Invariants
    - A base holds what counts at one delivery on the lineage, not later than the horizon.
    - Nothing is removed that a reader needs who has read which base the progress topic names.
    - While another driver owns the topic, nothing is named, and nothing removed. Nor in a topic that was recreated.
    - In one run, attempts that failed leave no more records than deliveries added, but for the last one: brokers remove
      records from the beginning of a topic only, so those stay until a later compaction has passed them.

Memory: the newest rows of one partition. Pure: no clock, thread or I/O of its own; brokers.py has the connections.
Source: docs/decisions/0111-changelogs-in-kafka.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from sys import intern
from typing import Protocol

from holdfast.errors import ConfigError, Damaged, HoldfastError, Unavailable
from holdfast.model import CHANGELOG, Epoch, Stretch, Tag
from holdfast.sinks.contract.changelogs import ChangelogCompaction, is_on
from holdfast.sinks.kafka.changelog.format import Broken, ChangelogMessage, Decoder, base_of, damaged
from holdfast.sinks.kafka.changelog.layout import check_layout
from holdfast.sinks.kafka.changelog.reading import (
    ChangelogFeed,
    FeedRecord,
    OpenKafkaChangelog,
    ReadableTopic,
    RecordsGone,
)
from holdfast.sinks.kafka.progress import Compacted, Layout, Progress, base_record
from holdfast.sinks.kafka.target import BrokerConnection, ProducerFenced, Records

RECORDS_MIN = 300_000
"""Fewer records, about 64 MiB, are never compacted."""


ATTEMPTS_MAX = 5
"""How often a base is named, against deliveries that end the transaction which names it."""


class CompactedTopic(ReadableTopic, Protocol):
    """A topic as a compaction changes it."""

    def write(self, records: Iterable[Records]) -> None:
        """Add records outside of any transaction, and wait until the brokers have them."""

    def remove(self, before: Mapping[int, int]) -> None:
        """Remove the records before an offset of each partition."""


class KafkaCompaction(ChangelogCompaction):
    """Compacts one changelog, again and again. See changelogs.Compaction.

    Args:
        where: How messages name it.
        topic: Opens it.
        connection: Opens it for the writer of the progress topic.
        token: Returns an id that no base has.
        records_min: See RECORDS_MIN.
    """

    def __init__(
        self,
        where: str,
        job_uuid: str,
        topic: Callable[[], CompactedTopic],
        connection: Callable[[], BrokerConnection],
        token: Callable[[], str],
        records_min: int = RECORDS_MIN,
    ) -> None:
        self._where, self._job_uuid, self._open, self._connection = where, job_uuid, topic, connection
        self._token, self._records_min = token, records_min
        self._topic: CompactedTopic | None = None
        self._failed: ConfigError | Damaged | None = None
        """Why no compaction of this run can write a base: each attempt would add the whole state to the topic."""
        self._seen: Progress | None = None
        """The progress topic as it was read last: a compaction since then only makes more of it worth a look."""
        self._added = 0
        """Records of the base that is written, or was written last."""
        self._again_at = 0
        """How many records the topic must ever have had before the next attempt."""

    def compact(self, owner: str, history: Sequence[Stretch], horizon: Epoch) -> bool:
        if self._failed is not None:
            raise self._failed
        if self._topic is None:
            self._topic = self._open()
        topic = self._topic
        if self._seen is not None and not self._is_worth(self._seen, topic, 1.0):
            return False
        self._seen = progress = topic.progress()
        held, base = progress.held(self._job_uuid, CHANGELOG), self._base(progress)
        if progress.layout is None or held is None or held.owner != owner:
            return False
        check_layout(self._where, progress.layout, topic.layout())
        if base is not None:
            self._remove_before(base, topic)  # a compaction that was interrupted may have left it
        found = OpenKafkaChangelog(self._where, self._job_uuid, topic).delivery_before(horizon)
        if found is None or not is_on(history, found[0].timeline, found[0].epoch):
            return False
        through, share = found
        if not self._is_worth(progress, topic, share):
            return False
        ends, self._added = self._ends(topic, progress.layout), 0
        try:
            new_base = self._written(topic, progress, through, lambda tag: is_on(history, tag.timeline, tag.epoch))
            self._name(owner, base, new_base)
        except HoldfastError:
            self._again_at = ends + 2 * self._added  # what was added, and as much again from deliveries
            raise
        self._seen, self._again_at = None, 0
        self._remove_before(new_base, topic)
        return True

    def _ends(self, topic: CompactedTopic, layout: Layout) -> int:
        """Return how many records the partitions have ever had."""
        return sum(topic.written(range(layout.partitions)).values())

    def _base(self, progress: Progress) -> Compacted | None:
        return progress.base_of(self._job_uuid, CHANGELOG)

    def _is_worth(self, progress: Progress, topic: CompactedTopic, share: float) -> bool:
        """Return whether so much of what is behind the last base is as large as that, and large enough.

        The base itself is among it, since it was written behind the deliveries that follow it.
        """
        if progress.layout is None:
            return True
        if self._again_at and self._ends(topic, progress.layout) < self._again_at:
            return False
        base, partitions = self._base(progress), range(progress.layout.partitions)
        begins = topic.first(partitions) if base is None else {each: base.at[each][1] for each in partitions}
        behind = sum(end - begins[each] for each, end in topic.written(partitions).items())
        left = 0 if base is None else base.records
        return share * behind - left >= max(self._records_min, left)

    def _written(
        self, topic: CompactedTopic, progress: Progress, through: Tag, counts: Callable[[Tag], bool]
    ) -> Compacted:
        """Write a base, partition by partition.

        Raises:
            ConfigError, Damaged: no compaction of this run can.
        """
        try:
            return self._write(topic, progress, through, counts)
        except (ConfigError, Damaged) as error:
            self._failed = error
            raise

    def _write(
        self, topic: CompactedTopic, progress: Progress, through: Tag, counts: Callable[[Tag], bool]
    ) -> Compacted:
        assert progress.layout is not None
        base, id, at, records = self._base(progress), self._token(), list[tuple[int, int]](), 0
        for partition in range(progress.layout.partitions):
            newest = Newest()
            if base is not None:
                decoder = Decoder(self._job_uuid, None, lambda _: True, base.id, newest.take)
                self._read(topic, partition, base.at[partition][0], decoder, base.through)
            begin = topic.first([partition])[partition] if base is None else base.at[partition][1]
            stood = None if base is None else base.through
            decoder = Decoder(self._job_uuid, stood, counts, raw=newest.take)
            behind = self._read(topic, partition, begin, decoder, through)
            first = topic.written([partition])[partition]
            topic.write(self._counted(base_of(self._job_uuid, id, through, newest.rows(), partition)))
            at.append((first, behind))
            records += newest.count
        return Compacted(id, through, tuple(at), records)

    def _counted(self, records: Iterable[Records]) -> Iterator[Records]:
        for each in records:
            self._added += len(each.values)
            yield each

    def _read(self, topic: ReadableTopic, partition: int, begin: int, decoder: Decoder, target: Tag) -> int:
        """Read a partition to the end of a delivery; return the offset behind it."""
        with closing(topic.read({partition: begin})) as feed:
            while True:
                for record in self._polled(topic, feed):
                    if record.value is None:
                        self._check_end(topic, partition, record.offset, decoder.broken, target)
                        continue
                    try:
                        delivery = decoder.follow(record.key, record.value)
                    except Broken as error:
                        raise damaged(self._where, partition, str(error)) from error
                    if delivery is not None and delivery.ended and delivery.tag == target:
                        return record.offset + 1

    def _polled(self, topic: ReadableTopic, feed: ChangelogFeed) -> Sequence[FeedRecord]:
        try:
            return feed.poll()
        except RecordsGone as gone:
            raise self._meaning(topic, gone) from gone

    def _meaning(self, topic: ReadableTopic, gone: RecordsGone) -> HoldfastError:
        assert self._seen is not None, "a compaction begins with the progress topic"
        if self._base(topic.progress()) != self._base(self._seen):
            return self._overtaken()
        return gone.unless_held(self._where, topic) or damaged(self._where, gone.partition, str(gone))

    def _check_end(self, topic: ReadableTopic, partition: int, offset: int, broken: str, target: Tag) -> None:
        if offset >= topic.written([partition])[partition]:
            why = broken or f"it ends before epoch {target.epoch}, which was delivered"
            raise damaged(self._where, partition, why)

    def _name(self, owner: str, before: Compacted | None, made: Compacted) -> None:
        """Let a base take effect, unless another driver owns the topic now, or has compacted it.

        A delivery that is under way begins again, with an init that may end this transaction. So it is repeated: to
        write another base would add the whole state to the topic.
        """
        for _ in range(ATTEMPTS_MAX):
            with suppress(ProducerFenced):
                return self._name_once(owner, before, made)
        raise self._overtaken()

    def _name_once(self, owner: str, before: Compacted | None, made: Compacted) -> None:
        connection = self._connection()
        producer = connection.producer()
        try:
            producer.init()
            progress = connection.progress()
            held = progress.held(self._job_uuid, CHANGELOG)
            if held is None or held.owner != owner or self._base(progress) not in (before, made):
                raise self._overtaken()
            producer.begin()
            producer.mark(*base_record(self._job_uuid, CHANGELOG, made))
            producer.flush()
            producer.commit()
        finally:
            producer.destroy()
            connection.close()

    def _overtaken(self) -> Unavailable:
        return Unavailable(
            f"{self._where}: another process took the topic, or its transactional id, over during a compaction",
            not_done="nothing was removed from the topic",
            next_step="no action needed: the job compacts the topic later",
        )

    def _remove_before(self, base: Compacted, topic: CompactedTopic) -> None:
        """Remove what is before the deliveries that follow a base, unless that was done."""
        first = topic.first(range(len(base.at)))
        left = {each: min(at) for each, at in enumerate(base.at) if first[each] < min(at)}
        if left:
            topic.remove(left)


class Newest:
    """The newest row of each key, as records."""

    def __init__(self) -> None:
        self._rows: dict[bytes, list[tuple[str, bytes]]] = {}
        """Base and value of each record: a decoded message would take more memory than the record itself."""

    @property
    def count(self) -> int:
        """Return the number of records."""
        return sum(map(len, self._rows.values()))

    def take(self, key: bytes, message: ChangelogMessage, value: bytes) -> None:
        """Take the next record in; a deleted key has no row."""
        if message.deleted:
            self._rows.pop(key, None)
        elif message.piece is None or not message.piece[0]:
            self._rows[key] = [(intern(message.base), value)]
        else:
            self._rows[key].append((intern(message.base), value))

    def rows(self) -> Iterable[tuple[bytes, str, bytes]]:
        """Return key, base and value of the records, those of a key together."""
        return ((key, base, value) for key, records in self._rows.items() for base, value in records)
