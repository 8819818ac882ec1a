"""A Kafka topic as a sink: what `hf.Kafka` gives to a stream.

Each epoch becomes one transaction, after its checkpoint (target.py). confluent_kafka is loaded at the first connection.

Source: API.md (sinks); docs/decisions/0076-kafka-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.model import Writer
from holdfast.sinks.contract.owners import Claim, Holding, Ownership
from holdfast.sinks.contract.sink import Sink, check_key
from holdfast.sinks.contract.target import Fault, no_fault
from holdfast.sinks.contract.transactions import Transacts
from holdfast.sinks.kafka.encoding import Encoding, JsonValues, Values
from holdfast.sinks.kafka.enrolled import Enrolled, Header
from holdfast.sinks.kafka.options import check_options, message_max_bytes
from holdfast.sinks.kafka.progress import NAME_MAX, Progress, progress_topic
from holdfast.sinks.kafka.target import TOPIC_REPLACED, EachRow, KafkaTarget, Records, check_rows_fit
from holdfast.sinks.kafka.transactions import KafkaTransactions
from holdfast.storage.kafka.errors import no_client
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.storage.kafka.questions import Questions
from holdfast.traits import SinkTraits


@dataclass(frozen=True)
class KafkaSink(Ownership, Transacts, Sink):
    """A topic as users configure it; see contract.Sink.

    Args:
        place: The topic.
        values: The form of values.
        key: The columns of the records' key. For a stream that replaces rows, the columns by which it does.
        expected: The columns that the user says the values have; None: those of the stream.
        enrolled: The schema of the values in a registry; None: values name none.
    """

    place: KafkaPlace
    values: Values = JsonValues()
    key: tuple[str, ...] | None = None
    expected: pa.Schema | None = None
    enrolled: Enrolled | None = None

    def __repr__(self) -> str:
        return f"Kafka({self.place.servers!r}, {self.place.topic!r})"

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self.place.where

    @property
    def traits(self) -> SinkTraits:
        """Its key replaces nothing: every record is kept, and none can be taken back."""
        return SinkTraits(
            kind="Kafka",
            local_paths=(),
            place={"servers": self.place.servers, "topic": self.place.topic},
            commits_once=True,
            secrets=(*self.place.secrets, *(() if self.enrolled is None else self.enrolled.registry.secrets)),
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check_rows(schema, upsert_key)
        self.check_name()

    def check_name(self) -> None:
        """Refuse a topic whose progress topic cannot be named. Raises ConfigError."""
        if len(progress_topic(self.place.topic)) > NAME_MAX:
            raise ConfigError(
                f"{self.where}: the name of its progress topic, {progress_topic(self.place.topic)}, is too long",
                not_done="the job was not planned",
                next_step=f"choose a topic name of at most {NAME_MAX - len(progress_topic(''))} characters",
            )

    def check_rows(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Refuse a stream whose rows the topic cannot take. Raises ConfigError."""
        check_options(self.place)
        self._encoding()
        check_key(self.where, schema, upsert_key, self.key)
        if self.expected is not None and (differs := difference(self.expected, schema)):
            raise ConfigError(
                f"{self.where}: the stream does not have the columns given to hf.Kafka: {differs}",
                not_done="the job was not planned",
                next_step="select these columns before the sink, or correct the schema",
            )
        self.values.check(self.where, schema, self.key or ())

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check(schema, upsert_key)
        self.prepare_rows(upsert_key, tagged=True)

    def prepare_rows(self, upsert_key: tuple[str, ...] | None, *, tagged: bool) -> None:
        """Prepare the topic and the schema of values.

        Args:
            tagged: Deliveries have tags, so there is a progress topic.
        """
        check_client()
        self.values.check_library()
        if self.enrolled is not None:
            self.enrolled.prepare()
        from holdfast.sinks.kafka.topics import prepare

        prepare(self.place, keyed=self.key is not None, replaces=upsert_key is not None, tagged=tagged)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        self.check(schema, upsert_key)
        return self.probe_rows(tagged=True)

    def probe_rows(self, *, tagged: bool) -> str:
        """Return what `prepare_rows` would find; refuse what it would refuse."""
        check_client()
        self.values.check_library()
        if self.enrolled is not None:
            self.enrolled.probe()
        from holdfast.sinks.kafka.topics import probe

        return probe(self.place, keyed=self.key is not None, tagged=tagged)

    def accept(self, batch: pa.RecordBatch) -> None:
        self._encoding().accept(batch)

    def check_owner(self, job_uuid: str | None, name: str) -> None:
        progress = self._progress()
        check_rows_fit(self.where, progress, "the job was not started, the topic was not changed")
        for owner, tag in progress.others(job_uuid, name):
            raise ConfigError(
                f"{self.where}: holds output of a sink {name!r} of another job, {owner}, up to epoch {tag.epoch} of "
                f"timeline {tag.timeline}",
                not_done="the job was not started, the topic was not changed",
                next_step="if that job was deleted and recreated, its records would come twice: name another topic. If "
                "both jobs are to write here, give this sink another name",
            )

    def holding(self, job_uuid: str, name: str) -> Holding:
        progress = self._progress()
        topic_id, replacement = progress.topic_of(job_uuid, name), None
        if topic_id is not None:
            with closing(Questions(self.place)) as questions:
                found = questions.topic("the job was not started")
            replacement = TOPIC_REPLACED if found is not None and found.id not in (None, topic_id) else None
        return Holding(progress.held(job_uuid, name), progress.newest(job_uuid, name), taken_back=replacement)

    def transactions(self, job_uuid: str, name: str) -> KafkaTransactions:
        check_client()
        return KafkaTransactions(self.place, transactional_id(job_uuid, name))

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> KafkaTarget:
        return self.opened(job_uuid, writer, claim)

    def opened(self, job_uuid: str, writer: Writer, claim: Claim | None = None, fault: Fault = no_fault) -> KafkaTarget:
        """Return a target that calls `fault` at every point of a delivery."""
        check_client()
        from holdfast.sinks.kafka.client import KafkaConnection

        connection = KafkaConnection(self.place, transactional_id(job_uuid, writer.sink))
        return KafkaTarget(self.where, connection, EachRow(self.where, self.records()), job_uuid, writer, claim, fault)

    def records(self) -> Callable[[pa.RecordBatch], Records]:
        """Return what makes rows records, for one target."""
        header = None if self.enrolled is None else Header(self.enrolled)
        return replace(self._encoding(), header=header).records

    def _progress(self) -> Progress:
        check_client()
        from holdfast.sinks.kafka.client import ProgressReader

        with closing(ProgressReader(self.place)) as reader:
            return reader.read()

    def _encoding(self) -> Encoding:
        return Encoding(self.where, self.values, self.key or (), message_max_bytes(self.place))


def transactional_id(job_uuid: str, sink: str) -> str:
    """Return the id of all writers of a sink."""
    return f"holdfast-{job_uuid}-{sink}"


def difference(expected: pa.Schema, stream: pa.Schema) -> str | None:
    """Return how a stream's columns differ from the expected ones, None if they do not; their order does not matter."""
    differences = [f"{name} is missing" for name in expected.names if name not in stream.names]
    differences += [f"{name} is not expected" for name in stream.names if name not in expected.names]
    for field in expected:
        found = stream.field(field.name) if field.name in stream.names else field
        if found.type != field.type:
            differences.append(f"{field.name} is {found.type}, expected is {field.type}")
        elif found.nullable and not field.nullable:
            differences.append(f"{field.name} may be null")
    return "; ".join(differences) or None


def check_client() -> None:
    """Refuse a machine without the client library. Raises ConfigError."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise no_client(error) from error
