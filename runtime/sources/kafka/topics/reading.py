"""Topics by a pattern as one process reads them: an `OpenKafka` for each, and the catalogue that numbers partitions.

Invariants
    - A partition is read by its number in the catalogue, of the topic with the id that the catalogue has.
    - Only a connection of a run's driver appends to the catalogue: others are made of a source that does not list, or
      are never asked for their partitions.
    - A number is in the catalogue before `partitions` returns it.

Source: runtime/plan/source.py; docs/design/0095-topics-by-pattern.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import TypeVar

import pyarrow as pa

from holdfast.errors import Damaged, Unavailable
from holdfast.runtime.plan.ahead import Ahead
from holdfast.runtime.plan.source import Kept, PartitionReader
from holdfast.runtime.sources.kafka.reading import OpenKafka, PartOf
from holdfast.runtime.sources.kafka.topics.catalogue import Catalogue, Place
from holdfast.runtime.sources.kafka.topics.matching import added, matches
from holdfast.storage.kafka.errors import unavailable
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Questions, Topic

log = logging.getLogger("holdfast.kafka")
KIND = "kafka-topics"
UNKNOWN = "-"
"""In an identity: the brokers have no ids of topics."""
_NOT_READ = "no record was read; the job is at its last checkpoint"
V = TypeVar("V")


class OpenTopics:
    """Topics that are open. It may be used again after `close`, which drops connections only.

    Args:
        place: Where they are, and their pattern for messages.
        open_topic: Opens one, without a request.
        lists: Whether `partitions` lists the topics.
    """

    def __init__(
        self,
        place: KafkaPlace,
        pattern: re.Pattern[str],
        catalogue: Catalogue,
        open_topic: Callable[[str, PartOf], OpenKafka],
        *,
        lists: bool,
    ) -> None:
        self._place, self._pattern, self._catalogue, self._open_topic = place, pattern, catalogue, open_topic
        self._lists, self._closing = lists, False
        self._questions = Questions(place)
        self._lock = Lock()
        self._topics: dict[str, OpenKafka] = {}
        self._catalogue.refresh()

    def identity(self, partition: int, offset: int) -> str:
        """Return what the number names, and the ids of cluster and topic: within one topic, records never change."""
        at = self._at(partition)
        topic = self._catalogue.listed(at.topic).id or UNKNOWN
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
        return self._opened(name).changed(f"kafka {cluster} {topic}")

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
            Damaged: a topic of the catalogue was recreated, or no longer exists.
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
        found = dict[str, Topic]()
        while True:
            self._catalogue.refresh()
            known = self._catalogue.topics
            for name in {*known, *(name for name in names if matches(self._pattern, name))} - found.keys():
                topic = self._present(name) if name in known else self._described(name)
                if topic is not None:
                    found[name] = topic
            further = added(known, found)
            if not further:
                return len(self._catalogue)
            if self._catalogue.append(further):
                for each in further:
                    numbers = self._catalogue.listed(each.topic).numbers[-each.partitions :]
                    log.info("topic %s has the numbers %d to %d", each.topic, numbers[0], numbers[-1])
                return len(self._catalogue)
            found.clear()  # another driver's list may have what was new here, under another id

    def end_offsets(self) -> dict[int, int]:
        """Return the last stable offsets: no transaction that is open lies before them."""
        return self._of_all(lambda opened: opened.end_offsets())

    def kept(self, within_s: float) -> dict[int, Kept]:
        """See RemovingSource.kept."""
        kept = self._of_all(lambda opened: opened.kept(within_s))
        places = {number: self._at(number) for number in kept}
        return {
            number: replace(each, called=f"{places[number].topic} {places[number].partition}")
            for number, each in kept.items()
        }

    def retention_start(self, partition: int) -> int:
        at = self._at(partition)
        return self._opened(at.topic).retention_start(at.partition)

    def whole_from(self, partition: int) -> int:
        """See SparseSource.whole_from."""
        at = self._at(partition)
        return self._opened(at.topic).whole_from(at.partition)

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        at = self._at(partition)
        return self._opened(at.topic).read(at.partition, offset, max_bytes)

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        """See OpenSource.reader."""
        at = self._at(partition)
        return self._opened(at.topic).reader(at.partition, offset, ahead)

    def ended(self, partition: int, offset: int) -> bool:
        """A topic has no end, and more may appear."""
        return False

    def close(self) -> None:
        with self._lock:
            opened = list(self._topics.values())
        for each in opened:
            each.close()
        self._questions.close()

    def _at(self, number: int) -> Place:
        at = self._catalogue.place(number)
        if at is None:
            raise Unavailable(
                f"{self._place.where}: the list of topics in the job's folder has no partition {number} yet",
                not_done=_NOT_READ,
                next_step="check that the job's folder is as the driver wrote it",
            )
        return at

    def _opened(self, name: str) -> OpenKafka:
        with self._lock:
            opened = self._topics.get(name)
            if opened is None:
                listed = self._catalogue.listed(name)
                partitions = tuple(range(len(listed.numbers)))
                known = Topic(self._catalogue.head.cluster, listed.id, partitions, frozenset(), None)
                part_of = PartOf(
                    known,
                    lambda partition: self._catalogue.listed(name).numbers[partition],
                    lambda: len(self._catalogue),
                )
                opened = self._topics[name] = self._open_topic(name, part_of)
            return opened

    def _of_all(self, ask: Callable[[OpenKafka], dict[int, V]]) -> dict[int, V]:
        """Return what is asked of every topic, by the numbers of partitions; those without one yet are left out."""
        self._catalogue.refresh()  # the driver may have asked another connection for the partitions
        found = dict[int, V]()
        for name, listed in self._catalogue.topics.items():
            answers = ask(self._opened(name))
            found |= {number: answers[each] for each, number in enumerate(listed.numbers) if each in answers}
        return found

    def _present(self, name: str) -> Topic:
        """Return a topic of the catalogue as it is now. Raises Damaged if it is another one, or gone."""
        opened = self._opened(name)
        opened.partitions()
        return self._whole(name, opened.topic)

    def _described(self, name: str) -> Topic | None:
        """Return a topic that is new; None if it is gone again."""
        questions = Questions(replace(self._place, topic=name, many=False))
        try:
            found = questions.topic("the topic was not added")
        finally:
            questions.close()
        return None if found is None else self._whole(name, found)

    def _whole(self, name: str, found: Topic) -> Topic:
        """Return the topic; a list of its partitions with gaps is Unavailable."""
        if found.partitions != tuple(range(len(found.partitions))):
            place = replace(self._place, topic=name, many=False)
            raise unavailable(place, "a broker does not know all of its partitions yet", "the topic was not added")
        return found
