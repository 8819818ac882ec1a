"""Topics by a pattern as one process reads them: an `OpenKafka` for each, and the catalogue that numbers partitions.

Invariants
    - A partition is read by its number in the catalogue, of the topic with the id that the catalogue has.
    - Only a connection of a run's driver appends to the catalogue: others are made of a source that does not list, or
      are never asked for their partitions.
    - A number is in the catalogue before `partitions` returns it.
    - A partition has ended only if the catalogue says so of its topic, and has a topic that has not: a pattern has no
      end, so at least one partition has none.

Source: runtime/plan/source.py; docs/decisions/0095-topics-by-pattern.md, 0092-topics-that-end.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TypeVar

import pyarrow as pa

from holdfast.errors import Damaged, Unavailable
from holdfast.runtime.plan.ahead import Ahead, DirectReader, Read
from holdfast.runtime.plan.source import Kept, OpenSource, PartitionReader
from holdfast.runtime.sources.kafka.bell import Bell
from holdfast.runtime.sources.kafka.part_of import PartOf
from holdfast.runtime.sources.kafka.reading import OpenKafka, TopicGone
from holdfast.runtime.sources.kafka.topics.catalogue import Added, Catalogue, Listed, Place
from holdfast.runtime.sources.kafka.topics.matching import added, matches
from holdfast.storage.kafka.errors import unavailable
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Questions, Topic

log = logging.getLogger("holdfast.kafka")
KIND = "kafka-topics"
UNKNOWN = "-"
"""In an identity: the brokers have no ids of topics."""
_NOT_READ = "no record was read; the job is at its last checkpoint"
_NOWHERE = 1 << 62
"""An offset beyond all others."""
V = TypeVar("V")


class OpenTopics(OpenSource):
    """Topics that are open. It may be used again after `close`, which drops connections only.

    Args:
        place: Where they are, and their pattern for messages.
        open_topic: Opens one, without a request.
        lists: Whether `partitions` lists the topics.
        may_end: Whether the job goes on when a topic no longer exists.
    """

    def __init__(
        self,
        place: KafkaPlace,
        pattern: re.Pattern[str],
        catalogue: Catalogue,
        open_topic: Callable[[str, PartOf], OpenKafka],
        *,
        lists: bool,
        may_end: bool,
    ) -> None:
        self._place, self._pattern, self._catalogue, self._open_topic = place, pattern, catalogue, open_topic
        self._lists, self._may_end = lists, may_end
        self._closing = False
        self._questions = Questions(place, lambda: self._closing)
        self._lock, self._waiting = Lock(), Lock()
        self._has_waited = False
        """Whether topics that no broker knew were waited for."""
        self._topics: dict[tuple[str, str | None], OpenKafka] = {}
        self._bell: Bell | None = None
        self._catalogue.refresh()

    def identity(self, partition: int, offset: int) -> str:
        """Return what the number names, and the ids of cluster and topic: within one topic, records never change."""
        at = self._at(partition)
        topic = self._catalogue.id(partition) or UNKNOWN
        return f"{KIND} {partition} {self._catalogue.head.cluster} {topic} {at.partition} {at.topic}"

    def changed(self, identity: str) -> str | None:
        kind, *rest = identity.split(" ")
        if kind != KIND or len(rest) != 5:
            return f"it is {self._place.where}, but a {kind} was read"
        number, cluster, topic, partition, name = int(rest[0]), rest[1], rest[2], int(rest[3]), rest[4]
        if self._catalogue.place(number) != Place(name, partition):
            return (
                f"the list of topics in the job's folder does not have partition {partition} of topic {name!r}, which "
                f"was read, as partition {number}"
            )
        is_known = (cluster, topic) == (self._catalogue.head.cluster, self._catalogue.id(number) or UNKNOWN)
        if is_known and self._may_end and self._is_over(number):
            return None
        return self._opened(number).changed(f"kafka {cluster} {topic}")

    def partitions(self) -> list[int]:
        """Return the numbers of all partitions. The driver's connection lists new topics and partitions."""
        if self._lists:
            self.list_topics()
        else:
            self._catalogue.refresh()
        return list(range(len(self._catalogue)))

    def list_topics(self) -> int:
        """Append what the catalogue lacks; return how many partitions it has.

        Raises:
            Damaged: a topic of the catalogue was recreated, or no longer exists, and the job does not go on without it.
            NotAdmitted, Unavailable: the topics cannot be listed now.
        """
        cluster, names = self._questions.names("no topics were added")
        if cluster != (read := self._catalogue.head.cluster):
            raise Damaged(
                f"{self._place.where} are in cluster {cluster}, but were read in cluster {read}",
                not_done=_NOT_READ,
                next_step="give the servers of the cluster that was read; or, to read the other one from the first "
                "record on, give the job another name",
            )
        matching_names = {name for name in names if matches(self._pattern, name)}
        while True:
            self._catalogue.refresh()
            listed_topics = self._catalogue.topics
            present = {name: self._present(name, each.id) for name, each in listed_topics.items()}
            ended_names = sorted(name for name, topic in present.items() if topic is None)
            new = {
                name: self._described(name)
                for name in matching_names - present.keys() | matching_names & set(ended_names)
            }
            found = {name: topic for name, topic in (present | new).items() if topic is not None}
            further = added({name: each for name, each in listed_topics.items() if name not in ended_names}, found)
            if not further and not ended_names:
                return len(self._catalogue)
            if self._catalogue.append(further, ended_names):
                self._drop(listed_topics, ended_names)
                self._tell(further, ended_names)
                return len(self._catalogue)
            # Another driver's list may have what was new here, under another id.

    def end_offsets(self) -> dict[int, int]:
        """Return the last stable offsets: no transaction that is open lies before them. A deleted topic has 0."""
        self._catalogue.refresh()  # the driver may have asked another connection for the partitions
        known = range(len(self._catalogue))
        return dict.fromkeys(known, 0) | self._of_all(lambda opened: opened.end_offsets())

    def kept(self, within_s: float) -> dict[int, Kept]:
        self._catalogue.refresh()
        retention = self._of_all(lambda opened: opened.kept(within_s))
        places = {number: self._at(number) for number in retention}
        return {
            number: replace(each, called=f"{places[number].topic} {places[number].partition}")
            for number, each in retention.items()
        }

    def retention_start(self, partition: int) -> int:
        at = self._at(partition)
        return 0 if self._is_over(partition) else self._opened(partition).retention_start(at.partition)

    def whole_from(self, partition: int) -> int:
        at = self._at(partition)
        return _NOWHERE if self._is_over(partition) else self._opened(partition).whole_from(at.partition)

    def gone(self, partition: int) -> str | None:
        return f"topic {self._at(partition).topic!r} no longer exists" if self._is_over(partition) else None

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        at = self._at(partition)
        return self._opened(partition).read(at.partition, offset, max_bytes)

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        """Brokers are not asked for a topic that has ended."""
        at = self._at(partition)
        if self._catalogue.is_over(partition):
            return DirectReader(lambda offset, _bytes_max: Read(None, offset), offset)
        return self._opened(partition).reader(at.partition, offset, ahead)

    def ended(self, partition: int, offset: int) -> bool:
        """A topic ends when it no longer exists. Not the last one: more may appear, so the source has no end."""
        return self._catalogue.is_over(partition) and not self._catalogue.all_ended

    def close(self) -> None:
        self._closing = True  # a lane that waits gives up soon
        with self._lock:
            opened = list(self._topics.values())
        for each in opened:
            each.close()
        self._questions.close()
        self._closing = False

    def _at(self, number: int) -> Place:
        at = self._catalogue.place(number)
        if at is None:
            raise Unavailable(
                f"{self._place.where}: the list of topics in the job's folder has no partition {number} yet",
                not_done=_NOT_READ,
                next_step="check that the job's folder is as the driver wrote it",
            )
        return at

    def _opened(self, number: int) -> OpenKafka:
        """Return the topic of a number that the catalogue has."""
        return self._opened_as(self._at(number).topic, self._catalogue.id(number))

    def _opened_as(self, name: str, id: str | None) -> OpenKafka:
        with self._lock:
            open_topic = self._topics.get((name, id))
            if open_topic is None:
                numbers = self._catalogue.listed(name, id).numbers
                part_of = PartOf(
                    Topic(self._catalogue.head.cluster, id, tuple(range(len(numbers))), frozenset(), None),
                    lambda partition: self._catalogue.listed(name, id).numbers[partition],
                    lambda: len(self._catalogue),
                    self._shared_bell,
                    self._await_all,
                    (lambda: self._has_ended(name, id)) if self._may_end else None,
                )
                open_topic = self._topics[name, id] = self._open_topic(name, part_of)
            return open_topic

    def _shared_bell(self) -> Bell:
        """Return the bell that the topics share: their readers are one source, for which a worker waits."""
        if self._bell is None:
            self._bell = Bell()
        return self._bell

    def _await_all(self, until: float) -> None:
        """A job may have lost many topics since it ran last, and would wait for one by one."""
        with self._waiting:
            if self._has_waited:
                return
            known = self._catalogue.topics
            for name in self._questions.missing(known.keys(), until, _NOT_READ):
                self._opened_as(name, known[name].id).was_missing()
            self._has_waited = True

    def _has_ended(self, name: str, id: str | None) -> bool:
        """Return whether the catalogue says by now that a topic has ended."""
        self._catalogue.refresh()
        return self._catalogue.has_ended(name, id)

    def _is_over(self, number: int) -> bool:
        """Return whether the topic of a number was deleted, noted or not, and that is no error."""
        if not self._may_end or self._catalogue.is_over(number):
            return self._catalogue.is_over(number)
        try:
            self._opened(number).partitions()
        except TopicGone:
            return True
        return False

    def _of_all(self, ask: Callable[[OpenKafka], dict[int, V]]) -> dict[int, V]:
        """Return what is asked of every topic that is known here, by the numbers of partitions.

        Partitions without a number yet are left out, and so are deleted topics, if the job goes on without them.
        """
        results = dict[int, V]()
        for name, topic in self._catalogue.topics.items():
            try:
                answers = ask(self._opened_as(name, topic.id))
            except TopicGone:
                if not self._may_end:
                    raise
                answers = {}
            results |= {number: answers[each] for each, number in enumerate(topic.numbers) if each in answers}
        return results

    def _present(self, name: str, id: str | None) -> Topic | None:
        """Return a topic of the catalogue as it is now; None if it was deleted, and that is no error.

        Raises:
            Damaged: it was deleted, or another one has its name.
        """
        open_topic = self._opened_as(name, id)
        try:
            open_topic.partitions()
        except TopicGone:
            if not self._may_end:
                raise
            return None
        return self._whole(name, open_topic.topic)

    def _described(self, name: str) -> Topic | None:
        """Return a topic that is new; None if it was deleted meanwhile.

        Raises:
            Damaged: it has ended, as far as the job knows, and was restored.
        """
        questions = Questions(replace(self._place, topic=name, many=False))
        try:
            topic = questions.topic("the topic was not added")
        finally:
            questions.close()
        if topic is not None and self._catalogue.has_ended(name, topic.id):
            raise Damaged(
                f"topic {name!r} no longer existed, so the job took it for ended, and exists again with the same id",
                not_done=_NOT_READ,
                next_step="rename it or delete it; or, to read it from the first record, give the job another name",
            )
        return None if topic is None else self._whole(name, topic)

    def _drop(self, known: Mapping[str, Listed], ended: Sequence[str]) -> None:
        """Close the connections of topics that have ended: there may be ever more of them."""
        for name in ended:
            with self._lock:
                opened = self._topics.pop((name, known[name].id))
            opened.close()

    def _tell(self, further: Sequence[Added], ended: Sequence[str]) -> None:
        """Say what a listing has changed."""
        for name in ended:
            log.warning("topic %s no longer exists: it has ended, with what was not read of it", name)
        for each in further:
            numbers = self._catalogue.listed(each.topic, each.id).numbers[-each.partitions :]
            log.info("topic %s has the numbers %d to %d", each.topic, numbers[0], numbers[-1])

    def _whole(self, name: str, found: Topic) -> Topic:
        """Return the topic; a list of its partitions with gaps is Unavailable."""
        if found.partitions != tuple(range(len(found.partitions))):
            place = replace(self._place, topic=name, many=False)
            raise unavailable(place, "a broker does not know all of its partitions yet", "the topic was not added")
        return found
