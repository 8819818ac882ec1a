"""A Kafka topic as a sink that is written as rows come: `hf.Kafka(..., delivery="at-least-once")`.

Source: docs/decisions/0093-repeating-sinks.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from holdfast.model import Writer
from holdfast.sinks.contract.immediate import IMMEDIATE, AheadTarget, ImmediateTarget, Owner, Written
from holdfast.sinks.contract.owners import Claim
from holdfast.sinks.contract.sink import ImmediateSink
from holdfast.sinks.kafka.repeating import RepeatingTarget
from holdfast.sinks.kafka.sink import KafkaSink, check_client
from holdfast.sinks.kafka.target import KafkaTarget
from holdfast.traits import SinkTraits


@dataclass(frozen=True)
class RepeatingKafka(ImmediateSink):
    """A topic that is written at least once; see immediate.ImmediateSink.

    Args:
        topic: The same topic, as it would be written in transactions.
    """

    topic: KafkaSink

    def __repr__(self) -> str:
        return repr(self.topic)

    @property
    def key(self) -> tuple[str, ...] | None:
        return self.topic.key

    @property
    def where(self) -> str:
        """How messages name the target."""
        return self.topic.where

    @property
    def traits(self) -> SinkTraits:
        topic_traits = self.topic.traits
        return SinkTraits(
            kind=f"{IMMEDIATE}{topic_traits.kind}",
            local_paths=topic_traits.local_paths,
            place=topic_traits.place,
            secrets=topic_traits.secrets,
            repeats=True,
        )

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.topic.check_rows(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        self.check(schema, upsert_key)
        self.topic.prepare_rows(upsert_key, tagged=False)

    def probe(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> str:
        self.check(schema, upsert_key)
        return self.topic.probe_rows(tagged=False)

    def accept(self, batch: pa.RecordBatch) -> None:
        self.topic.accept(batch)

    def open(self, job_uuid: str, writer: Writer, claim: Claim | None = None) -> KafkaTarget:
        """Nothing is ever staged for it."""
        return self.topic.open(job_uuid, writer, claim)

    def open_immediate(self, owner: Owner) -> ImmediateTarget:
        return self.open_ahead(owner)

    def open_ahead(self, owner: Owner) -> AheadTarget:
        check_client()
        from holdfast.sinks.kafka.plain import PlainProducer

        return RepeatingTarget(lambda: PlainProducer(self.topic.place), self.topic.records())

    def written(self, job_uuid: str, sink: str) -> tuple[Written, ...]:
        """A topic without tags knows of no partition."""
        return ()
