"""Many values of one type in one state: their bytes, one after another.

Values of fixed width are their bytes. Text and bytes have a second column with the size of every value. So values of
all states of a batch are read as one Arrow array without a loop or a copy.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.functions.contract import Groups, State, StateColumn
from holdfast.runtime.functions.types import DECIMAL_BYTES, as_bytes, as_decimals, is_decimal, plain_dtype
from holdfast.state.keys.canonical import is_textual

_BYTES = StateColumn(pa.large_binary())
_SIZE = np.dtype(np.int32)


@dataclass(frozen=True)
class Packed:
    """The columns of state with values of one type.

    Args:
        role: The role of the first column.
    """

    kind: pa.DataType
    role: str = "items"

    @property
    def sizes(self) -> str:
        """The role of the column with the sizes of values of variable width."""
        return f"{self.role}_sizes"

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        """The columns of state."""
        return {self.role: _BYTES} | ({self.sizes: _BYTES} if is_textual(self.kind) else {})

    def pack(self, values: pa.Array, groups: Groups, count: int) -> dict[str, pa.Array]:
        """Return one state per group from values in the order of their groups."""
        ends = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=count))])
        if not is_textual(self.kind):
            return {self.role: cut(_raw(values), ends * _width(self.kind))}
        held = values.cast(pa.large_binary()) if len(values) else pa.array([], pa.large_binary())
        starts, data = _bytes_of(held)
        return {
            self.role: cut(data, starts[ends] - starts[0]),
            self.sizes: cut(np.diff(starts).astype(_SIZE).view(np.uint8), ends * _SIZE.itemsize),
        }

    def unpack(self, states: State) -> tuple[pa.Array, Groups]:
        """Return all values, and the number of the state of each."""
        starts, data = _bytes_of(states[self.role])
        if not is_textual(self.kind):
            return _values(data, self.kind), np.repeat(np.arange(starts.size - 1), np.diff(starts) // _width(self.kind))
        size_starts, sizes = _bytes_of(states[self.sizes])
        offsets = np.concatenate([[0], np.cumsum(sizes.view(_SIZE), dtype=np.int64)])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        values = pa.Array.from_buffers(pa.large_binary(), offsets.size - 1, buffers)
        return values.cast(self.kind), np.repeat(np.arange(starts.size - 1), np.diff(size_starts) // _SIZE.itemsize)

    def lengths(self, states: State) -> NDArray[np.int64]:
        """Return how many values each state has."""
        textual = is_textual(self.kind)
        starts, _ = _bytes_of(states[self.sizes if textual else self.role])
        counts: NDArray[np.int64] = np.diff(starts) // (_SIZE.itemsize if textual else _width(self.kind))
        return counts


def cut(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> pa.Array:
    """Return pieces of bytes as an Arrow array."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), offsets.size - 1, buffers)


def pieces(states: pa.Array, dtype: np.dtype[Any]) -> tuple[NDArray[Any], Groups]:
    """Return the numbers in all states, and the number of the state of each."""
    starts, data = _bytes_of(states)
    return data.view(dtype), np.repeat(np.arange(starts.size - 1), np.diff(starts) // dtype.itemsize)


def _bytes_of(states: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each piece begins, and the end, in the bytes that follow; nothing is copied."""
    count = len(states)
    if not count:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = states.buffers()
    starts = np.frombuffer(offsets, np.int64, count + 1, 8 * states.offset)
    if data is None or starts[-1] == starts[0]:
        return starts - starts[0], np.zeros(0, np.uint8)
    return starts - starts[0], np.frombuffer(data, np.uint8, int(starts[-1] - starts[0]), int(starts[0]))


def _width(kind: pa.DataType) -> int:
    if is_decimal(kind):
        return DECIMAL_BYTES
    return 1 if pa.types.is_boolean(kind) else int(kind.bit_width // 8)


def _raw(values: pa.Array) -> NDArray[np.uint8]:
    """Return the bytes of values of fixed width."""
    kind, count = values.type, len(values)
    if not count:
        return np.zeros(0, np.uint8)
    if pa.types.is_boolean(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False), np.uint8)
    held = as_bytes(values) if is_decimal(kind) else values
    width = _width(kind)
    return np.frombuffer(held.buffers()[1], np.uint8, count * width, held.offset * width)


def _values(data: NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    count = data.size // _width(kind)
    if pa.types.is_boolean(kind):
        return pa.array(data.astype(np.bool_))
    buffers = [None, pa.py_buffer(np.ascontiguousarray(data))]
    if is_decimal(kind):
        return as_decimals(pa.Array.from_buffers(pa.binary(DECIMAL_BYTES), count, buffers), kind)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain_dtype(kind)), count, buffers).view(kind)
