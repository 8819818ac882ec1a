"""Reads the columns of a stored record batch as streams, so that memory does not depend on its number of rows.

Arrow's own reader decompresses a whole record batch. Here every buffer of the batch is found in the message's metadata
(a flatbuffer) and decompressed piece by piece. Only columns that segments hold are read: columns of fixed width, one
bit wide, large_binary and large_utf8, with their nulls.

Invariants
    - The values are those that Arrow's reader gives.

Pure: bytes in, arrays out.
Source: Apache Arrow columnar format, IPC (Message.fbs: Message, RecordBatch, Buffer, BodyCompression); FlatBuffers
internals.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.keys import canonical as codec
from holdfast.state.packing import values_of

SKIPPED_BYTES = 1 << 20
"""Rows to skip are decompressed in pieces of this size."""
WHOLE_BYTES_MAX = 1 << 20
"""A smaller buffer is decompressed in one call: Arrow's stream would need as much memory of its own."""
_HEADER, _BODY_BUFFERS, _COMPRESSION = 2, 2, 3
"""Fields of Message and RecordBatch."""
_CODECS = ("lz4", "zstd")  # in frames
_STORED_AS_IS = -1
_SIZE_BYTES = 8
"""A compressed buffer begins with its size."""
_CONTINUED = 0xFFFFFFFF
"""Every message of a stream begins so; then follow the bytes of its metadata, the metadata, and the buffers."""


class ColumnReader(Protocol):
    """One column, read from its first row to its last."""

    @property
    def string_bytes(self) -> int:
        """Bytes of all its strings; 0 if its values have a fixed width."""

    def skip(self, rows: int) -> None:
        """Pass over rows."""

    def take(self, rows: int) -> Any:
        """Return the values of the next rows: a NumPy array, or an Arrow array if some are null or all are strings."""


def columns_of(
    file: pa.NativeFile, at: int, schema: pa.Schema, *, packed: Collection[str] = ()
) -> dict[str, ColumnReader]:
    """Return the columns of the record batch whose message begins at this byte of a file.

    Args:
        packed: The columns that are packed (state/packing.py).

    Raises:
        pa.ArrowInvalid: there is none.
    """
    marker, length = struct.unpack("<Ii", file.read_at(8, at).ljust(8, b"\0"))
    if marker != _CONTINUED or length <= 0:
        raise pa.ArrowInvalid(f"no message begins at byte {at}")
    parts = _buffers(memoryview(file.read_at(length, at + 8)), file, at + 8 + length)
    return {field.name: _column(field, parts, packed=field.name in packed) for field in schema}


class _Bytes:
    """One buffer of a column, as a stream that opens when it is first read."""

    def __init__(self, file: pa.NativeFile, at: int, length: int, compression: str | None) -> None:
        self._file, self._at, self._length, self._compression = file, at, length, compression

    @property
    def empty(self) -> bool:
        """Return whether there are no bytes."""
        return not self._length

    @cached_property
    def size(self) -> int:
        """How many bytes there are, decompressed."""
        size = self._stored_size
        return self._length - _SIZE_BYTES if size == _STORED_AS_IS else size

    @cached_property
    def _stored_size(self) -> int:
        if self._compression is None or self.empty:
            return self._length
        (size,) = struct.unpack("<q", self._file.read_at(_SIZE_BYTES, self._at))
        return int(size)

    @cached_property
    def _stream(self) -> pa.NativeFile:
        if self._compression is None or self.empty:
            return self._file.get_stream(self._at, self._length)
        raw_stream = self._file.get_stream(self._at + _SIZE_BYTES, self._length - _SIZE_BYTES)
        if self._stored_size == _STORED_AS_IS:
            return raw_stream
        if self.size <= WHOLE_BYTES_MAX:
            return pa.BufferReader(pa.Codec(self._compression).decompress(raw_stream.read_buffer(), self.size))
        return pa.CompressedInputStream(raw_stream, self._compression)

    def take(self, size: int) -> pa.Buffer:
        data = self._stream.read_buffer(size)
        if data.size != size:
            raise pa.ArrowInvalid(f"a column ends {size - data.size} bytes early")
        return data

    def skip(self, size: int) -> None:
        while size > 0:
            size -= self.take(min(size, SKIPPED_BYTES)).size


class _Bits:
    """A bitmap: up to seven bits are kept from the last byte read."""

    def __init__(self, data: _Bytes) -> None:
        self._data = data
        self._left = np.zeros(0, bool)

    def skip(self, rows: int) -> None:
        for at in range(0, rows, SKIPPED_BYTES):
            self.take(min(SKIPPED_BYTES, rows - at))

    def take(self, rows: int) -> NDArray[np.bool_]:
        read = np.frombuffer(self._data.take(max(0, rows - self._left.size + 7) // 8), np.uint8)
        bits = np.concatenate([self._left, np.unpackbits(read, bitorder="little").astype(bool)])
        self._left = bits[rows:]
        return bits[:rows]


class _Nulls:
    """Which values of a column are null; a column without nulls may have no bitmap."""

    def __init__(self, validity: _Bytes) -> None:
        self._bits = None if validity.empty else _Bits(validity)

    def skip(self, rows: int) -> None:
        if self._bits is not None:
            self._bits.skip(rows)

    def take(self, rows: int) -> NDArray[np.bool_] | None:
        """Return which of the next values are null; None if none is."""
        if self._bits is None:
            return None
        null = ~self._bits.take(rows)
        return null if null.any() else None


class _Fixed:
    """Values of whole bytes."""

    string_bytes = 0

    def __init__(self, dtype: np.dtype[Any], parts: Iterator[_Bytes]) -> None:
        self._dtype, self._nulls, self._values = dtype, _Nulls(next(parts)), next(parts)

    def skip(self, rows: int) -> None:
        self._nulls.skip(rows)
        self._values.skip(rows * self._dtype.itemsize)

    def take(self, rows: int) -> Any:
        null = self._nulls.take(rows)
        values = np.frombuffer(self._values.take(rows * self._dtype.itemsize), self._dtype)
        return values if null is None else pa.array(values, mask=null, from_pandas=False)


class _Packed:
    """Values of 64 bits as planes, which are held as a whole: a packed batch is small."""

    string_bytes = 0

    def __init__(self, field: pa.Field, parts: Iterator[_Bytes]) -> None:
        self._field, self._nulls, self._planes, self._at = field, _Nulls(next(parts)), next(parts), 0

    @cached_property
    def _values(self) -> NDArray[Any]:
        planes = np.frombuffer(self._planes.take(self._planes.size), np.uint8)
        return values_of(planes, self._field.name).view(self._field.type.to_pandas_dtype())

    def skip(self, rows: int) -> None:
        self._nulls.skip(rows)
        self._at += rows

    def take(self, rows: int) -> Any:
        null, values = self._nulls.take(rows), self._values[self._at : self._at + rows]
        self._at += rows
        return values if null is None else pa.array(values, mask=null, from_pandas=False)


class _Booleans:
    """Values of one bit."""

    string_bytes = 0

    def __init__(self, parts: Iterator[_Bytes]) -> None:
        self._nulls, self._values = _Nulls(next(parts)), _Bits(next(parts))

    def skip(self, rows: int) -> None:
        self._nulls.skip(rows)
        self._values.skip(rows)

    def take(self, rows: int) -> Any:
        null, values = self._nulls.take(rows), self._values.take(rows)
        return values if null is None else pa.array(values, mask=null)


class _Binary:
    """Byte strings or text; their offsets continue from the end of the last one."""

    def __init__(self, kind: pa.DataType, parts: Iterator[_Bytes]) -> None:
        self._kind, self._nulls, self._offsets, self._values = kind, _Nulls(next(parts)), next(parts), next(parts)
        self._end: int | None = None

    @property
    def string_bytes(self) -> int:
        return self._values.size

    def skip(self, rows: int) -> None:
        self._nulls.skip(rows)
        step = SKIPPED_BYTES // 8
        for at in range(0, rows, step):
            lengths = self._lengths(min(step, rows - at))
            self._values.skip(int(lengths.sum()))

    def take(self, rows: int) -> pa.Array:
        null, lengths = self._nulls.take(rows), self._lengths(rows)
        strings = codec.from_bytes(np.frombuffer(self._values.take(int(lengths.sum())), np.uint8), lengths)
        if null is None and self._kind == strings.type:
            return strings
        validity = None if null is None else pa.array(~null).buffers()[1]
        return pa.Array.from_buffers(self._kind, rows, [validity, *strings.buffers()[1:]])

    def _lengths(self, rows: int) -> NDArray[np.int64]:
        if self._end is None:
            self._end = int.from_bytes(self._offsets.take(8).to_pybytes(), "little")
            self._values.skip(self._end)
        ends = np.frombuffer(self._offsets.take(8 * rows), np.int64)
        lengths = np.diff(ends, prepend=self._end)
        self._end = int(ends[-1]) if rows else self._end
        return lengths


def _column(field: pa.Field, parts: Iterator[_Bytes], *, packed: bool) -> ColumnReader:
    kind = field.type
    if packed:
        return _Packed(field, parts)
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _Binary(kind, parts)
    if pa.types.is_boolean(kind):
        return _Booleans(parts)
    return _Fixed(np.dtype(kind.to_pandas_dtype()), parts)


def _buffers(data: memoryview, file: pa.NativeFile, body: int) -> Iterator[_Bytes]:
    """Yield the buffers of a record batch, in the order of its columns.

    Args:
        data: The metadata of the message.
        body: Where its buffers begin in the file.
    """
    (root,) = struct.unpack_from("<I", data, 0)
    batch = _table(data, root, _HEADER)
    assert batch is not None, "a message without a header"
    vector = _table(data, batch, _BODY_BUFFERS)
    compression = _table(data, batch, _COMPRESSION)
    codec_at = None if compression is None else _field(data, compression, 0)
    name = None if compression is None else _CODECS[0 if codec_at is None else data[codec_at]]
    assert vector is not None, "a record batch without buffers"
    (count,) = struct.unpack_from("<I", data, vector)
    for number in range(count):
        offset, length = struct.unpack_from("<qq", data, vector + 4 + 16 * number)
        yield _Bytes(file, body + offset, length, name)


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Return where a field of a flatbuffer table is; None if it has its default."""
    (back,) = struct.unpack_from("<i", data, table)
    entry = 4 + 2 * number
    (size,) = struct.unpack_from("<H", data, table - back)
    (offset,) = struct.unpack_from("<H", data, table - back + entry) if entry < size else (0,)
    return table + offset if offset else None


def _table(data: memoryview, table: int, number: int) -> int | None:
    """Return where the table or vector that a field refers to is."""
    at = _field(data, table, number)
    return None if at is None else at + struct.unpack_from("<I", data, at)[0]
