"""A Kafka topic as the place of a job's changelog, and the sink that writes it: one transaction per epoch.

It is written by the target of every Kafka sink, with its tags, owners and fences; what differs is the content of a
transaction. The records name their tag, so a rewind has nothing to take back: it moves the tags, and readers leave
out what is not on their lineage.

Source: docs/decisions/0111-changelogs-in-kafka.md, 0076-kafka-sink.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import CHANGELOG, Tag, Writer
from holdfast.secrets import Secret
from holdfast.sinks.contract.changelogs import Changelog, ChangelogCompaction
from holdfast.sinks.contract.owners import Claim, Holding, Ownership
from holdfast.sinks.contract.sink import Repair, Repairs, Rewinding, Sink
from holdfast.sinks.contract.transactions import Transacts
from holdfast.sinks.kafka.changelog.compacting import RECORDS_MIN, CompactedTopic, KafkaCompaction
from holdfast.sinks.kafka.changelog.format import Encoder
from holdfast.sinks.kafka.changelog.layout import check_alone, check_layout, refused
from holdfast.sinks.kafka.changelog.reading import OpenKafkaChangelog, ReadableTopic
from holdfast.sinks.kafka.changelog.repair import plan_repair, repair
from holdfast.sinks.kafka.options import check_options, message_max_bytes
from holdfast.sinks.kafka.progress import Layout, Progress, layout_record, progress_topic
from holdfast.sinks.kafka.sink import KafkaSink, check_client, transactional_id
from holdfast.sinks.kafka.target import BrokerConnection, Content, KafkaTarget, Mark, Records
from holdfast.sinks.kafka.transactions import KafkaTransactions
from holdfast.sinks.log.changelog import LogChangelog
from holdfast.storage.kafka.place import KafkaPlace, Option
from holdfast.traits import SinkTraits

PARTITIONS_IN_MEMORY = 4
NOT_STARTED = "the job was not started, the topic was not changed"
NOT_DELIVERED = "the changes of the epoch were not delivered; they are safe in the job's root"


class Brokers:
    """How the topic is reached: by the client library, which is loaded at the first use."""

    def topic(self, place: KafkaPlace) -> CompactedTopic:
        """Return the topic for readers and compactions; no connection is made yet."""
        check_client()
        from holdfast.sinks.kafka.changelog.brokers import BrokerTopic

        return BrokerTopic(place)

    def connection(self, place: KafkaPlace, transactional_id: str) -> BrokerConnection:
        """Return the topic for a writer; no connection is made yet."""
        check_client()
        from holdfast.sinks.kafka.client import KafkaConnection

        return KafkaConnection(place, transactional_id)

    def prepare(self, place: KafkaPlace) -> None:
        """Create the topic and its progress topic if they are missing, else check that they fit."""
        check_client()
        from holdfast.sinks.kafka.changelog.preparing import prepare

        prepare(place)

    def token(self) -> str:
        """Return an id that nothing else has."""
        check_client()
        from holdfast.sinks.kafka.changelog.brokers import token

        return token()

    def probe(self, place: KafkaPlace) -> str:
        """Return what a start would find or create; refuse what it would refuse."""
        check_client()
        from holdfast.sinks.kafka.changelog.preparing import probe

        return probe(place)


@dataclass(frozen=True)
class KafkaChangelog(Changelog):
    """The changelog of a job in a topic; see changelogs.Changelog.

    Args:
        records_min: A topic with fewer records since its last compaction is not compacted.
    """

    kafka: KafkaPlace
    brokers: Brokers = field(default_factory=Brokers, compare=False)
    records_min: int = RECORDS_MIN

    @property
    def place(self) -> Mapping[str, str]:
        """Options are JSON; a secret among them is the place where it is."""
        place = {"kind": "kafka", "servers": self.kafka.servers, "topic": self.kafka.topic}
        given = {name: {"secret": v.reference} if isinstance(v, Secret) else v for name, v in self.kafka.options}
        return {**place, "options": json.dumps(given)} if given else place

    @property
    def commits_once(self) -> bool:
        """All writers would share one transactional id."""
        return True

    def sink(self, schema: pa.Schema, key: tuple[str, ...], key_groups: int) -> Sink:
        return KafkaTopicSink(self.kafka, key, key_groups, self.brokers)

    def open(self, job_uuid: str) -> OpenKafkaChangelog:
        return OpenKafkaChangelog(where(self.kafka), job_uuid, self.brokers.topic(self.kafka))

    def in_memory(self, name: str) -> Changelog:
        """A log, since no broker runs in this process."""
        return LogChangelog(f"memory://{name}", PARTITIONS_IN_MEMORY, grace_s=0.0)

    def compaction(self, job_uuid: str) -> ChangelogCompaction:
        return KafkaCompaction(
            where(self.kafka),
            job_uuid,
            lambda: self.brokers.topic(self.kafka),
            lambda: self.brokers.connection(self.kafka, transactional_id(job_uuid, CHANGELOG)),
            self.brokers.token,
            self.records_min,
        )


@dataclass(frozen=True)
class KafkaTopicSink(Repairs, Ownership, Transacts, Sink):
    """The sink of the records; see contract.Sink."""

    place: KafkaPlace
    key: tuple[str, ...] | None
    key_groups: int
    brokers: Brokers = field(default_factory=Brokers, compare=False)

    @property
    def where(self) -> str:
        return where(self.place)

    @property
    def traits(self) -> SinkTraits:
        return SinkTraits(
            kind="Kafka",
            local_paths=(),
            place={"servers": self.place.servers, "topic": self.place.topic},
            commits_once=True,
            secrets=self.place.secrets,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        check_options(self.place)
        message_max_bytes(self.place)
        KafkaSink(self.place).check_name()

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check(schema, upsert_key)
        self.brokers.prepare(self.place)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        self.check(schema, upsert_key)
        return self.brokers.probe(self.place)

    def accept(self, batch: pa.RecordBatch) -> None:
        """A row of any size can be written, as several records."""

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        """A topic with records that no delivery wrote is refused too."""
        with closing(self.brokers.topic(self.place)) as topic:
            progress = topic.progress()
            check_alone(self.where, progress, job_uuid, NOT_STARTED)
            if progress.layout is not None:
                check_layout(self.where, progress.layout, topic.layout())
            elif topic.holds_records():
                raise self._unknown() if job_uuid is None else self._forgotten()

    def _unknown(self) -> ConfigError:
        return refused(self.where, "holds records that no job delivered", NOT_STARTED)

    def _forgotten(self) -> ConfigError:
        beside = progress_topic(self.place.topic)
        return ConfigError(
            f"{self.where}: holds records, but its progress topic {beside!r} names no delivery",
            not_done=NOT_STARTED,
            next_step=f"if this job has delivered to it, {beside!r} was deleted or emptied: restore it, since without "
            "it the state in the topic cannot be read. Else name another topic as the changelog",
        )

    def holding(self, job_uuid: str, name: str) -> Holding:
        with closing(self.brokers.topic(self.place)) as topic:
            progress = topic.progress()
        return Holding(progress.held(job_uuid, name), progress.newest(job_uuid, name))

    def transactions(self, job_uuid: str, name: str) -> KafkaTransactions:
        check_client()
        return KafkaTransactions(self.place, transactional_id(job_uuid, name))

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> KafkaTarget:
        connection = self.brokers.connection(self.place, transactional_id(job_uuid, writer.sink))
        return KafkaTarget(self.where, connection, self._content(job_uuid), job_uuid, writer, claim)

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        with closing(self.brokers.topic(self.place)) as topic:
            return plan_repair(self.where, topic.progress(), rewinding)

    def repair(self, rewinding: Rewinding, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Repair:
        connection = self.brokers.connection(self.place, transactional_id(rewinding.job_uuid, rewinding.sink))
        return repair(self.where, connection, self._content(rewinding.job_uuid), rewinding)

    def _content(self, job_uuid: str) -> ChangelogContent:
        look = lambda: self.brokers.topic(self.place)
        return ChangelogContent(self.where, job_uuid, self.key_groups, message_max_bytes(self.place), look)


class ChangelogContent(Content):
    """See target.Content: the records of a changelog, in a topic that is still the one of the first delivery.

    Args:
        look: Opens the topic, to see what it is.
    """

    def __init__(
        self, where: str, job_uuid: str, key_groups: int, record_max: int, look: Callable[[], ReadableTopic]
    ) -> None:
        self._where, self._job_uuid, self._key_groups, self._record_max = where, job_uuid, key_groups, record_max
        self._look = look
        self._now: Layout | None = None
        self._partitions = 0

    def marks(self, progress: Progress) -> Iterable[Mark]:
        """Another job may have begun to deliver since this one started: neither had a tag then."""
        check_alone(self._where, progress, self._job_uuid, NOT_DELIVERED)
        if self._now is None:
            with closing(self._look()) as topic:
                self._now = topic.layout()
        if progress.layout is None:
            self._partitions = self._now.partitions
            return [layout_record(self._now)]
        check_layout(self._where, progress.layout, self._now)
        self._partitions = progress.layout.partitions
        return []

    def records(self, tag: Tag, before: Tag | None, batches: Sequence[pa.RecordBatch]) -> Iterable[Records]:
        assert self._partitions, "marks come first"
        encoder = Encoder(self._where, self._job_uuid, self._partitions, self._key_groups, self._record_max)
        return encoder.records(tag, before, batches)

    def session(self) -> None:
        """A topic is recreated only with an error that ends the session."""
        self._now = None


def options_in(place: Mapping[str, str]) -> dict[str, Option]:
    """Return the options that the place of a changelog names."""
    given = json.loads(place.get("options", "{}"))
    return {name: Secret(v["secret"]) if isinstance(v, dict) else v for name, v in given.items()}


def where(place: KafkaPlace) -> str:
    """Return how messages name the changelog."""
    return f"changelog in {place.where}"
