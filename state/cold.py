"""Rows of one operator in the cold store: their bytes, and how a table reads them.

A row is `[operator u16][key group u16][canonical key]` -> `[1][values, packed little-endian]`. If a column is not
plain, it is `[2][values, u32 lengths of those of variable width][1 or 0 per nullable column: null or not][bytes]`.
Keys that a table has not seen yet are fetched in sorted order. Misses of key groups that have had many also earn a scan
of some rows there, in proportion to their number, so that no batch waits for a large state to be read. Small batches
share a scan: it begins once their misses have earned SCANNED_MIN rows. A key group that is scanned to its end is
*complete*: it needs no more look-ups, even for absent keys.

Invariants
    - A key group is marked complete only after all its rows were handed to the table.
    - Key groups that the cold store does not own (P14) count as complete and are never read:
      their rows are stale.

Reads through the KeyValue port; no other I/O, clock or thread.
Source: DESIGN section 5. Measured with rows of 128 bytes: a sorted multi-get costs 14.5 us per key, a scan 1.1 to
4.4 us per row, and filling a table 0.5 us per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Damaged
from holdfast.ports import KeyValue
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.expiry import NOTHING, RANGE_FIRST, Through, range_end
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import Columns, ColumnSpec, TableSpec, Values
from holdfast.state.tables.values import arrow

PREFIX_BYTES = 4
FETCHED_MAX = 10_000
"""Keys in one call of get_many."""
SCAN_AFTER_MISSES = 256
"""After so many misses a key group may be scanned, and its further misses earn rows of scans."""
SCANNED_PER_MISS, SCANNED_MIN = 2, 4_096
"""Rows that every such miss earns, about a third of what its look-up costs; and how many begin a scan."""
SCANNED_AT_ONCE = 1 << 16
"""Rows handed to the table at a time."""
_PLAIN_FORMAT, _FORMAT = 1, 2
_NULL = "null of "


def scope(operator: int, key_group: int) -> tuple[bytes, bytes]:
    """Return the range [first, end) of all stored keys of an operator's key group."""
    number = operator << 16 | key_group
    return number.to_bytes(PREFIX_BYTES, "big"), (number + 1).to_bytes(PREFIX_BYTES, "big")


def row_keys(operator: int, keys: Keys, key_groups: NDArray[np.uint16]) -> list[bytes]:
    """Return the stored keys of rows, in the same order."""
    head = np.empty((len(keys), PREFIX_BYTES), np.uint8)
    head[:, :2] = list(operator.to_bytes(2, "big"))
    head[:, 2:] = key_groups.astype(">u2").view(np.uint8).reshape(-1, 2)
    if keys.ints is not None:
        return _tolist(np.concatenate([head, codec.encode_ints(keys.ints, keys.type.types[0])], axis=1))
    joined = pc.binary_join_element_wise(codec.from_matrix(head), keys.canonical(), codec.NO_BYTES)
    result: list[bytes] = joined.to_pylist()
    return result


def row_ranges(operator: int, through: Through) -> list[tuple[bytes, bytes]]:
    """Return the ranges [first, end) of stored keys that expired."""
    return [
        (scope(operator, group)[0] + RANGE_FIRST, scope(operator, group)[0] + range_end(int(through[group])))
        for group in np.flatnonzero(through != NOTHING).tolist()
    ]


def row_values(spec: TableSpec, columns: Columns, count: int) -> list[bytes]:
    """Return the stored values of `count` rows."""
    rows = np.empty(count, _row_type(spec))
    rows["format"] = _PLAIN_FORMAT if spec.plain else _FORMAT
    strings = []
    for column in spec.columns:
        values = columns[column.name]
        if column.varying:
            strings.append(_bytes_of(values))
            rows[column.name] = strings[-1].lengths
        else:
            rows[column.name] = _whole(values) if column.nullable else values
        if column.nullable:
            rows[_NULL + column.name] = arrow(values).is_null().to_numpy(zero_copy_only=False)
    fixed = rows.view(np.uint8).reshape(len(rows), -1)
    if not strings:
        return _tolist(fixed)
    joined = pc.binary_join_element_wise(codec.from_matrix(fixed), *(each.array for each in strings), codec.NO_BYTES)
    result: list[bytes] = joined.to_pylist()
    return result


def columns_of(spec: TableSpec, values: Sequence[bytes]) -> Columns:
    """Return the columns of stored values.

    Raises:
        Damaged: the values are not rows of this declaration.
    """
    row = _row_type(spec)
    data = b"".join(values)
    if not any(column.varying for column in spec.columns):
        if len(data) != len(values) * row.itemsize or any(len(value) != row.itemsize for value in values):
            raise _wrong_rows(spec)
        return _fixed_columns(spec, np.frombuffer(data, row))
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    if (sizes < row.itemsize).any():
        raise _wrong_rows(spec)
    raw, starts = np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes
    rows = raw[starts[:, None] + np.arange(row.itemsize)].reshape(-1).view(row)
    columns, at = _fixed_columns(spec, rows), starts + row.itemsize
    lengths = {column.name: rows[column.name].astype(np.int64) for column in spec.columns if column.varying}
    if not np.array_equal(sum(lengths.values()) + row.itemsize, sizes):
        raise _wrong_rows(spec)
    for name, each in lengths.items():
        columns[name] = _strings(spec.column(name), raw[codec.ragged(at, each)], each, _null(rows, name))
        at = at + each
    return {column.name: columns[column.name] for column in spec.columns}


def _fixed_columns(spec: TableSpec, rows: NDArray[Any]) -> Columns:
    """Return the columns of fixed width."""
    if not (rows["format"] == (_PLAIN_FORMAT if spec.plain else _FORMAT)).all():
        raise _wrong_rows(spec)
    columns: Columns = {}
    for column in spec.columns:
        if column.varying:
            continue
        values = np.ascontiguousarray(rows[column.name], column.dtype)
        if column.nullable:
            values = pa.array(values, column.arrow, mask=_null(rows, column.name), from_pandas=False)
        columns[column.name] = values
    return columns


class _Strings(NamedTuple):
    array: pa.Array
    """large_binary, never null."""
    lengths: NDArray[np.int64]


def _bytes_of(values: pa.Array) -> _Strings:
    raw = values.cast(pa.large_binary())
    raw = raw.fill_null(b"") if raw.null_count else raw
    return _Strings(raw, np.asarray(pc.binary_length(raw).to_numpy(zero_copy_only=False)))


def _whole(values: Values) -> NDArray[Any]:
    """Return nullable values of fixed width, with zeros for nulls."""
    given = arrow(values)
    if given.null_count:
        given = given.fill_null(False if pa.types.is_boolean(given.type) else 0)
    return np.asarray(given.to_numpy(zero_copy_only=False))


def _null(rows: NDArray[Any], name: str) -> NDArray[np.bool_] | None:
    """Return which rows have a null in a column; None if it is not nullable or none has."""
    field = _NULL + name
    null = rows[field] != 0 if field in (rows.dtype.names or ()) else None
    return null if null is not None and null.any() else None


def _strings(
    column: ColumnSpec, data: NDArray[np.uint8], lengths: NDArray[np.int64], null: NDArray[np.bool_] | None
) -> pa.Array:
    strings = codec.from_bytes(data, lengths)
    validity = None if null is None else pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(column.arrow, len(strings), [validity, *strings.buffers()[1:]])


class ColdRows:
    """The rows of one operator in the cold store; a table's Loader.

    Args:
        spec: The table.
        store: The cold store.
        key_group_count: Key groups of the job.
        readable: Key groups [first, end) whose rows are valid in the store.
    """

    def __init__(self, spec: TableSpec, store: KeyValue, key_group_count: int, readable: tuple[int, int]) -> None:
        self._spec, self._store, self._count = spec, store, key_group_count
        self._incomplete = np.zeros(key_group_count, np.bool_)
        self._incomplete[readable[0] : readable[1]] = True
        self._misses = np.zeros(key_group_count, np.int64)
        self._earned = 0
        """Rows that misses have earned since the last scan."""
        self._scanned: dict[int, bytes] = {}
        """By incomplete key group: where its scan goes on."""

    @property
    def complete(self) -> bool:
        """Return whether every row of the cold store is already in the table."""
        return not self._incomplete.any()

    @property
    def incomplete(self) -> int:
        """The number of key groups of which rows may still be in the cold store alone."""
        return int(np.count_nonzero(self._incomplete))

    def fetch(self, keys: Keys) -> tuple[Rows, Columns]:
        """Return which of these keys have a row, and the rows."""
        groups = keys.key_groups(self._count)
        asked = np.flatnonzero(self._incomplete[groups])
        wanted = keys.take(asked)
        order = wanted.order(groups[asked])
        asked, wanted = asked[order], wanted.take(order)
        found: list[int] = []
        values: list[bytes] = []
        for first in range(0, len(asked), FETCHED_MAX):
            rows = asked[first : first + FETCHED_MAX]
            part = wanted.take(np.arange(first, first + len(rows)))
            read = self._store.get_many(row_keys(self._spec.operator, part, groups[rows]))
            for row, value in zip(rows.tolist(), read, strict=True):
                if value is not None:
                    found.append(row)
                    values.append(value)
        return np.array(found, np.int64), columns_of(self._spec, values)

    def scan_for(self, keys: Keys) -> Iterator[tuple[Keys, Columns]]:
        """Yield some rows of the key groups with the most misses; the table may need them later, or these keys now.

        At most SCANNED_PER_MISS * misses + SCANNED_MIN rows, and in all no more than all misses have earned.
        """
        groups = keys.key_groups(self._count)
        missed = groups[self._incomplete[groups]]
        self._misses += np.bincount(missed, minlength=self._count)
        scannable = self._incomplete & (self._misses >= SCAN_AFTER_MISSES)
        self._earned += SCANNED_PER_MISS * int(np.count_nonzero(scannable[missed]))
        if self._earned < SCANNED_MIN:
            return iter(())
        rows_max, self._earned = self._earned, 0
        often = np.flatnonzero(scannable)
        begun = np.isin(often, list(self._scanned))  # one key group after another: only a complete one saves look-ups
        often = often[np.lexsort([-self._misses[often], ~begun])]
        return self._scan(often, rows_max)

    def scan_rest(self, rows_max: int | None = None) -> Iterator[tuple[Keys, Columns]]:
        """Yield rows that were not scanned yet, all or at most `rows_max`; after the last, all groups are complete."""
        return self._scan(np.flatnonzero(self._incomplete), rows_max)

    def _scan(self, groups: Rows, rows_max: int | None = None) -> Iterator[tuple[Keys, Columns]]:
        """Yield rows of these key groups in order, at most so many; each is complete once its last ones were taken."""
        left = rows_max
        for group in groups.tolist():
            while self._incomplete[group] and left != 0:
                count = SCANNED_AT_ONCE if left is None else min(left, SCANNED_AT_ONCE)
                first, end = scope(self._spec.operator, group)
                pairs = self._store.scan(self._scanned.get(group, first), end, count)
                if pairs:
                    keys = pa.array([key[PREFIX_BYTES:] for key, _ in pairs], pa.large_binary())
                    yield self._spec.key.from_canonical(keys), columns_of(self._spec, [value for _, value in pairs])
                    self._scanned[group] = pairs[-1][0] + b"\0"
                left = None if left is None else left - len(pairs)
                if len(pairs) < count:
                    self._incomplete[group] = False
                    self._scanned.pop(group, None)


def _row_type(spec: TableSpec) -> np.dtype[Any]:
    columns = [(c.name, np.dtype("<u4" if c.varying else c.dtype).newbyteorder("<")) for c in spec.columns]
    nulls = [(_NULL + column.name, np.dtype(np.uint8)) for column in spec.columns if column.nullable]
    return np.dtype([("format", np.uint8), *columns, *nulls])


def _tolist(matrix: NDArray[np.uint8]) -> list[bytes]:
    """Return every row of a byte matrix as bytes; a void view does it in C, 0.05 us per row."""
    matrix = np.ascontiguousarray(matrix)
    result: list[bytes] = matrix.view(f"V{matrix.shape[1]}").reshape(-1).tolist()
    return result


def _wrong_rows(spec: TableSpec) -> Damaged:
    return Damaged(
        f"rows of operator {spec.name!r} in the local store do not have the declared columns",
        not_done="nothing was loaded",
        next_step="let the worker restore from the checkpoint; it will not use this directory again",
    )
