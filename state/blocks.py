"""Reads the rows of one operator in one segment, in order, a bounded number at a time.

A piece of state counts only for some key groups, and record batches without rows of them are not read. In the others,
the key-group column is read first, which gives the place of every key group; of the other columns, the rows before
these key groups are skipped and those after them are never read.

Invariants
    - Rows come in the order of (key group, canonical key), each once. Ranges are not rows; `through` holds their
      bounds.
    - The range of a key group is in `through` before a row of the key group is returned.

Pure: it reads only the file that it is given. Source: docs/decisions/0037-state-inspection.md; format: changelog.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Unavailable
from holdfast.state.changelog import Block, BlockBatch, Segment, unreadable_block
from holdfast.state.columns import columns_of
from holdfast.state.evolution import columns_by_name, present_key
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.segmentrows import FIXED_COLUMNS, PUT, RANGE
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.expiry import NOTHING, Through, can_expire, last_of
from holdfast.state.tables.spec import Columns, TableSpec
from holdfast.state.tables.values import concatenated as concatenated_values
from holdfast.state.tables.values import numpy, sliced, taken

ROWS_AT_ONCE = 1 << 14
STRING_BYTES_AT_ONCE = 1 << 24
"""About how many bytes of text and bytes values are read at a time; one row may have more."""
READ_WHOLE_BYTES = 1 << 12
"""A record batch that takes no more room in the file is read by Arrow as a whole: to open a stream for each of its
buffers takes many times as long as to read them."""
_SIGN = np.uint64(1 << 63)

SortKeys = Any
"""Keys that compare like canonical keys: unsigned integers in a NumPy array, or canonical bytes (large_binary)."""


@dataclass(frozen=True, eq=False)
class StateRows:
    """Rows of one operator, sorted by (key group, canonical key).

    Args:
        groups: The key group of each row, shape (n,).
        keys: The key of each row.
        puts: False: a tombstone.
        columns: The values, shape (n,) each. Without a declaration, those of a nullable column may be NumPy arrays.
    """

    kind: KeyType
    groups: NDArray[np.uint16]
    keys: SortKeys
    puts: NDArray[np.bool_]
    columns: Columns

    def __len__(self) -> int:
        return len(self.groups)

    def slice(self, first: int, end: int) -> StateRows:
        """Return the rows [first, end)."""
        keys = self.keys[first:end] if isinstance(self.keys, np.ndarray) else self.keys.slice(first, end - first)
        columns = {name: sliced(values, first, end) for name, values in self.columns.items()}
        return StateRows(self.kind, self.groups[first:end], keys, self.puts[first:end], columns)

    def take(self, rows: NDArray[np.int64]) -> StateRows:
        """Return these rows."""
        keys = self.keys[rows] if isinstance(self.keys, np.ndarray) else self.keys.take(pa.array(rows))
        columns = {name: taken(values, rows) for name, values in self.columns.items()}
        return StateRows(self.kind, self.groups[rows], keys, self.puts[rows], columns)

    def place(self, row: int) -> tuple[int, Any]:
        """Return (key group, key) of a row, which compares like the order of rows."""
        key = self.keys[row]
        return int(self.groups[row]), int(key) if isinstance(self.keys, np.ndarray) else key.as_py()

    def through(self, place: tuple[int, Any]) -> int:
        """Return how many of the first rows are not after this place."""
        low = int(np.searchsorted(self.groups, place[0]))
        high = int(np.searchsorted(self.groups, place[0], side="right"))
        if isinstance(self.keys, np.ndarray):
            return low + int(np.searchsorted(self.keys[low:high], np.uint64(place[1]), side="right"))
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.place(middle) <= place else (low, middle)
        return low

    def same_key(self, key: Keys) -> NDArray[np.int64]:
        """Return the rows with this key, the only one in `key`, which lacks unrouted columns and a suffix."""
        if isinstance(self.keys, np.ndarray):
            value = codec.ints_of(key.type.decode(key)[0])
            return np.flatnonzero(self.keys == _sortable(self.kind, value)[0])
        routed_bytes = codec.without_first(self.keys, self.kind.unrouted_width)
        canonical_key = key.canonical()[0].as_py()
        if not self.kind.suffix:
            return np.flatnonzero(
                pc.equal(routed_bytes, pa.scalar(canonical_key, pa.large_binary())).to_numpy(zero_copy_only=False)
            )
        # FF after a closing 00 continues the text; a suffix begins with 00 or 01.
        longer = pc.starts_with(routed_bytes, canonical_key + b"\xff")
        same = pc.and_not(pc.starts_with(routed_bytes, canonical_key), longer)
        return np.flatnonzero(same.to_numpy(zero_copy_only=False))

    def key_columns(self) -> list[pa.Array]:
        """Return the columns of the keys."""
        return self.kind.decode(self.as_keys())

    def as_keys(self) -> Keys:
        """Return the keys."""
        if isinstance(self.keys, np.ndarray):
            raw = self.keys if pa.types.is_uint64(self.kind.types[0]) else self.keys ^ _SIGN
            return self.kind.from_ints(raw.view(np.int64))
        return self.kind.from_canonical(self.keys)


def concatenated(parts: list[StateRows]) -> StateRows:
    """Return rows one after another; they are no longer sorted."""
    first = parts[0]
    if isinstance(first.keys, np.ndarray):
        keys: SortKeys = np.concatenate([part.keys for part in parts])
    else:
        keys = pa.concat_arrays([part.keys for part in parts])
    return StateRows(
        first.kind,
        np.concatenate([part.groups for part in parts]),
        keys,
        np.concatenate([part.puts for part in parts]),
        {name: concatenated_values([part.columns[name] for part in parts]) for name in first.columns},
    )


class BlockReader:
    """The rows of a block that belong to some key groups.

    Args:
        file: The segment, verified.
        key_groups: Half-open range of the key groups to read.
        keys_only: Read no values: `columns` of the rows are empty.
        spec: The declaration by which to name and type the values; None: under their field ids, as they were written.

    Raises:
        pa.ArrowInvalid: the block is not a block of a segment.
        ConfigError: the declaration cannot read it.
    """

    def __init__(
        self,
        file: pa.NativeFile,
        block: Block,
        key_groups: tuple[int, int],
        *,
        keys_only: bool = False,
        spec: TableSpec | None = None,
    ) -> None:
        self._file, self._block, self._key_groups = file, block, key_groups
        self._spec = None if keys_only else spec
        self._written = block.key
        self.kind = block.key if spec is None else present_key(block.key, spec)
        self.through: Through = np.full(block.key_group_count, NOTHING)
        file.seek(block.offset)
        self._schema = pa.ipc.read_schema(file)
        self._values = [] if keys_only else self._schema.names[FIXED_COLUMNS:]
        self._ahead = _places(block, key_groups, file.tell())
        self._batch: _Batch | _WholeBatch | None = None

    def read(self, rows_max: int | None = None) -> StateRows | None:
        """Return the next rows, at least one and at most `rows_max` (default ROWS_AT_ONCE); None at the end."""
        while (rows := self.read_part(rows_max)) is not None:
            if len(rows):
                return rows
        return None

    def read_part(self, rows_max: int | None = None) -> StateRows | None:
        """Return the next rows, none if only ranges come next; None at the end."""
        while True:
            if self._batch is None:
                if (place := next(self._ahead, None)) is None:
                    return None
                self._batch = self._open(*place)
            groups, columns = self._batch.take(rows_max or ROWS_AT_ONCE)
            if len(groups):
                return self._rows(groups, columns)
            self._batch = None

    def _open(self, at: int, size: int, count: int) -> _Batch | _WholeBatch:
        """Return the record batch whose message begins at a byte of the file."""
        given = self._schema, self._key_groups, self._values, self._block
        if size <= READ_WHOLE_BYTES and not self._block.packed:
            return _WholeBatch(self._file.read_at(size, at), *given)
        return _Batch(self._file, at, count, *given)

    def _rows(self, groups: NDArray[np.uint16], columns: dict[str, Any]) -> StateRows:
        kinds, values = columns["kind"], {name: columns[name] for name in self._values}
        if self._spec is not None:
            values = columns_by_name(values, len(groups), self._spec)
        rows = StateRows(self.kind, groups, _sortable(self._written, columns["key"]), kinds == PUT, values)
        if (ranges := kinds == RANGE).any():
            ends = columns["end"].filter(pa.array(ranges)).to_pylist()
            for group, end in zip(groups[ranges].tolist(), ends, strict=True):
                self.through[group] = last_of(end)
            rows = rows.take(np.flatnonzero(~ranges))
        return rows


class _Batch:
    """The rows of one record batch that belong to some key groups.

    Args:
        at: Where its message begins in the file.
        count: How many rows it has.
    """

    def __init__(
        self,
        file: pa.NativeFile,
        at: int,
        count: int,
        schema: pa.Schema,
        key_groups: tuple[int, int],
        values: list[str],
        block: Block,
    ) -> None:
        columns = columns_of(file, at, schema, packed=block.packed)
        groups = columns["kg"]
        counts = np.zeros(block.key_group_count, np.int64)
        for first in range(0, count, ROWS_AT_ONCE):
            counts += np.bincount(groups.take(min(ROWS_AT_ONCE, count - first)), minlength=counts.size)
        self._edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self._at, self._end = (int(self._edges[group]) for group in key_groups)
        names = _names_read(block, values)
        self._columns = {name: columns[name] for name in names}
        for column in self._columns.values() if self._at else ():
            column.skip(self._at)
        strings = sum(self._columns[name].string_bytes for name in values)
        self._rows_max = max(1, STRING_BYTES_AT_ONCE * count // max(1, strings))

    def take(self, rows_max: int) -> tuple[NDArray[np.uint16], dict[str, Any]]:
        """Return the key groups and columns of the next rows; none at the end."""
        count = min(rows_max, self._rows_max, self._end - self._at)
        places = np.arange(self._at, self._at + count)
        groups = (np.searchsorted(self._edges, places, side="right") - 1).astype(np.uint16)
        self._at += count
        return groups, {name: column.take(count) for name, column in self._columns.items()} if count else {}


class _WholeBatch:
    """As `_Batch`, of a record batch that is in memory as a whole.

    Args:
        data: Its message, and perhaps later bytes.
    """

    def __init__(
        self, data: bytes, schema: pa.Schema, key_groups: tuple[int, int], values: list[str], block: Block
    ) -> None:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        self._groups = np.asarray(batch.column("kg").to_numpy())
        if self._groups.size and int(self._groups[-1]) >= block.key_group_count:
            raise ValueError(f"key group {self._groups[-1]} of {block.key_group_count}")
        self._at, self._end = (int(self._groups.searchsorted(group)) for group in key_groups)
        self._columns = {name: batch.column(name) for name in _names_read(block, values)}

    def take(self, rows_max: int) -> tuple[NDArray[np.uint16], dict[str, Any]]:
        """Return the key groups and columns of the next rows; none at the end."""
        first, count = self._at, min(rows_max, self._end - self._at)
        self._at += count
        columns = {name: numpy(column.slice(first, count)) for name, column in self._columns.items()} if count else {}
        return self._groups[first : first + count], columns


def _names_read(block: Block, values: list[str]) -> list[str]:
    """Return the columns to read besides the key groups. Keys that are one integer have no ranges."""
    return ["key", "kind", *([] if block.key.injective else ["end"]), *values]


def deltas_of(segment: Segment, key_groups: tuple[int, int]) -> Iterator[OperatorDelta]:
    """Yield the rows of these key groups [first, end) in deltas of at most ROWS_AT_ONCE rows.

    Written in this order they have the effect of the whole: a range comes before the rows of its key group, which are
    newer. Only the rows of one part exist as arrays at a time.

    Raises:
        Damaged: a block cannot be read.
        Unavailable: the file cannot be read.
    """
    for block in segment.blocks:
        try:
            yield from _deltas(segment, block, key_groups)
        except OSError as error:
            if error.errno is None:  # it cannot be decompressed
                raise unreadable_block(block, error) from error
            raise Unavailable(f"reading a changelog segment failed: {error}", next_step="check the disk") from error
        except (pa.ArrowInvalid, KeyError, ValueError) as error:
            raise unreadable_block(block, error) from error


def _deltas(segment: Segment, block: Block, key_groups: tuple[int, int]) -> Iterator[OperatorDelta]:
    reader, header, kind = BlockReader(segment.file, block, key_groups), segment.header, block.key
    previous_through = reader.through.copy()
    while (rows := reader.read_part()) is not None:
        through = None
        if can_expire(kind) and (fresh := reader.through != previous_through).any():
            through = np.where(fresh, reader.through, NOTHING)
            previous_through = reader.through.copy()
        place = (header.epoch, header.follows, block.operator, block.key_group_count)
        yield OperatorDelta(*place, rows.as_keys(), rows.puts, rows.columns, through)


def _places(block: Block, key_groups: tuple[int, int], first: int) -> Iterator[tuple[int, int, int]]:
    """Yield where every record batch begins in the file that may have rows of these key groups, its bytes and rows.

    Args:
        first: Where the first one begins.
    """
    batches = block.batches or (BlockBatch(block.rows, block.size, 0),)
    for number, batch in enumerate(batches):
        last = batches[number + 1].first if number + 1 < len(batches) else block.key_group_count
        if batch.first < key_groups[1] and last >= key_groups[0]:
            yield first, block.offset + batch.end - first, batch.rows
        first = block.offset + batch.end


def _sortable(kind: KeyType, raw: Any) -> SortKeys:
    """Return keys as a segment holds them in the form in which rows are compared."""
    if not kind.injective:
        return raw
    unsigned = raw.view(np.uint64)
    return unsigned if pa.types.is_uint64(kind.types[0]) else unsigned ^ _SIGN
