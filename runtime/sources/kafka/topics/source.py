"""Topics by a pattern as a source: what is sent to the workers, and how a job gets its catalogue.

Source: runtime/plan/source.py; docs/decisions/0095-topics-by-pattern.md.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import ConfigError, NotAdmitted
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.source import Source
from holdfast.runtime.sources.kafka.group import GroupOffsets
from holdfast.runtime.sources.kafka.messages import TOPIC
from holdfast.runtime.sources.kafka.part_of import PartOf
from holdfast.runtime.sources.kafka.reading import OpenKafka
from holdfast.runtime.sources.kafka.source import KafkaSource
from holdfast.runtime.sources.kafka.topics.catalogue import Catalogue, Place, TopicCatalogueHead, read_head
from holdfast.runtime.sources.kafka.topics.matching import left_out, matches
from holdfast.runtime.sources.kafka.topics.reading import OpenTopics
from holdfast.runtime.sources.objects import HEAD_PATH, remove, write_head
from holdfast.storage.kafka.place import is_one_cluster
from holdfast.storage.kafka.questions import Questions
from holdfast.storage.objects import open_objects
from holdfast.traits import SourceTraits, local

_NOT_STARTED = "the job was not started"


@dataclass(frozen=True)
class TopicsSource(Source):
    """Topics to list and read.

    Args:
        each: How each is read. Its place stands for all of them.
        folder: Where the catalogue is; None until the job's folder is known.
        head: The catalogue that is read; None: the one that the folder names.
        lists: Whether a connection lists topics when it is asked for its partitions: those of a run do.
    """

    each: KafkaSource
    pattern: re.Pattern[str]
    folder: str | None = None
    head: TopicCatalogueHead | None = None
    lists: bool = False

    def __repr__(self) -> str:
        return f"Kafka({self.each.place.servers!r}, {self.pattern!r})"

    @property
    def schema(self) -> pa.Schema:
        return self.each.schema.append(TOPIC) if self.each.meta else self.each.schema

    @property
    def row_type(self) -> type | None:
        return self.each.row_type

    @property
    def where(self) -> str:
        """How messages name it."""
        return self.each.where

    @property
    def traits(self) -> SourceTraits:
        """Two topics may have the same key, so none chooses a partition of the source."""
        return replace(
            self.each.traits,
            local_paths=() if self.folder is None else local(self.folder),
            place={"servers": self.each.place.servers, "topics": self.pattern.pattern},
            partitioned_by=(),
            finds=True,
            copied=True,
            copies="list of topics",
            loses_partitions=self.may_end,
        )

    def check(self) -> None:
        """Refuse a topic that the user may not read, a registry that is away, and a pattern that no topic matches.

        A job that has listed topics before goes on without any: they may have ended, and others may appear.
        """
        if self.each.coded is not None:
            self.each.coded.opened(self.each.values).check()
        questions = Questions(self.each.place)
        try:
            _, names = questions.names(_NOT_STARTED)
        except NotAdmitted as error:  # while a job runs it is a reason to wait, before that a mistake
            raise ConfigError(error.what, not_done=error.not_done, next_step=error.next_step) from error
        finally:
            questions.close()
        matching_names = [name for name in names if matches(self.pattern, name)]
        if not matching_names and not self._has_listed():
            raise ConfigError(
                f"{self.where}: no topic that the job's user may see matches the pattern",
                not_done=_NOT_STARTED,
                next_step="correct the pattern, which has to match the whole name; create a topic; or grant the user "
                "DESCRIBE and READ",
            )
        for name in matching_names:
            self._one(name).check()

    def _has_listed(self) -> bool:
        return self.folder is not None and read_head(open_objects(self.folder, writable=False)) is not None

    def would_read(self, target: Mapping[str, str]) -> bool:
        topic, servers = target.get("topic"), target.get("servers", "")
        return topic is not None and is_one_cluster(servers, self.each.place.servers) and matches(self.pattern, topic)

    @property
    def publishes(self) -> GroupOffsets | None:
        group = self.each.group
        return None if group is None else GroupOffsets(self.each.place, group, _Names(self))

    def in_folder(self, folder: str) -> TopicsSource:
        return replace(self, folder=folder)

    def copied(self, *, again: bool) -> TopicsSource:
        """Copy the list of topics."""
        store = open_objects(self._folder)
        before = read_head(store)
        if before is not None and not again:
            self._check_fits(store, before)
            # No start that makes a catalogue can be under way: the job has a checkpoint.
            remove(store, lambda path: path != HEAD_PATH and not path.startswith(f"{before.folder}/"))
            return replace(self, head=before, lists=True)
        source = replace(self, head=self._new_head(), lists=True)
        source.list_first()
        assert source.head is not None
        write_head(store, source.head)
        if before is not None:
            remove(store, lambda path: path.startswith(f"{before.folder}/"))
        return source

    def list_first(self) -> None:
        """List the topics for the first time. Raises as OpenTopics.list_topics."""
        open_topics = self.open()
        try:
            open_topics.list_topics()
        finally:
            open_topics.close()

    def open(self) -> OpenTopics:
        read = self.each.place, self.pattern, self.catalogue(), self._open_one
        return OpenTopics(*read, lists=self.lists, may_end=self.may_end)

    @property
    def may_end(self) -> bool:
        """Whether the job goes on when a topic no longer exists, with what was not read of it lost."""
        return self.each.on_lost == "earliest"

    def catalogue(self) -> Catalogue:
        """Return the catalogue, of which nothing was read yet. Raises ConfigError if there is none."""
        store = open_objects(self._folder, writable=self.lists)
        head = self.head or read_head(store)
        if head is None:
            raise ConfigError(
                f"{self.where} were not listed yet",
                not_done="the source was not opened",
                next_step="run the job: its first start lists them",
            )
        return Catalogue(store, head)

    @property
    def _folder(self) -> str:
        assert self.folder is not None, "the job's folder is known when a job starts"
        return self.folder

    def _one(self, topic: str) -> KafkaSource:
        return replace(self.each, place=replace(self.each.place, topic=topic, many=False))

    def _open_one(self, topic: str, part_of: PartOf) -> OpenKafka:
        return self._one(topic).open(part_of)

    def _new_head(self) -> TopicCatalogueHead:
        questions = Questions(self.each.place)
        try:
            cluster, _ = questions.names(_NOT_STARTED)
        finally:
            questions.close()
        return TopicCatalogueHead(folder=f"topics-{uuid.uuid4().hex[:12]}", cluster=cluster)

    def _check_fits(self, store: ObjectStore, head: TopicCatalogueHead) -> None:
        """Refuse a pattern that leaves out a topic of the catalogue: the positions in it cannot disappear."""
        catalogue = Catalogue(store, head)
        catalogue.refresh()
        if gone := left_out(self.pattern, catalogue.topics):
            raise ConfigError(
                f"hf.Kafka: the job reads topic {gone[0]!r}, which the pattern {self.pattern.pattern!r} does not match",
                not_done=_NOT_STARTED,
                next_step="let the pattern match all topics that the job has read, and filter by kafka_topic of "
                "meta=True; or give the job another name",
            )


class _Names:
    """Topics and partitions of numbers, for the offsets of a group; the catalogue is opened when it is used first."""

    def __init__(self, source: TopicsSource) -> None:
        self._source = source
        self._catalogue: Catalogue | None = None

    def __call__(self, offsets: Mapping[int, int]) -> list[tuple[str, int, int]]:
        """See GroupOffsets: topics that have ended have no offsets any more."""
        if self._catalogue is None:
            self._catalogue = self._source.catalogue()
        if self._source.may_end:
            self._catalogue.refresh()
        return [
            (*self._named(self._catalogue, number), offset)
            for number, offset in sorted(offsets.items())
            if not self._catalogue.is_over(number)
        ]

    def _named(self, catalogue: Catalogue, number: int) -> Place:
        place = catalogue.place(number)
        assert place is not None, "a checkpoint has numbers of the catalogue only"
        return place
