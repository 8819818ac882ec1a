"""Records as librdkafka takes them: an array of its messages that point into Arrow buffers.

Made by arithmetic on whole columns, so that no record is an object of Python.

Invariants
    - The buffers of a message live as long as the `MessageArray` does. The library copies it when it takes the message.
    - A record without a key or value has no pointer; an empty one has a pointer and no bytes.

Pure: memory only.
Source: librdkafka, rdkafka.h; the Arrow columnar format; docs/decisions/0127-producer-by-the-batch.md.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.sinks.kafka.sending import ANY_PARTITION
from holdfast.sinks.kafka.target import Records, Values
from holdfast.storage.kafka.library import Message

_FORMATS = {"err": "<i4", "payload": "<i8", "len": "<i8", "key": "<i8", "key_len": "<i8"}
_LAYOUT = np.dtype(
    {
        "names": list(_FORMATS),
        "formats": list(_FORMATS.values()),
        "offsets": [getattr(Message, name).offset for name in _FORMATS],
        "itemsize": ctypes.sizeof(Message),
    }
)
_EMPTY = ctypes.create_string_buffer(8)
"""Where the parts without bytes are."""


@dataclass(frozen=True)
class MessageArray:
    """Records of one write, or of one part of it.

    Args:
        array: `rd_kafka_message_t`, as `_LAYOUT` has it.
        partition: Where all of them go, or `ANY_PARTITION`.
        bytes: Bytes of all keys and values.
        held: The buffers that they point to.
    """

    array: NDArray[Any]
    partition: int
    bytes: int
    held: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.array)

    def sizes(self, first: int, end: int) -> NDArray[np.int64]:
        """Return the bytes of records in a range, of key and value."""
        found: NDArray[np.int64] = self.array["len"][first:end] + self.array["key_len"][first:end]
        return found

    def address(self, first: int) -> int:
        """Return where a message is."""
        return int(self.array.ctypes.data) + first * self.array.itemsize

    def refused(self, first: int, end: int) -> tuple[int, int] | None:
        """Return place and error of the first message in a range that the library did not take, if there is one."""
        codes = self.array["err"][first:end]
        places = np.flatnonzero(codes)
        return (first + int(places[0]), int(codes[places[0]])) if len(places) else None


def messages_of(records: Records) -> MessageArray:
    """Return records as messages."""
    values = column_of(records.values)
    array = np.zeros(len(values), _LAYOUT)
    size, buffers = _point(array, "payload", "len", values), [values]
    if records.keys is not None:
        keys = column_of(records.keys)
        assert len(keys) == len(values), "each record has its key"
        size += _point(array, "key", "key_len", keys)
        buffers.append(keys)
    return MessageArray(array, ANY_PARTITION if records.partition is None else records.partition, size, tuple(buffers))


def column_of(values: Values) -> pa.LargeBinaryArray:
    """Return values as one array."""
    if isinstance(values, pa.Array):
        return values if values.type == pa.large_binary() else values.cast(pa.large_binary())
    return pa.array(values, pa.large_binary())


def _point(array: NDArray[Any], pointer: str, length: str, column: pa.LargeBinaryArray) -> int:
    """Let messages point to the values of a column; return how many bytes these have."""
    if not len(column):
        return 0
    valid, bounds, data = column.buffers()
    ends = np.frombuffer(bounds, np.int64)[column.offset :][: len(column) + 1]
    array[length] = ends[1:] - ends[:-1]
    array[pointer] = (data.address if data is not None and data.size else ctypes.addressof(_EMPTY)) + ends[:-1]
    if valid is not None and column.null_count:
        missing = column.is_null().to_numpy(zero_copy_only=False)
        array[pointer][missing], array[length][missing] = 0, 0
    return int(ends[-1] - ends[0])
