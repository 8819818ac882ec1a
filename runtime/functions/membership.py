"""member: Bloom's filter, which tests whether a value may be among those of a key.

A value sets some bits of the filter, which follow from its hash. A value whose bits are all set may have been seen; one
with a bit that is not set has not. State is a sorted list of the bits that are set, and all bits once these are
shorter. It follows from the set of values alone: order, batches, merges and replays do not change it.

The result is a state after a header with all that `may_contain` needs: it asks a filter from anywhere. The hashes are
those of approx_distinct, and a part of the format.

Pure.
Source: docs/decisions/0098-filters-of-members.md; Bloom, Space/time trade-offs in hash coding, 1970; Kirsch and
Mitzenmacher, Less hashing, same performance, 2006 (bits from two hashes).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.runtime.functions.cardinality import hashes_of
from holdfast.runtime.functions.contract import AggregateFunction, Groups, Kind, State, StateColumn
from holdfast.runtime.functions.packed import cut, pieces
from holdfast.runtime.functions.types import is_decimal, is_kept
from holdfast.state.keys.canonical import is_textual

EXPECTED, ERROR = 1_000, 0.01
EXPECTED_MAX, ERROR_MIN = 1_000_000, 1e-6
FORMAT = 1
_HEADER = struct.Struct("<BBQB")
"""Format, bits of a value, bits of the filter, and the length of the type's name, which follows."""
_ENTRY = np.dtype("<u4")
_FILTERS_BYTES = 4 << 20
"""Filters that are merged together have this many bytes, or there is one."""
_SCALES = 39
_UNITS = ("s", "ms", "us", "ns")
_TIMES = [pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
_PLAIN = [pa.bool_(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.large_utf8(), pa.large_binary()]
_TYPES = {
    str(kind): kind
    for kind in (
        *_PLAIN,
        *_TIMES,
        *(pa.duration(unit) for unit in _UNITS),
        *(pa.timestamp(unit, zone) for unit in _UNITS for zone in (None, "UTC")),
        *(pa.decimal128(38, scale) for scale in range(_SCALES)),
    )
}
"""Types by the names in headers: one for all types whose equal values have equal hashes."""


@dataclass(frozen=True)
class Member(Kind):
    """A filter of the values."""

    expected: int = EXPECTED
    error: float = ERROR

    name: ClassVar[str] = "member"

    def __post_init__(self) -> None:
        whole = isinstance(self.expected, int) and not isinstance(self.expected, bool)
        if not (whole and 0 < self.expected <= EXPECTED_MAX):
            raise ConfigError(
                f"member(..., expected={self.expected!r}): expected is not a number between 1 and {EXPECTED_MAX:,}",
                not_done="the job was not planned",
                next_step="give about how many different values a key will have, for example expected=10_000",
            )
        if not (isinstance(self.error, float) and ERROR_MIN <= self.error < 1):
            raise ConfigError(
                f"member(..., error={self.error!r}): error is not a share from {ERROR_MIN} to below 1",
                not_done="the job was not planned",
                next_step="give the share of other values that the filter may take for members, for example error=0.01",
            )

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        if not is_kept(kind) or str(_asked_as(kind)) not in _TYPES:
            return None
        bits = -self.expected * math.log(self.error) / math.log(2) ** 2
        size = 64 * math.ceil(bits / 64)
        return BloomFilter(size, max(1, round(size / self.expected * math.log(2))), kind)


@dataclass(frozen=True)
class BloomFilter(AggregateFunction):
    """A Bloom filter.

    Args:
        size: Its bits, a multiple of 64.
        per_value: How many of them a value sets.
    """

    size: int
    per_value: int
    kind: pa.DataType
    result: pa.DataType = pa.large_binary()

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return {"filter": StateColumn(pa.large_binary())}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        bits = bits_of(hashes_of(inputs[0]), self.per_value, self.size)
        places = np.unique(np.repeat(groups, self.per_value) * self.size + bits.ravel())
        counts = np.bincount(places // self.size, minlength=count)
        entries = (places % self.size).astype(_ENTRY)
        if counts.max(initial=0) < self._listed_max:
            return {"filter": cut(entries.view(np.uint8), np.concatenate([[0], np.cumsum(counts)]) * _ENTRY.itemsize)}
        ends = np.cumsum(counts)
        lists = (entries[end - own : end] for own, end in zip(counts, ends, strict=True))
        return {"filter": _joined([each.view(np.uint8) if self._short(each) else self._whole(each) for each in lists])}

    def combine(self, states: State, groups: Groups, count: int) -> State:
        packed = [self._packed(filters) for filters in self._merged(states["filter"], groups, count)]
        return {"filter": pa.concat_arrays(packed) if packed else pa.array([], pa.large_binary())}

    def results(self, states: State) -> pa.Array:
        name = str(_asked_as(self.kind)).encode()
        header = _HEADER.pack(FORMAT, self.per_value, self.size, len(name)) + name
        filters: pa.Array = states["filter"]
        members = pa.compute.binary_join_element_wise(
            pa.scalar(header, pa.large_binary()), filters, pa.scalar(b"", pa.large_binary())
        )
        empty = pa.compute.equal(pa.compute.binary_length(filters), 0)
        return pa.compute.if_else(empty, pa.scalar(None, pa.large_binary()), members)

    @property
    def _listed_max(self) -> int:
        """A list of as many bits would be as long as all of them."""
        return self.size // (8 * _ENTRY.itemsize)

    def _merged(self, filters: pa.Array, groups: Groups, count: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the bits of the groups, some groups at a time, shape (groups, size / 8)."""
        at_once, order = max(1, 8 * _FILTERS_BYTES // self.size), np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(0, count + at_once, at_once))
        for part, first in enumerate(range(0, count, at_once)):
            rows = order[bounds[part] : bounds[part + 1]]
            merged = np.zeros((min(at_once, count - first), self.size // 8), np.uint8)
            self._merge(merged, filters.take(pa.array(rows)), groups[rows] - first)
            yield merged

    def _merge(self, merged: NDArray[np.uint8], filters: pa.Array, groups: Groups) -> None:
        """Set the bits of filters, which are in the order of their groups."""
        whole = np.asarray(pa.compute.binary_length(filters).to_numpy(zero_copy_only=False)) == self.size // 8
        listed, of = pieces(filters.filter(pa.array(~whole)), _ENTRY)
        places = groups[~whole][of] * (self.size // 8) + (listed >> 3)
        np.bitwise_or.at(merged.reshape(-1), places, np.left_shift(1, listed & 7).astype(np.uint8))
        full, _ = pieces(filters.filter(pa.array(whole)), np.dtype(np.uint8))
        for owner, bits in zip(groups[whole], full.reshape(-1, self.size // 8), strict=True):
            merged[owner] |= bits

    def _packed(self, filters: NDArray[np.uint8]) -> pa.Array:
        """Return filters as states."""
        counts = np.bitwise_count(filters).sum(axis=1, dtype=np.int64) if filters.size else np.zeros(0, np.int64)
        pairs = zip(filters, counts, strict=True)
        return _joined([_set_in(bits).view(np.uint8) if count < self._listed_max else bits for bits, count in pairs])

    def _short(self, entries: NDArray[np.uint32]) -> bool:
        return entries.size < self._listed_max

    def _whole(self, entries: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Return all bits, given those that are set."""
        bits = np.zeros(self.size // 8, np.uint8)
        np.bitwise_or.at(bits, entries >> 3, np.left_shift(1, entries & 7).astype(np.uint8))
        return bits


def may_contain(members: bytes | None, value: object) -> bool:
    """Return whether a value may be among those that `hf.member` has seen; if not, it certainly is not.

    Args:
        members: The result of `hf.member`; None, that of a key without values, contains nothing.
        value: A value of the column's type. None is never a member.

    Raises:
        ConfigError: `members` is not a result of `hf.member`, or the value has another type.
    """
    if members is None or value is None:
        return False
    try:
        version, per_value, size, length = _HEADER.unpack_from(members)
        kind = _TYPES[members[_HEADER.size : _HEADER.size + length].decode()]
    except (struct.error, KeyError, UnicodeDecodeError, TypeError) as error:
        raise _no_filter(members) from error
    if version != FORMAT:
        raise _no_filter(members)
    try:
        hashes = hashes_of(pa.array([value], kind))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(
            f"may_contain: {value!r} is not a value of type {kind}, which the filter was made of",
            not_done="the filter was not asked",
            next_step="ask for a value of the type of the column that hf.member read",
        ) from error
    filter_bytes = np.frombuffer(members, np.uint8, offset=_HEADER.size + length)
    asked = bits_of(hashes, per_value, size)[0]
    if filter_bytes.size == size // 8:
        return bool((filter_bytes[asked >> 3] >> (asked & 7) & 1).all())
    return bool(np.isin(asked, filter_bytes.view(_ENTRY)).all())


def bits_of(hashes: NDArray[np.uint64], per_value: int, size: int) -> NDArray[np.int64]:
    """Return the bits that values set in a filter of this size, shape (values, per_value)."""
    steps = hashes_of(pa.array(hashes.view(np.int64))) | np.uint64(1)
    numbers = np.arange(per_value, dtype=np.uint64)
    return ((hashes[:, None] + steps[:, None] * numbers) % np.uint64(size)).astype(np.int64)


def _asked_as(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for all types whose equal values have equal hashes."""
    if is_textual(kind):
        return pa.large_utf8() if pa.types.is_string(kind) or pa.types.is_large_string(kind) else pa.large_binary()
    if is_decimal(kind):
        return pa.decimal128(38, kind.scale) if 0 <= kind.scale < _SCALES else kind
    if pa.types.is_integer(kind):
        return kind if kind == pa.uint64() else pa.int64()
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def _set_in(bits: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return which bits are set, in order."""
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")).astype(_ENTRY)


def _joined(parts: Sequence[NDArray[np.uint8]]) -> pa.Array:
    """Return one state per part."""
    ends = np.cumsum([0, *(part.size for part in parts)])
    return cut(np.concatenate([np.zeros(0, np.uint8), *parts]), ends)


def _no_filter(members: object) -> ConfigError:
    return ConfigError(
        f"may_contain: {members!r:.60} is not a result of hf.member",
        not_done="the filter was not asked",
        next_step="give the bytes of the column that hf.member made, unchanged",
    )
