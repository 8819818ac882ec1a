"""Messages of a topic as columns: the values decoded, and what else a message has if it is wanted.

Source: docs/decisions/0075-kafka-source.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.plan.source import OFFSETS
from holdfast.runtime.rows.dead_letters import Refused, with_refused
from holdfast.runtime.sources.kafka.tombstones import Tombstones

HEADERS = pa.list_(pa.struct([pa.field("name", pa.utf8(), nullable=False), pa.field("value", pa.binary())]))
META = pa.schema(
    [
        pa.field("kafka_key", pa.binary()),
        pa.field("kafka_timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("kafka_partition", pa.int32(), nullable=False),
        pa.field("kafka_offset", pa.int64(), nullable=False),
        pa.field("kafka_headers", HEADERS, nullable=False),
    ]
)
"""The columns of `meta=True`; timestamps of Kafka are milliseconds."""
TOPIC = pa.field("kafka_topic", pa.utf8(), nullable=False)
"""Follows them if the source has several topics."""
_VALUE, _OFFSET = methodcaller("value"), methodcaller("offset")
_UNKNOWN_TIME = 0
"""The type of a timestamp that a message does not have."""
Values: TypeAlias = Sequence[bytes | None] | pa.BinaryArray
Headers: TypeAlias = list[tuple[str, bytes | None]]


class ValueDecoder(Protocol):
    """Turns the values of messages into rows."""

    def decode(self, values: Values) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        """Return the rows of these values, and those that are refused, by their index."""


class Messages(Protocol):
    """Messages of one partition, in order, at least one."""

    def __len__(self) -> int: ...
    @property
    def last(self) -> int:
        """The offset of the last message."""

    @property
    def partition(self) -> int: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def values(self) -> Values: ...
    @property
    def keys(self) -> Values | None:
        """None if keys, times and headers are not wanted."""

    @property
    def times_ms(self) -> Sequence[int | None]: ...
    @property
    def headers(self) -> Sequence[Headers]: ...


class MessageList:
    """Messages of `consume()`; see `Messages`.

    Args:
        messages: `confluent_kafka.Message`.
    """

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def last(self) -> int:
        return int(self._messages[-1].offset())

    @property
    def partition(self) -> int:
        return int(self._messages[0].partition())

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.fromiter(map(_OFFSET, self._messages), np.int64, len(self))

    @property
    def values(self) -> Sequence[bytes | None]:
        return list(map(_VALUE, self._messages))

    @property
    def keys(self) -> Sequence[bytes | None]:
        return [each.key() for each in self._messages]

    @property
    def times_ms(self) -> Sequence[int | None]:
        times = (each.timestamp() for each in self._messages)
        return [None if kind == _UNKNOWN_TIME else at for kind, at in times]

    @property
    def headers(self) -> Sequence[Headers]:
        return [each.headers() or [] for each in self._messages]


def listed(values: Values) -> Sequence[bytes | None]:
    """Return values one by one."""
    return values.to_pylist() if isinstance(values, pa.Array) else values


def batch_of(
    messages: Messages,
    offset: int,
    schema: pa.Schema,
    lines: ValueDecoder | None,
    meta: bool,
    tombstones: Tombstones | None = None,
    topic: str | None = None,
) -> pa.RecordBatch:
    """Return messages as `OpenSource.read` describes it.

    Args:
        offset: Where reading began; at most the offset of the first message.
        schema: The columns of the values.
        lines: Decodes values; None: they stay bytes.
        meta: Whether the columns `META` follow.
        tombstones: Makes rows that delete of messages without a value; None: such messages cannot be decoded.
        topic: With `meta`: the value of the column `TOPIC`; None: there is no such column.
    """
    values = messages.values if tombstones is None else _with_deletes(messages, tombstones)
    refusals: dict[int, Refused] = {}
    if lines is None:
        batch = pa.RecordBatch.from_arrays([pa.array(values, schema.field(0).type)], schema=schema)
    else:
        batch, refusals = lines.decode(values)
    if meta:
        both, columns = pa.schema([*schema, *META]), _meta_of(messages)
        if topic is not None:
            both, columns = both.append(TOPIC), [*columns, pa.repeat(pa.scalar(topic, TOPIC.type), len(messages))]
        if refusals:
            kept = pa.array([row for row in range(len(messages)) if row not in refusals], pa.int64())
            columns = [column.take(kept) for column in columns]
        batch = pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=both)
    batch = with_refused(batch, refusals)
    if messages.last + 1 - offset == len(messages):
        return batch
    return pa.RecordBatch.from_arrays(
        [*batch.columns, pa.array(messages.offsets)], names=[*batch.schema.names, OFFSETS]
    )


def _with_deletes(messages: Messages, tombstones: Tombstones) -> Values:
    """Return the values; in the place of those that are missing, what their keys say."""
    values = messages.values
    if isinstance(values, pa.Array) and not values.null_count:
        return values
    keys = messages.keys
    assert keys is not None, "keys were not asked for"
    both = zip(listed(values), listed(keys), strict=True)
    return [tombstones.value(key) if value is None else value for value, key in both]


def _meta_of(messages: Messages) -> list[pa.Array]:
    keys, count = messages.keys, len(messages)
    assert keys is not None, "keys, times and headers were not asked for"
    headers = [[{"name": name, "value": value} for name, value in each] for each in messages.headers]
    columns = (
        keys,
        [None if at is None else at * 1_000 for at in messages.times_ms],
        [messages.partition] * count,
        messages.offsets,
        headers,
    )
    return [pa.array(values, field.type) for values, field in zip(columns, META, strict=True)]
