"""A topic as one process reads it.

The driver asks questions; a worker also has a consumer, which the lane of its readers uses. Every `VERIFY_EVERY_S` the
lane asks the brokers which topic this is, and who serves its partitions. So a recreated topic is noticed, and "no
records" is never said of a partition that no broker serves.

Invariants
    - One thread at a time uses the consumer; the operator thread takes the lock only to close.
    - Records are decoded in the lane.
    - Nothing is read of a topic other than the one that was opened.

Source: runtime/plan/source.py; docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

import time
from functools import partial
from threading import Lock
from typing import Literal

import pyarrow as pa

from holdfast.errors import ConfigError, Damaged, Unavailable, Where
from holdfast.runtime.plan.ahead import Ahead, Read, ReaderAhead
from holdfast.runtime.plan.source import Kept, OpenSource, PartitionReader
from holdfast.runtime.sources.kafka.bell import Bell
from holdfast.runtime.sources.kafka.feed import NOTHING_READ, OutOfRange, Taken, Unpackable
from holdfast.runtime.sources.kafka.feeds import AnyFeed, feed_of
from holdfast.runtime.sources.kafka.messages import Messages, ValueDecoder, batch_of
from holdfast.runtime.sources.kafka.part_of import PartOf
from holdfast.runtime.sources.kafka.tombstones import Tombstones
from holdfast.runtime.sources.kafka.unpackable import Refuses, Unread, behind, refusal
from holdfast.runtime.sources.reading import lost_range
from holdfast.storage.kafka.errors import unavailable
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import LOOK_EVERY_S, MISSING_FOR_S, Questions, Topic, log

OnLost = Literal["fail", "earliest"]
"""The policy for records that retention removed before they were read."""
VERIFY_EVERY_S = 2.0
_UNKNOWN = "-"
"""In an identity: the brokers have no ids of topics."""


class TopicGone(Damaged):
    """The topic that was opened no longer exists; another one may have its name."""


class OpenKafka(OpenSource):
    """A topic that is open. It may be used again after `close`, which drops connections only.

    Args:
        values: The columns of the values.
        lines: Decodes values; None: they stay bytes.
        meta: Whether the columns of `meta=True` follow.
        on_lost: A reader's policy for records that retention removed before it read them. `read` raises in any case.
        tombstones: See `batch_of`.
        part_of: The topic is one of several. Then nothing is asked before something is read, and what is unknown or
            another one is `Damaged` there.

    Raises:
        ConfigError: the topic does not exist, or the options are wrong.
        Unavailable: no broker answers.
    """

    def __init__(
        self,
        place: KafkaPlace,
        values: pa.Schema,
        lines: ValueDecoder | None,
        meta: bool,
        on_lost: OnLost = "fail",
        tombstones: Tombstones | None = None,
        part_of: PartOf | None = None,
    ) -> None:
        self._place, self._values, self._lines, self._meta = place, values, lines, meta
        self._on_lost, self._tombstones = on_lost, tombstones
        self._lock, self._closing, self._away = Lock(), False, False
        self._questions = Questions(place, lambda: self._closing)
        self._part_of, self._seen = part_of, part_of is None
        """Whether the brokers have known the topic since it was opened."""
        self.topic = part_of.known if part_of is not None else self._questions.existing("the source was not opened")
        self._feed: AnyFeed | None = None
        self._bell: Bell | None = None
        """Once there is a reader."""
        self._over = False
        """Whether the source has noted that the topic has ended: nothing is asked of it any more."""
        self._missing_since: float | None = None
        """Since when no broker has known the topic."""
        self._verified_at = time.monotonic() if self._seen else -VERIFY_EVERY_S
        self._undecoded: dict[int, tuple[int, Taken]] = {}
        """By partition: the offset that was asked for, and messages that cannot be decoded now."""
        self._waits = False
        """Whether messages waited for a registry when last some were to be decoded."""

    def identity(self, partition: int, offset: int) -> str:
        """Return the ids of cluster and topic: within one topic, records never change."""
        return f"kafka {self.topic.cluster} {self.topic.id or _UNKNOWN}"

    def changed(self, identity: str) -> str | None:
        kind, *rest = identity.split(" ")
        if kind != "kafka" or len(rest) != 2:
            return f"it is {self._place.where}, but a {kind} was read"
        now = self._known()
        if now is None:
            return f"{self._place.where} no longer exists"
        return self._difference(rest[0], rest[1], now)

    def partitions(self) -> list[int]:
        self.topic = self._present()
        return list(self.topic.partitions)

    def end_offsets(self) -> dict[int, int]:
        """Return the last stable offsets: no transaction that is open lies before them.

        The operator thread calls it too, and does not wait while the lane finds that no broker answers.
        """
        self._questions.refuse_while_away()
        return self._questions.offsets(self._present().partitions, "end")

    def retention_start(self, partition: int) -> int:
        return self._questions.offsets([partition], "first")[partition]

    def whole_from(self, partition: int) -> int:
        """Return the first offset, or the end of a compacted topic: it does not reveal how much of it is complete."""
        compacted = self._questions.removes_single_records()
        return self._questions.offsets([partition], "end" if compacted else "first")[partition]

    def kept(self, within_s: float) -> dict[int, Kept]:
        """Records are removed by segments, once all records of one are too old or too many: no earlier than this says.

        A partition without a removed record has not reached its size.
        """
        self._questions.refuse_while_away()
        partitions, limits = self._present().partitions, self._questions.limits()
        first = self._questions.offsets(partitions, "first")
        end = self._questions.offsets(partitions, "end")
        old: dict[int, int] = {}
        if limits.age_ms is not None:
            due_ms = max(0, int(1000 * (time.time() + within_s)) - limits.age_ms)
            old = self._questions.offsets(partitions, due_ms)
        return {
            each: Kept(
                first[each],
                end[each],
                None if each not in old else old[each] if old[each] >= 0 else end[each],
                limits.size_bytes is not None and first[each] > 0,
            )
            for each in partitions
        }

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        found = self._fetch(partition, "fail", offset, max_bytes)
        return found.batch, found.following

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        if self._bell is None:
            self._bell = Bell() if self._part_of is None else self._part_of.bell()
        fetch = partial(self._fetch, partition, self._on_lost)
        return ReaderAhead(fetch, lambda _offset, _read: True, offset, ahead, self._bell.wait)

    def ended(self, partition: int, offset: int) -> bool:
        """A topic has no end."""
        return False

    def was_missing(self) -> None:
        """Learn that no broker has known the topic for `MISSING_FOR_S` until now."""
        if not self._seen and self._missing_since is None:
            self._missing_since = time.monotonic() - MISSING_FOR_S

    def close(self) -> None:
        self._closing = True  # a lane that waits gives up soon
        with self._lock:
            if self._feed is not None:
                self._feed.close()
            self._undecoded.clear()
            self._questions.close()
            self._closing = False

    def _fetch(self, partition: int, on_lost: OnLost, offset: int, max_bytes: int) -> Read:
        if self._over:
            return Read(None, offset)
        try:
            return self._found(partition, on_lost, offset, max_bytes)
        except TopicGone as gone:
            if self._part_of is None or self._part_of.ended is None:
                raise
            if self._part_of.ended():
                self._over = True
                self.close()
                return Read(None, offset)
            what = "it no longer exists, which the driver has still to note"
            raise unavailable(self._place, what, NOTHING_READ) from gone

    def _found(self, partition: int, on_lost: OnLost, offset: int, max_bytes: int) -> Read:
        with self._lock:
            try:
                self._verify(partition)
                fetch_result = self._taken(partition, offset, max_bytes)
            except OutOfRange:
                fetch_result = None
            except Unpackable as error:
                return self._unread(partition, offset, error)
            except Unavailable as error:
                self._unreachable(error)
                raise
            if fetch_result is None:
                return self._out_of_range(partition, on_lost, offset)
            if self._away:
                self._away = False
                log.warning("%s answers again; reading continues", self._place.where)
        if fetch_result.messages is None:
            return Read(None, fetch_result.following)
        return Read(self._decoded(partition, offset, fetch_result, fetch_result.messages), fetch_result.following)

    def _unread(self, partition: int, offset: int, error: Unpackable) -> Read:
        """Return the records of a batch that cannot be decompressed as one that cannot be decoded."""
        end = self._questions.offsets([partition], "end")[partition]
        following = behind(error, offset, end, lambda at: self._taken(partition, at, 1))
        lines = Refuses(self._values, refusal(error, offset, following, self._place))
        return Read(self._batch(Unread(partition, offset, following - 1), offset, lines, None), following)

    def _batch(
        self, messages: Messages, offset: int, lines: ValueDecoder | None, tombstones: Tombstones | None
    ) -> pa.RecordBatch:
        topic = None if self._part_of is None else self._place.topic
        return batch_of(messages, offset, self._values, lines, self._meta, tombstones, topic)

    def _taken(self, partition: int, offset: int, max_bytes: int) -> Taken:
        held_at, held = self._undecoded.pop(partition, (offset, None))
        if held is not None and held_at == offset:
            return held
        if self._feed is None:
            more, interrupted = self._meta or self._tombstones is not None, lambda: self._closing
            self._feed = feed_of(self._place, more, self._partitions, interrupted, self._bell)
        return self._feed.take(partition, offset, max_bytes)

    def _partitions(self) -> int:
        """Return among how many partitions the memory for fetched records is divided."""
        return len(self.topic.partitions) if self._part_of is None else self._part_of.partitions()

    def _where(self, partition: int, offset: int) -> Where:
        """Return a place, with the source's number of the partition."""
        return Where(partition=self._number(partition), offset=offset)

    def _number(self, partition: int) -> int:
        return partition if self._part_of is None else self._part_of.number(partition)

    def _decoded(self, partition: int, offset: int, taken: Taken, messages: Messages) -> pa.RecordBatch:
        """Return the rows of messages. Those that wait for a registry are kept, so that they are fetched once."""
        try:
            batch = self._batch(messages, offset, self._lines, self._tombstones)
        except Unavailable as error:
            if not self._waits:
                self._waits = True
                log.warning("%s: %s; reading waits", self._place.where, error.what)
            if not self._closing:
                self._undecoded[partition] = (offset, taken)
            raise
        except ConfigError as error:
            what = f"{self._place.where}, partition {partition}, at offset {offset:,} or behind: {error.what}"
            where = self._where(partition, offset)
            raise ConfigError(what, not_done=error.not_done, next_step=error.next_step, where=where) from error
        if self._waits:
            self._waits = False
            log.warning("%s: its records can be decoded again; reading continues", self._place.where)
        return batch

    def _verify(self, partition: int) -> None:
        """Ask from time to time whether this is still the topic, and whether a broker serves the partition."""
        now = time.monotonic()
        if now - self._verified_at >= VERIFY_EVERY_S or self._away or partition in self.topic.leaderless:
            self.topic = self._present()
            self._verified_at = time.monotonic()
        if partition in self.topic.leaderless:
            raise unavailable(self._place, f"no broker serves partition {partition}", NOTHING_READ)

    def _unreachable(self, error: Unavailable) -> None:
        """Warn once per outage; the worker asks again, and its sources wait."""
        if not self._away and not self._closing:
            self._away = True
            log.warning("%s; reading waits until it answers", error.what)

    def _present(self) -> Topic:
        """Return the topic as it is now.

        Raises:
            TopicGone: there is none, or another one of its name.
            Damaged: it is in another cluster.
        """
        now = self._known()
        absence = f"{self._place.where} no longer exists"
        if now is None or (why := self._difference(self.topic.cluster, self.topic.id or _UNKNOWN, now)) is not None:
            error = TopicGone if now is None or now.cluster == self.topic.cluster else Damaged
            further = '; or, to go on without it, set hf.Kafka(..., on_lost="earliest")'
            raise error(
                absence if now is None else why or absence,
                not_done="no more records were read; the job is at its last checkpoint",
                next_step="restore the topic as it was; or, to read the present records from the first one, give the "
                f"job another name{'' if self._part_of is None or error is Damaged else further}",
            )
        if len(now.partitions) < len(self.topic.partitions):  # a topic never loses partitions
            raise unavailable(self._place, "a broker does not know all of its partitions yet", NOTHING_READ)
        return now

    def _known(self) -> Topic | None:
        """Return the topic as it is now; None if no broker has known it for `MISSING_FOR_S`.

        Raises:
            Unavailable: a broker does not know it, which may be one that starts.
        """
        waited = self._seen or self._missing_since is not None
        now = self._questions.topic() if waited else self._awaited()
        if now is not None:
            self._missing_since, self._seen = None, True
            return now
        asked = time.monotonic()
        if self._missing_since is None:
            self._missing_since = asked if self._seen else asked - MISSING_FOR_S
        if asked - self._missing_since < MISSING_FOR_S:
            raise unavailable(self._place, "a broker does not know it", NOTHING_READ)
        return None

    def _awaited(self) -> Topic | None:
        """Return the topic, once brokers know it; None if they do not within `MISSING_FOR_S`, or it is interrupted."""
        until = time.monotonic() + MISSING_FOR_S
        now = self._questions.topic()
        if now is None and self._part_of is not None:
            self._part_of.await_all(until)
            now = self._questions.topic()
        while now is None and self._missing_since is None and time.monotonic() < until:
            if self._closing:
                raise unavailable(self._place, "the wait was interrupted", NOTHING_READ)
            time.sleep(LOOK_EVERY_S)
            now = self._questions.topic()
        return now

    def _difference(self, cluster: str, topic: str, now: Topic) -> str | None:
        if now.cluster != cluster:
            return f"{self._place.where} is in cluster {now.cluster}, but was read in cluster {cluster}"
        if now.id is not None and topic not in (_UNKNOWN, now.id):
            return f"{self._place.where} was recreated: its id is {now.id}, the topic that was read had {topic}"
        return None

    def _out_of_range(self, partition: int, on_lost: OnLost, offset: int) -> Read:
        """Return where to continue if the server has removed what was to be read, and the policy is to continue.

        Only what retention removed is known to be lost, with its first and last offset. If the server has less than
        was read, or another topic of the name, no policy helps.

        Raises:
            Damaged: the policy is to fail, or the server lost records that were read, or the topic is another one.
            Unavailable: the offset is there now.
        """
        self.topic = self._present()
        first = self._questions.offsets([partition], "first")[partition]
        end = self._questions.offsets([partition], "end")[partition]
        if first <= offset <= end:
            raise unavailable(self._place, f"it did not have offset {offset:,} a moment ago", NOTHING_READ)
        if offset < first and on_lost == "earliest":
            return Read(None, first, lost=True)
        where = self._where(partition, offset)
        not_done = "no record was skipped; the job is at its last checkpoint"
        if offset < first:
            raise Damaged(
                f"{self._place.where}: {lost_range(partition, offset, first)}; the partition now begins at offset "
                f"{first:,}",
                not_done=not_done,
                next_step='restore the records; or, to continue without them, hf.Kafka(..., on_lost="earliest") '
                "counts them as lost and reads on from the first offset that is left. To keep records longer, raise "
                "retention.ms and retention.bytes of the topic above the longest stop of the job",
                where=where,
            )
        raise Damaged(
            f"{self._place.where}: partition {partition} is to be read from offset {offset:,}, but ends at {end:,}: "
            f"the server has lost records that were read, offsets {end:,} to {offset - 1:,} ({offset - end:,})",
            not_done=not_done,
            next_step="restore the topic; or rewind to before the end that it has now: "
            f"holdfast rewind JOB.py --to-offset SOURCE:{self._number(partition)}:{end}",
            where=where,
        )
