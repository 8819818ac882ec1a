"""A topic as a source: what is sent to the workers.

Source: runtime/plan/source.py; docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError, NotAdmitted
from holdfast.runtime.formats.json_lines import JsonLines, Times
from holdfast.runtime.plan.source import Source
from holdfast.runtime.sources.kafka.group import GroupOffsets
from holdfast.runtime.sources.kafka.messages import META, ValueDecoder
from holdfast.runtime.sources.kafka.part_of import PartOf
from holdfast.runtime.sources.kafka.protobuf.values import ProtobufForm
from holdfast.runtime.sources.kafka.reading import OnLost, OpenKafka
from holdfast.runtime.sources.kafka.schemas import AvroForm
from holdfast.runtime.sources.kafka.tombstones import Tombstones
from holdfast.secrets import Secret
from holdfast.storage.kafka.place import KafkaPlace
from holdfast.traits import SourceTraits


@dataclass(frozen=True)
class KafkaSource(Source):
    """A topic to read.

    Args:
        place: Where it is.
        values: The columns that the values have.
        lines: How times are written in JSON, and the defaults of columns; None: values are bytes.
        meta: Whether the columns `META` follow.
        key: Columns by which producers choose the partition.
        group: The consumer group that shows the positions of checkpoints; None: none.
        on_lost: Policy for records that retention removed before they were read.
        deletes: The columns of the record's key, if a record without a value is a row that deletes; empty: it cannot be
            decoded.
        coded: How values in Avro or Protobuf are read; None: they are JSON or bytes.
    """

    place: KafkaPlace
    values: pa.Schema
    lines: tuple[Times, Mapping[str, Any]] | None
    meta: bool = False
    row_type: type | None = None
    key: tuple[str, ...] = ()
    group: str | None = None
    on_lost: OnLost = "fail"
    deletes: tuple[str, ...] = ()
    coded: AvroForm | ProtobufForm | None = None

    def __repr__(self) -> str:
        return f"Kafka({self.place.servers!r}, {self.place.topic!r})"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.values, *META]) if self.meta else self.values

    @property
    def where(self) -> str:
        """How messages name it."""
        return self.place.where

    @property
    def traits(self) -> SourceTraits:
        """A compacted topic loses single records."""
        return SourceTraits(
            kind="Kafka",
            local_paths=(),
            place={"servers": self.place.servers, "topic": self.place.topic},
            partitioned_by=self.key,
            secrets=(*self.place.secrets, *self._secrets_of_registry),
            removes_old=True,
        )

    def check(self) -> None:
        """Refuse a topic that does not exist, or that the user may not read, and a registry that cannot be used."""
        try:
            if self.coded is not None:
                self.coded.opened(self.values).check()
            open_topic = self.open()
        except NotAdmitted as error:  # while a job runs it is a reason to wait, before that a mistake
            raise ConfigError(error.what, not_done=error.not_done, next_step=error.next_step) from error
        rights = open_topic.topic.rights
        open_topic.close()
        if rights is not None and not rights & {"READ", "ALL"}:
            raise ConfigError(
                f"{self.where}: the job's user may see this topic, but not read it",
                not_done="the job was not started",
                next_step=f"grant the user READ on topic {self.place.topic!r}",
            )

    @property
    def publishes(self) -> GroupOffsets | None:
        return None if self.group is None else GroupOffsets(self.place, self.group)

    def open(self, part_of: PartOf | None = None) -> OpenKafka:
        """Args:
        part_of: That the topic is one of several.
        """
        tombstones = Tombstones([self.values.field(name) for name in self.deletes]) if self.deletes else None
        read = self.place, self.values, self._decoder(), self.meta
        return OpenKafka(*read, on_lost=self.on_lost, tombstones=tombstones, part_of=part_of)

    def _decoder(self) -> ValueDecoder | None:
        if self.coded is not None:
            return self.coded.opened(self.values)
        return None if self.lines is None else JsonLines(self.values, *self.lines)

    @property
    def _secrets_of_registry(self) -> tuple[Secret, ...]:
        return () if self.coded is None else self.coded.secrets
