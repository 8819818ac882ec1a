"""`hf.Kafka`: a topic, as a connector.

The client library is an extra, so it is imported when a topic is opened, not with this module: a job can be planned and
tested without it.

Source: API.md (sources); docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.rows.row_types import RowsOf, T
from holdfast.runtime.sources.connector import ChangelogConnector, Connector
from holdfast.runtime.sources.kafka.avro import Avro
from holdfast.runtime.sources.kafka.messages import META, TOPIC
from holdfast.runtime.sources.kafka.protobuf.form import Protobuf
from holdfast.runtime.sources.kafka.reading import OnLost
from holdfast.runtime.sources.kafka.source import KafkaSource
from holdfast.runtime.sources.kafka.topics.source import TopicsSource
from holdfast.runtime.sources.kafka.values import JSON, RAW, Raw
from holdfast.sinks.kafka.changelog.sink import KafkaChangelog, options_in
from holdfast.sinks.kafka.encoding import JsonValues, RawValues
from holdfast.sinks.kafka.repeating_sink import RepeatingKafka
from holdfast.sinks.kafka.sink import KafkaSink
from holdfast.storage.kafka.place import Option, place_of
from holdfast.storage.log.changelog import DELETED
from holdfast.traits import Library

Delivery = Literal["transactional", "at-least-once"]
"""How a sink writes."""


class Kafka(Connector, ChangelogConnector, RowsOf[T]):
    """A topic of Kafka: a source, read with offsets in the job's checkpoints, a sink, written in transactions, or the
    changelog of a job.

    As `hf.App(changelog=)` it holds the job's state, and takes `servers`, `topic` and `options` alone.

    As a sink it gives exactly-once delivery to readers with `isolation.level=read_committed`: the records of an epoch
    and their tag, in the topic NAME-holdfast-progress, are one transaction. With `delivery="at-least-once"` it writes
    each row as it comes, and rows come again after a failure. A stream that replaces rows needs `key`;
    a row that it deletes becomes a tombstone.

    Args:
        servers: "host:port" of some brokers, with commas between them or as a list.
        topic: The topic. It must exist to be read; a sink creates a missing one. A pattern, such as
            `re.compile(r"orders[.].*")`, reads all topics whose whole name matches, also those that are created later.
        value: How values are written: `hf.JSON(Bid)`, `hf.Avro(Bid, registry=...)`, `hf.Protobuf(Bid)` for a source,
            or `hf.Raw()` for bytes. A sink writes JSON if it is left out.
        key: Columns by which the producers choose the partition, as `partitioned_by` of `app.source`; with a pattern
            they say nothing about that. If the rows have a bool column `holdfast_deleted`, they are also the columns of
            the records' key, and a record without a value is a row that deletes. As a sink: the columns of the records'
            key; for a stream that replaces rows, the columns by which it does.
        meta: Add the columns kafka_key, kafka_timestamp, kafka_partition, kafka_offset and kafka_headers; with
            a pattern also kafka_topic.
        options: Options of librdkafka, such as {"security.protocol": "SASL_SSL"}. A secret is given by
            `hf.secret("env:NAME")`.
        group: Store the positions of checkpoints as the offsets of this consumer group, so that tools of Kafka show
            the job's lag. The job itself never reads them. No consumer may be a member of the group.
        on_lost: Policy for records that retention removed before they were read: "fail" ends the job, "earliest" counts
            them as lost, reports them, and continues with the first record that is left; and of topics by a pattern,
            one that no longer exists has ended.
        delivery: As a sink: "transactional" writes the rows of an epoch in a transaction, after its checkpoint, exactly
            once. "at-least-once" writes each row as it comes, without a transaction; after a failure, rows come again.

    Raises:
        ConfigError: an argument cannot be used, or holds a secret.
    """

    library: ClassVar[Library] = Library(name="confluent-kafka", extra="kafka")

    @checked("hf.Kafka", '("broker.example:9092", "bids", hf.JSON(Bid))')
    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str | re.Pattern[str],
        value: JSON[T] | Avro[T] | Protobuf[T] | Raw | None = None,
        key: str | Sequence[str] | None = None,
        meta: bool = False,
        options: Mapping[str, Option] | None = None,
        group: str | None = None,
        on_lost: OnLost = "fail",
        delivery: Delivery = "transactional",
    ) -> None:
        self.place = place_of(servers, topic, options)
        self.pattern = topic if isinstance(topic, re.Pattern) else None
        self.key = None if key is None else (key,) if isinstance(key, str) else tuple(key)
        self.value, self.meta, self.group, self.on_lost = value, meta, group, on_lost
        if on_lost not in get_args(OnLost):
            raise _refused(f"on_lost is {on_lost!r}", f"use one of {', '.join(get_args(OnLost))}")
        if delivery not in get_args(Delivery):
            raise _refused(f"delivery is {delivery!r}", f"use one of {', '.join(get_args(Delivery))}")
        self.delivery = delivery
        if group is not None and not group.strip():
            raise _refused("group is empty", 'name a consumer group, such as "billing", or leave it out')
        given: Any = value
        if given is not None and not isinstance(given, JSON | Avro | Protobuf | Raw):
            forms = "hf.JSON(Bid), with your dataclass, hf.Avro(...), hf.Protobuf(...) or hf.Raw()"
            raise _refused(f"value is {given!r}", f"give {forms}")

    @classmethod
    def example(cls) -> tuple[Kafka[Any], Kafka[Any]]:
        """Return a topic that has every trait of a source, and one that has every trait of a sink; see listed.py."""
        servers, value = "broker.example:9092", Raw()
        return cls(servers, "bids", value, group="billing"), cls(servers, "bids", value, key=["value"])

    def __repr__(self) -> str:
        return f"Kafka({self.place.servers!r}, {self.place.topic if self.pattern is None else self.pattern!r})"

    def source(self) -> KafkaSource | TopicsSource:
        if self.delivery != "transactional":
            raise _refused(f"{self!r} is a source with delivery=, but a source delivers nothing", "leave delivery out")
        value = self.value
        if value is None or (isinstance(value, JSON | Avro) and value.schema is None):
            raise _refused(
                f"{self!r} does not say how to read the values",
                "give value=hf.JSON(Bid), value=hf.Avro(Bid, ...) or value=hf.Raw()",
            )
        schema = RAW if isinstance(value, Raw) else value.schema
        assert schema is not None
        added = META if self.pattern is None else META.append(TOPIC)
        if self.meta and (twice := [name for name in added.names if name in schema.names]):
            raise _refused(f"the column {twice[0]!r} is also one of meta=True", "rename the field, or leave meta out")
        row_type = None if isinstance(value, Raw) else value.row_type
        deletes = self._deletes(value, schema)
        unless = {DELETED.name: False} if deletes else {}
        lines = (value.time, {**unless, **value.defaults()}) if isinstance(value, JSON) else None
        given = self.place, schema, lines, self.meta, row_type, self.key or (), self.group
        topic = self.place.topic if self.pattern is None else None
        coded = value.form(topic) if isinstance(value, Avro | Protobuf) else None
        source = KafkaSource(*given, on_lost=self.on_lost, deletes=deletes, coded=coded)
        return source if self.pattern is None else TopicsSource(source, self.pattern)

    def _deletes(self, value: object, schema: pa.Schema) -> tuple[str, ...]:
        """Return the key's columns, if records without a value are rows that delete. Raises ConfigError."""
        if not isinstance(value, JSON) or self.key is None or DELETED.name not in schema.names:
            return ()
        if unknown := [name for name in self.key if name not in schema.names or name == DELETED.name]:
            raise _refused(f"key names {unknown[0]!r}, which is not a column of {value!r}", "name columns of the rows")
        defaults, spared = value.defaults(), (*self.key, DELETED.name)
        strict = [field.name for field in schema if not field.nullable and field.name not in (*spared, *defaults)]
        if strict:
            raise _refused(
                f"records that delete have nothing but their key, but {value!r} allows no null in {', '.join(strict)}",
                f"let {', '.join(strict)} be null (| None), or give defaults",
            )
        return self.key

    def sink(self) -> KafkaSink | RepeatingKafka:
        topic = self._topic()
        return topic if self.delivery == "transactional" else RepeatingKafka(topic)

    def changelog(self) -> KafkaChangelog:
        own = {"value": self.value, "key": self.key, "group": self.group, "meta": self.meta or None}
        own |= {"on_lost": None if self.on_lost == "fail" else self.on_lost}
        own |= {"delivery": None if self.delivery == "transactional" else self.delivery}
        arguments = [f"{name}=" for name, value in own.items() if value is not None]
        if arguments:
            raise _refused(
                f"the changelog {self!r} is given with {' and '.join(arguments)}, but its records are fixed",
                f"leave {' and '.join(arguments)} out: a changelog takes servers, topic and options",
            )
        if self.pattern is not None:
            raise _refused(f"{self!r} is a changelog with a pattern, but it is kept in one topic", "name the topic")
        return KafkaChangelog(self.place)

    @classmethod
    def placed(cls, place: Mapping[str, str]) -> Kafka[Any]:
        return cls(place["servers"], place["topic"], options=options_in(place))

    def _topic(self) -> KafkaSink:
        if self.pattern is not None:
            raise _refused(f"{self!r} is a sink with a pattern, but a sink writes one topic", "name the topic")
        if self.group is not None:
            raise _refused(f"{self!r} is a sink with group=, but a sink has no offsets to store", "leave group out")
        if self.on_lost != "fail":
            raise _refused(f"{self!r} is a sink with on_lost=, but a sink reads no records", "leave on_lost out")
        if self.meta:
            raise _refused(f"{self!r} is a sink with meta=True, but a sink reads no messages", "leave meta out")
        value = self.value
        if isinstance(value, Protobuf):
            raise _refused(f"{self!r} is a sink with hf.Protobuf, which is only read", "write hf.JSON or hf.Avro")
        if isinstance(value, Raw):
            return KafkaSink(self.place, RawValues(), self.key)
        if value is None:
            return KafkaSink(self.place, JsonValues(), self.key)
        if isinstance(value, Avro):
            rows, enrolled = value.rows(self.place.topic)
            return KafkaSink(self.place, rows, self.key, value.schema, enrolled)
        return KafkaSink(self.place, JsonValues(value.time), self.key, value.schema)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Kafka: {what}", not_done="the job was not planned", next_step=next_step)
