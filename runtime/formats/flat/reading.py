"""Flat JSON objects as Arrow columns.

Pure. Source: docs/decisions/0090-flat-json.md; the Arrow columnar format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.formats.flat.parsing import BOOL, FLOAT, GIVEN, INTEGER, MISSING, STRING, copied, parsed

Words = NDArray[np.int64]


@dataclass(frozen=True)
class FlatRows:
    """The objects that were read.

    Args:
        rows: The indices of the objects that were read, in order.
        columns: Their columns.
        missing: Per column, which of them do not have the field; a null that is written is none.
    """

    rows: Words
    columns: list[pa.Array]
    missing: list[NDArray[np.bool_]]


class FlatObjects:
    """Reads the objects that are flat, and leaves the others.

    Args:
        columns: Names and types; see `flat_kinds`.
    """

    def __init__(self, columns: Mapping[str, pa.DataType]) -> None:
        self._types = list(columns.values())
        self._kinds = np.array([_kind_of(kind) for kind in self._types], np.int64)
        names = [name.encode() for name in columns]
        self._names = np.frombuffer(bytearray(b"".join(names) or b"\0"), np.uint8)
        self._bounds = np.cumsum([0, *map(len, names)], dtype=np.int64)

    def read(self, values: pa.BinaryArray) -> FlatRows:
        """Return the rows of the objects that are flat.

        Raises:
            ArrowInvalid: a number does not fit its column, or text is not UTF-8.
        """
        count = len(values)
        _, bounds, data = values.buffers()
        starts = np.frombuffer(bounds, np.int32)[values.offset : values.offset + count + 1].astype(np.int64)
        cells = len(self._types) * count + 1
        numbers, sizes = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
        states, flat_mask = np.zeros(cells, np.uint8), np.empty(count, np.bool_)
        address = 0 if data is None else data.address
        parsed(address, starts, self._names, self._bounds, self._kinds, numbers, sizes, states, flat_mask)
        if values.null_count:
            flat_mask &= values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(flat_mask)
        arrays, missing = list[pa.Array](), list[NDArray[np.bool_]]()
        for column, kind in enumerate(self._types):
            cell = slice(column * count, (column + 1) * count)
            parts = numbers[cell], sizes[cell], states[cell]
            if len(rows) < count:
                parts = parts[0][rows], parts[1][rows], parts[2][rows]
            arrays.append(_array(kind, int(self._kinds[column]), *parts))
            missing.append(parts[2] == MISSING)
        return FlatRows(rows, arrays, missing)


def flat(columns: Mapping[str, pa.DataType]) -> bool:
    """Return whether columns of these names and types can be read."""
    return all(
        _kind_of(kind) is not None and name.isascii() and name.isprintable() and not set(name) & {'"', "\\"}
        for name, kind in columns.items()
    )


def _kind_of(kind: pa.DataType) -> int | None:
    if pa.types.is_integer(kind):
        return INTEGER
    known = {pa.float64(): FLOAT, pa.bool_(): BOOL, pa.utf8(): STRING}
    return known.get(kind)


def _array(kind: pa.DataType, read_as: int, numbers: Words, sizes: Words, states: NDArray[np.uint8]) -> pa.Array:
    value_mask = states == GIVEN
    valid = None if value_mask.all() else pa.py_buffer(np.packbits(value_mask, bitorder="little"))
    nulls = 0 if valid is None else len(value_mask) - int(np.count_nonzero(value_mask))
    if read_as == STRING:
        if valid is not None:
            sizes = np.where(value_mask, sizes, 0)
        data, bounds = np.empty(int(sizes.sum()), np.uint8), np.empty((len(sizes) + 1) * 4, np.uint8)
        copied(numbers, sizes, bounds, data)
        column = pa.StringArray.from_buffers(len(sizes), pa.py_buffer(bounds), pa.py_buffer(data), valid, nulls)
        column.validate(full=True)
        return column
    if read_as == BOOL:
        return pa.array(numbers != 0, kind, mask=None if valid is None else ~value_mask)
    plain = pa.float64() if read_as == FLOAT else pa.int64()
    column = pa.Array.from_buffers(plain, len(numbers), [valid, pa.py_buffer(np.ascontiguousarray(numbers))], nulls)
    return column if plain == kind else column.cast(kind)
