"""Keys of one batch: hashes for the index and the key groups, canonical bytes to distinguish keys.

A single integer, timestamp or date column whose schema forbids nulls takes the fast path: its
hash is splitmix64, a bijection, so equal hashes mean equal keys and bytes are never compared.
Every other key type hashes its canonical bytes with xxh3-64 and is verified against stored keys.
A nullable integer column hashes its values like the fast path, so that making a column nullable
moves no key; only its null is hashed by xxh3.
Leading columns may be *unrouted*: the end of a window orders and distinguishes the rows of a
window operator, but the key alone must decide the key group. Trailing columns may be a *suffix*: it distinguishes and
orders the rows of one user key, as the elements of a list, and does not affect the key group either.

Invariants
    - Equal keys have equal hashes, on every machine and in every version (golden values).
    - Keys are immutable; derived values are computed at first use, on any thread.

Pure: no clock, thread or I/O.
Source: DESIGN sections 5 and 13; xxHash specification (xxh3-64, seed 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.keygroups import check_count, key_groups_of, splitmix64
from holdfast.storage.xxh3 import xxh3_of

FIXED_BYTES_MAX = 128
"""Wider canonical keys of fixed width are hashed as bytes."""
COMPILED_FROM = 1 << 10
"""Fewer keys are not worth loading the compiler for: key groups and canonical bytes come from NumPy then."""
_SIGN = -(1 << 63)


@dataclass(frozen=True)
class KeyType:
    """The columns of a key, in order.

    Args:
        names: One name per column.
        types: Integers, bool, date32, timestamp, utf8, large_utf8, binary, large_binary.
        nullable: One flag per column; empty means that no column may hold nulls.
        unrouted: How many leading columns, all of fixed width, do not affect the key group.
        suffix: How many trailing columns do not affect the key group.

    Raises:
        ConfigError: a type cannot be part of a key.
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    nullable: tuple[bool, ...] = ()
    unrouted: int = 0
    suffix: int = 0

    def __post_init__(self) -> None:
        if not self.nullable:
            object.__setattr__(self, "nullable", (False,) * len(self.types))
        assert self.types and len(self.names) == len(self.types) == len(self.nullable)
        assert self.unrouted >= 0 and self.suffix >= 0 and self.unrouted + self.suffix < len(self.types)
        for name, kind in zip(self.names, self.types, strict=True):
            if not (codec.is_integral(kind) or codec.is_textual(kind) or pa.types.is_boolean(kind)):
                raise ConfigError(
                    f"column {name!r} of type {kind} cannot be part of a key",
                    not_done="no state was opened",
                    next_step="key by integers, booleans, dates, timestamps, text or bytes; "
                    "round a float to an integer or format it as text first",
                )
        assert not any(codec.is_textual(kind) for kind in self.types[: self.unrouted])

    @classmethod
    def of(cls, fields: Iterable[pa.Field], unrouted: int = 0, suffix: int = 0) -> KeyType:
        """Return the key type of these schema fields."""
        columns = tuple(fields)
        return cls(
            tuple(column.name for column in columns),
            tuple(column.type for column in columns),
            tuple(column.nullable for column in columns),
            unrouted,
            suffix,
        )

    @cached_property
    def injective(self) -> bool:
        """Return whether equal hashes mean equal keys."""
        return len(self.types) == 1 and codec.is_integral(self.types[0]) and not self.nullable[0]

    @cached_property
    def fixed(self) -> bool:
        """Return whether every column has a fixed width, so that keys are words and not bytes."""
        return not any(codec.is_textual(kind) for kind in self.types)

    @cached_property
    def word_count(self) -> int:
        """Words of a key of fixed width: one per column, and one of null bits if a column is nullable."""
        return len(self.types) + any(self.nullable)

    @property
    def unrouted_width(self) -> int:
        """Return with how many bytes the unrouted columns begin every canonical key."""
        return codec.width_of(self.types[: self.unrouted])

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """The columns as schema fields."""
        return tuple(pa.field(*column) for column in zip(self.names, self.types, self.nullable, strict=True))

    def encode(self, arrays: Sequence[pa.Array]) -> Keys:
        """Return the keys of a batch, one array per column, equally long and of the declared types."""
        assert len(arrays) == len(self.types)
        for array, kind, nullable in zip(arrays, self.types, self.nullable, strict=True):
            assert array.type == kind, f"a key column is {array.type}, but was declared as {kind}"
            assert nullable or array.null_count == 0, "a null in a key column that forbids nulls"
        if self.fixed:
            return Keys(self, len(arrays[0]), columns=tuple(arrays))
        canonical = codec.encode(arrays)
        return Keys(self, len(canonical), canonical=canonical)

    def from_ints(self, values: NDArray[np.int64]) -> Keys:
        """Return the keys of an injective type from their integers."""
        assert self.injective
        return self.from_words(np.ascontiguousarray(values).reshape(1, -1))

    def from_words(self, words: NDArray[np.int64]) -> Keys:
        """Return the keys of a type of fixed width from their words, shape (word_count, n), C-contiguous."""
        assert self.fixed and len(words) == self.word_count
        return Keys(self, words.shape[1], words=words)

    def from_canonical(self, keys: pa.Array, hashes: NDArray[np.uint64] | None = None) -> Keys:
        """Return keys from their canonical bytes (large_binary), and their hashes if those are known."""
        columns = tuple(codec.decode(keys, self.types)) if self.fixed else None
        return Keys(self, len(keys), columns=columns, canonical=keys, hashes=hashes)

    def decode(self, keys: Keys) -> list[pa.Array]:
        """Return the columns of the keys."""
        if not self.fixed:
            return codec.decode(keys.canonical(), self.types)
        return list(keys.columns())

    def empty(self) -> Keys:
        """Return no keys."""
        return self.encode([pa.array([], kind) for kind in self.types])

    @cached_property
    def routed(self) -> KeyType:
        """The columns that decide the key group."""
        if not self.unrouted and not self.suffix:
            return self
        part = self.routed_part
        return KeyType(self.names[part], self.types[part], self.nullable[part])

    @property
    def routed_part(self) -> slice:
        """Where the columns are that decide the key group."""
        return slice(self.unrouted, len(self.types) - self.suffix)


class Keys:
    """The keys of one batch, immutable. Made by a KeyType.

    Those of fixed width are Arrow columns or words, whichever they were made from; others are canonical bytes. Each
    form that is asked for is computed once, on any thread.
    """

    __slots__ = ("_canonical", "_columns", "_hashes", "_length", "_words", "type")

    def __init__(
        self,
        key_type: KeyType,
        length: int,
        *,
        columns: tuple[pa.Array, ...] | None = None,
        words: NDArray[np.int64] | None = None,
        canonical: pa.Array | None = None,
        hashes: NDArray[np.uint64] | None = None,
    ) -> None:
        assert key_type.fixed or canonical is not None
        self.type, self._length = key_type, length
        self._columns, self._words, self._canonical, self._hashes = columns, words, canonical, hashes

    def __len__(self) -> int:
        return self._length

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The hash of every key, shape (n,)."""
        if self._hashes is None:
            self._hashes = _hashes(self)
        return self._hashes

    @property
    def ints(self) -> NDArray[np.int64] | None:
        """The integers of an injective key type, else None."""
        return self.leading() if self.type.injective else None

    def leading(self) -> NDArray[np.int64]:
        """Return the first column, shape (n,); it must be an integer or time, and never null."""
        if self._columns is not None and codec.is_integral(self.type.types[0]):
            return codec.ints_of(self._columns[0])
        if self.type.fixed:
            first: NDArray[np.int64] = self.words()[0]
            return first
        return codec.leading_ints(self.canonical())

    def columns(self) -> tuple[pa.Array, ...]:
        """Return the columns of keys of fixed width."""
        if self._columns is None:
            words, kinds, nullable = self.words(), self.type.types, self.type.nullable
            nulls = words[-1] if any(nullable) else np.zeros(self._length, np.int64)
            self._columns = tuple(
                codec.from_words(words[i], kind, (nulls >> i & 1) != 0 if nullable[i] else None)
                for i, kind in enumerate(kinds)
            )
        return self._columns

    def words(self) -> NDArray[np.int64]:
        """Return keys of fixed width as words, shape (word_count, n): a null is 0, and its bit is set in the last."""
        if self._words is None:
            assert self._columns is not None
            words = np.zeros((self.type.word_count, self._length), np.int64)
            for i, column in enumerate(self._columns):
                words[i] = codec.words_of(column)
                if column.null_count:
                    words[-1] |= column.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << i
            self._words = words
        return self._words

    def word_columns(self) -> list[NDArray[np.int64]]:
        """Return contiguous words of keys of fixed width, one array per column, not copied if they need not be.

        An array of null bits comes last if any value is null.
        """
        if self._columns is None or any(column.null_count for column in self._columns):
            return list(self.words())
        return [np.ascontiguousarray(codec.words_of(column)) for column in self._columns]

    def canonical(self) -> pa.Array:
        """Return the canonical bytes, large_binary."""
        if self._canonical is None:
            self._canonical = codec.encode(self.columns()) if self._words is None else self._from_words(self._words)
        return self._canonical

    def _from_words(self, words: NDArray[np.int64]) -> pa.Array:
        """Return the canonical bytes of words, which mostly come from records: their kernels are loaded."""
        if self._length < COMPILED_FROM:
            return codec.encode(self.columns())
        from holdfast.state.keys import hashing  # imports the compiler, which few commands need

        kinds = self.type.types
        return codec.from_matrix(hashing.canonical_of(list(words), kinds, self._length, codec.width_of(kinds)))

    def take(self, indices: NDArray[np.int64]) -> Keys:
        """Return the keys at these rows."""
        if self.type.fixed:
            words = np.ascontiguousarray(self.words().take(indices, axis=1))
            return Keys(self.type, len(indices), words=words)
        hashes = None if self._hashes is None else self._hashes[indices]
        return Keys(self.type, len(indices), canonical=self.canonical().take(pa.array(indices)), hashes=hashes)

    def key_groups(self, count: int) -> NDArray[np.uint16]:
        """Return the key group of every key."""
        routed_keys = self.routed()
        if not routed_keys.type.injective:
            return key_groups_of(routed_keys.hashes, count)
        if self._length < COMPILED_FROM:
            return key_groups_of(splitmix64(routed_keys.leading()), count)
        from holdfast.state.keys import hashing  # imports the compiler, which few commands need

        check_count(count)
        return hashing.key_groups_of_ints(routed_keys.leading(), count)

    def order(self, key_groups: NDArray[np.uint16]) -> NDArray[np.int64]:
        """Return the indices that sort by (key group, canonical bytes)."""
        parts = (order for _, order in self.order_in_parts(key_groups, max(1, self._length)))
        return np.concatenate([np.empty(0, np.int64), *parts])

    def order_in_parts(
        self, key_groups: NDArray[np.uint16], rows_max: int
    ) -> Iterator[tuple[NDArray[np.uint16], NDArray[np.int64]]]:
        """Yield the result of order(), at most `rows_max` indices at a time, and their key groups before them."""
        if not self.type.fixed:
            table = pa.table({"group": key_groups, "key": self.canonical()})
            indices = pc.sort_indices(table, sort_keys=[("group", "ascending"), ("key", "ascending")])
            order = np.asarray(indices.to_numpy(), np.int64)
            for first in range(0, self._length, rows_max):
                part = order[first : first + rows_max]
                yield key_groups[part], part
            return
        from holdfast.state.keys import ordering  # imports the compiler, which few commands need

        words, columns, flips = self.words(), list[NDArray[np.int64]](), list[int]()
        for i, kind in enumerate(self.type.types):
            if self.type.nullable[i]:  # nulls are zeros and come first
                columns.append(((words[-1] >> i & 1) == 0).astype(np.int64))
                flips.append(0)
            columns.append(words[i])
            flips.append(0 if pa.types.is_uint64(kind) else _SIGN)
        yield from ordering.sorted_parts(columns, flips, key_groups, rows_max)

    def routed(self) -> Keys:
        """Return the columns of the keys that decide the key group."""
        kind, part = self.type, self.type.routed_part
        if kind.routed is kind:
            return self
        if self._columns is not None:
            return kind.routed.encode(self._columns[part])
        if kind.fixed:
            words = self.words()[part]
            if any(kind.routed.nullable):
                nulls = (self.words()[-1] >> part.start) & ((1 << (part.stop - part.start)) - 1)
                words = np.concatenate([words, nulls[None]])
            return kind.routed.from_words(words)
        if any(codec.is_textual(each) for each in kind.types[part.stop :]):
            return kind.routed.encode(codec.decode(self.canonical(), kind.types)[part])
        suffix_width = codec.width_of(kind.types[part.stop :])
        return kind.routed.from_canonical(codec.trimmed(self.canonical(), kind.unrouted_width, suffix_width))


def _hashes(keys: Keys) -> NDArray[np.uint64]:
    """Hash canonical keys; a single integer column by its values, except for its null."""
    kinds = keys.type.types
    if len(kinds) > 1 or not codec.is_integral(kinds[0]):
        if not keys.type.fixed or codec.width_of(kinds) > FIXED_BYTES_MAX:
            return xxh3_of(keys.canonical())
        from holdfast.state.keys import hashing  # imports the compiler, which few commands need

        return hashing.hashes_of(keys.word_columns(), kinds, len(keys))
    words = keys.words()
    hashes = splitmix64(words[0])
    if keys.type.nullable[0] and (null := words[1] != 0).any():
        hashes[null] = xxh3_of(pa.array([b"\x00" * 9], pa.large_binary()))[0]
    return hashes
