"""Messages of a topic as columns: the values decoded, and what else a message has if it is wanted.

Source: docs/design/0075-kafka-source.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

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
_VALUE, _OFFSET = methodcaller("value"), methodcaller("offset")
_UNKNOWN_TIME = 0
"""The type of a timestamp that a message does not have."""


class Decoder(Protocol):
    """Turns the values of messages into rows."""

    def decode(self, values: Sequence[bytes | None]) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        """Return the rows of these values, and those that are refused, by their index."""


def batch_of(
    messages: Sequence[Any],
    offset: int,
    schema: pa.Schema,
    lines: Decoder | None,
    meta: bool,
    tombstones: Tombstones | None = None,
) -> pa.RecordBatch:
    """Return messages of one partition, in order, as `OpenSource.read` describes it.

    Args:
        messages: `confluent_kafka.Message`, at least one.
        offset: Where reading began; at most the offset of the first message.
        schema: The columns of the values.
        lines: Decodes values; None: they stay bytes.
        meta: Whether the columns `META` follow.
        tombstones: Makes rows that delete of messages without a value; None: such messages cannot be decoded.
    """
    values = list(map(_VALUE, messages))
    if tombstones is not None and None in values:
        values = [
            tombstones.value(message.key()) if message.value() is None else message.value() for message in messages
        ]
    refused: dict[int, Refused] = {}
    if lines is None:
        batch = pa.RecordBatch.from_arrays([pa.array(values, schema.field(0).type)], schema=schema)
    else:
        batch, refused = lines.decode(values)
    if meta:
        kept = [each for row, each in enumerate(messages) if row not in refused] if refused else messages
        both = pa.schema([*schema, *META])
        batch = pa.RecordBatch.from_arrays([*batch.columns, *_meta_of(kept)], schema=both)
    batch = with_refused(batch, refused)
    if messages[-1].offset() + 1 - offset == len(messages):
        return batch
    offsets = np.fromiter(map(_OFFSET, messages), np.int64, len(messages))
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(offsets)], names=[*batch.schema.names, OFFSETS])


def _meta_of(messages: Sequence[Any]) -> list[pa.Array]:
    times = [each.timestamp() for each in messages]
    micros = [None if kind == _UNKNOWN_TIME else at * 1_000 for kind, at in times]
    headers = [[{"name": name, "value": value} for name, value in each.headers() or ()] for each in messages]
    columns = (
        [each.key() for each in messages],
        micros,
        [each.partition() for each in messages],
        [each.offset() for each in messages],
        headers,
    )
    return [pa.array(values, field.type) for values, field in zip(columns, META, strict=True)]
