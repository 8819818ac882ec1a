"""Batches of records that the client library cannot decompress: damaged, or larger than it may take in memory.

The library reports such a batch with its first offset and asks for it again without end. The records behind it are read
by asking for the offset behind it, which is not in what the library says. But an offset inside of it is answered with
the same report. So the least offset that is not answered so is behind it, found in a few questions by halving.

Source: librdkafka, rd_kafka_msgset_reader_decompress; docs/decisions/0120-batches-that-cannot-be-unpacked.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.rows.dead_letters import Refused
from holdfast.runtime.sources.kafka.feed import OutOfRange, Unpackable
from holdfast.runtime.sources.kafka.messages import Headers, Values
from holdfast.storage.kafka.place import KafkaPlace

LIMIT, LIMIT_DEFAULT = "receive.message.max.bytes", 100_000_000
"""The option of the library that bounds a decompressed batch."""


def behind(error: Unpackable, offset: int, end: int, take: Callable[[int], object]) -> int:
    """Return the least offset that is not in the batch of `offset`.

    Args:
        error: How that one was reported.
        end: The end of the partition.
        take: Reads from an offset on, as `MessageFeed.take`.
    """

    def within(at: int) -> bool:
        try:
            take(at)
        except Unpackable as found:
            return found.first == error.first
        except OutOfRange:  # removed meanwhile
            return False
        return False

    lower_bound, step = offset, 1
    while lower_bound + step < end and within(lower_bound + step):
        lower_bound, step = lower_bound + step, 2 * step
    beyond = max(min(lower_bound + step, end), offset + 1)
    while beyond - lower_bound > 1:
        middle = (lower_bound + beyond) // 2
        lower_bound, beyond = (middle, beyond) if within(middle) else (lower_bound, middle)
    return beyond


@dataclass(frozen=True)
class Unread:
    """The records of such a batch, as one that cannot be decoded: how many they are is not known. See `Messages`."""

    partition: int
    first: int
    last: int

    def __len__(self) -> int:
        return 1

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.array([self.first])

    @property
    def values(self) -> list[bytes | None]:
        return [b""]

    @property
    def keys(self) -> list[bytes | None]:
        return [None]

    @property
    def times_ms(self) -> list[int | None]:
        return [None]

    @property
    def headers(self) -> list[Headers]:
        return [[]]


@dataclass(frozen=True)
class Refuses:
    """A decoder that refuses every value. See `ValueDecoder`."""

    schema: pa.Schema
    why: Refused

    def decode(self, values: Values) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        nothing = pa.RecordBatch.from_pylist([], self.schema)
        return nothing, dict.fromkeys(range(len(values)), self.why)


def refusal(error: Unpackable, offset: int, following: int, place: KafkaPlace) -> Refused:
    """Return why the records of a batch are not decoded."""
    limit = int(str(dict(place.options).get(LIMIT, LIMIT_DEFAULT)))
    where = f"offset {offset:,}" if following - 1 == offset else f"offsets {offset:,} to {following - 1:,}"
    return Refused(
        f"the records of {where} are in a batch that is damaged, or takes more than {limit:,} bytes "
        f'when it is decompressed: raise options={{"{LIMIT}": ...}} of hf.Kafka to read it ({error.said})',
        "bytes",
        b"",
    )
