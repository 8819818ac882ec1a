"""Messages of one partition as columns: what librdkafka has handed over by the batch.

Source: docs/decisions/0089-kafka-batches.md; the Arrow columnar format.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.sources.kafka.client import Client
from holdfast.runtime.sources.kafka.gathering import KEY, PAYLOAD, asked, gathered, sized
from holdfast.runtime.sources.kafka.messages import Headers

MESSAGE_BYTES = 16
"""The bytes that a message takes besides its parts."""
_NO_TIME = 0
"""The type of a timestamp that a message does not have."""
_INT32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Columns:
    """Messages in order; see `Messages`. Keys, times and headers are there if they are wanted."""

    partition: int
    offsets: NDArray[np.int64]
    values: pa.BinaryArray
    keys: pa.BinaryArray | None = None
    times_ms: list[int | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def first(self) -> int:
        """The offset of the first message."""
        return int(self.offsets[0])

    @property
    def last(self) -> int:
        """The offset of the last message."""
        return int(self.offsets[-1])

    @property
    def size(self) -> int:
        """The bytes that they take."""
        keys = 0 if self.keys is None else int(self.keys.nbytes)
        return int(self.values.nbytes) + keys + MESSAGE_BYTES * len(self)

    def slice(self, first: int, end: int) -> Columns:
        """Return a range of them."""
        return Columns(
            self.partition,
            self.offsets[first:end],
            self.values[first:end],
            None if self.keys is None else self.keys[first:end],
            self.times_ms[first:end],
            self.headers[first:end],
        )

    def since(self, offset: int) -> Columns:
        """Return those from an offset on."""
        first = int(np.searchsorted(self.offsets, offset))
        return self if first == 0 else self.slice(first, len(self))

    def fitting(self, bytes_max: int) -> int:
        """Return how many of the first have at most so many bytes; at least one."""
        if self.size <= bytes_max:
            return len(self)
        ends = np.frombuffer(self.values.buffers()[1], np.int32)[self.values.offset :][: len(self) + 1]
        sizes = ends[1:].astype(np.int64) - ends[0] + MESSAGE_BYTES * np.arange(1, len(self) + 1)
        return max(1, int(np.searchsorted(sizes, bytes_max, "right")))


def columns_of(
    client: Client, messages: NDArray[np.int64], first: int, end: int, partition: int, more: bool
) -> Columns:
    """Copy a range of messages, all of them records.

    Args:
        messages: Their addresses.
        more: Whether keys, times and headers are wanted.
    """
    places = np.empty(end - first, np.int64)
    values = _part(messages, first, end, places, PAYLOAD)
    if not more:
        return Columns(partition, places, values)
    keys = _part(messages, first, end, places, KEY)
    millis, kinds = _asked(client, messages, first, end, "message_timestamp")
    codes, header_addresses = _asked(client, messages, first, end, "message_headers")
    times = [
        None if kind == _NO_TIME else at for at, kind in zip(millis.tolist(), (kinds & _INT32).tolist(), strict=True)
    ]
    # A message without headers is an error of that function.
    headers = [
        [] if code else client.headers(address)
        for code, address in zip((codes & _INT32).tolist(), header_addresses.tolist(), strict=True)
    ]
    return Columns(partition, places, values, keys, times, headers)


def _part(messages: NDArray[np.int64], first: int, end: int, places: NDArray[np.int64], part: int) -> pa.BinaryArray:
    count = end - first
    data = np.empty(sized(messages, first, end, places, part), np.uint8)
    bounds, present = np.empty((count + 1) * 4, np.uint8), np.empty(count, np.bool_)
    missing = gathered(messages, first, end, part, bounds, data, present)
    valid = pa.py_buffer(np.packbits(present, bitorder="little")) if missing else None
    buffers = [valid, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers, missing)


def _asked(
    client: Client, messages: NDArray[np.int64], first: int, end: int, function: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    answers, results = np.empty(end - first, np.int64), np.empty(end - first, np.int64)
    asked(messages, first, end, client.function(function), answers, results)
    return answers, results
