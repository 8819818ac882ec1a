"""Keys of one batch: hashes for the index and the key groups, canonical bytes to distinguish keys.

A single integer, timestamp or date column whose schema forbids nulls takes the fast path: its
hash is splitmix64, a bijection, so equal hashes mean equal keys and bytes are never compared.
Every other key type hashes its canonical bytes with xxh3-64 and is verified against stored keys.
A nullable integer column hashes its values like the fast path, so that making a column nullable
moves no key; only its null is hashed by xxh3.
Leading columns may be *unrouted*: the end of a window orders and distinguishes the rows of a
window operator, but the key alone must decide the key group.

Invariants
    - Equal keys have equal hashes, on every machine and in every version (golden values).
    - Keys are immutable; derived values are computed at first use, on any thread.

Pure: no clock, thread or I/O.
Source: DESIGN sections 5 and 13; xxHash specification (xxh3-64, seed 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import ConfigError
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.keygroups import key_groups_of, splitmix64, splitmix64_inverse
from holdfast.storage.xxh3 import xxh3_of


@dataclass(frozen=True)
class KeyType:
    """The columns of a key, in order.

    Args:
        names: One name per column.
        types: Integers, bool, date32, timestamp, utf8, large_utf8, binary, large_binary.
        nullable: One flag per column; empty means that no column may hold nulls.
        unrouted: How many leading columns, all of fixed width, do not affect the key group.

    Raises:
        ConfigError: a type cannot be part of a key.
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    nullable: tuple[bool, ...] = ()
    unrouted: int = 0

    def __post_init__(self) -> None:
        if not self.nullable:
            object.__setattr__(self, "nullable", (False,) * len(self.types))
        assert self.types and len(self.names) == len(self.types) == len(self.nullable)
        assert 0 <= self.unrouted < len(self.types)
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
    def of(cls, fields: Iterable[pa.Field], unrouted: int = 0) -> KeyType:
        """Return the key type of these schema fields."""
        columns = tuple(fields)
        return cls(
            tuple(column.name for column in columns),
            tuple(column.type for column in columns),
            tuple(column.nullable for column in columns),
            unrouted,
        )

    @cached_property
    def injective(self) -> bool:
        """Return whether equal hashes mean equal keys."""
        return len(self.types) == 1 and codec.is_integral(self.types[0]) and not self.nullable[0]

    @property
    def unrouted_width(self) -> int:
        """Return with how many bytes the unrouted columns begin every canonical key."""
        return sum(2 if pa.types.is_boolean(column) else 9 for column in self.types[: self.unrouted])

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
        if self.injective:
            return self.from_ints(codec.ints_of(arrays[0]))
        return self.from_canonical(codec.encode(arrays), ints=self._plain_ints(arrays))

    def from_ints(self, values: NDArray[np.int64]) -> Keys:
        """Return the keys of an injective type from their integers."""
        assert self.injective
        return Keys(self, splitmix64(values), ints=values)

    def from_canonical(self, keys: pa.Array, ints: pa.Array | None = None) -> Keys:
        """Return keys from their canonical bytes (large_binary)."""
        if self.injective:
            return self.from_ints(codec.ints_of(codec.decode(keys, self.types)[0]))
        return Keys(self, _hashes(self, keys, ints), canonical=keys)

    def deferred(
        self, length: int, hashes: Callable[[], NDArray[np.uint64]], canonical: Callable[[], pa.Array] | None
    ) -> Keys:
        """Return keys that are read at first use; injective types need no bytes."""
        assert self.injective == (canonical is None)
        return Keys(self, hashes, canonical=canonical, length=length)

    def decode(self, keys: Keys) -> list[pa.Array]:
        """Return the columns of the keys."""
        if self.injective:
            assert keys.ints is not None
            return [codec.from_ints(keys.ints, self.types[0])]
        return codec.decode(keys.canonical(), self.types)

    def empty(self) -> Keys:
        """Return no keys."""
        return self.encode([pa.array([], kind) for kind in self.types])

    def _plain_ints(self, arrays: Sequence[pa.Array]) -> pa.Array | None:
        return arrays[0] if len(arrays) == 1 and codec.is_integral(arrays[0].type) else None


class Keys:
    """The keys of one batch, immutable. Made by a KeyType."""

    __slots__ = ("_canonical", "_hashes", "_ints", "_length", "type")

    def __init__(
        self,
        key_type: KeyType,
        hashes: NDArray[np.uint64] | Callable[[], NDArray[np.uint64]],
        *,
        ints: NDArray[np.int64] | None = None,
        canonical: pa.Array | Callable[[], pa.Array] | None = None,
        length: int | None = None,
    ) -> None:
        self.type = key_type
        self._hashes = hashes
        self._length = length
        self._ints = ints
        self._canonical: Any = canonical

    def __len__(self) -> int:
        return len(self.hashes) if self._length is None else self._length

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """The hash of every key, shape (n,)."""
        hashes = self._hashes  # read once, as below
        if callable(hashes):
            hashes = self._hashes = hashes()
        return hashes

    @property
    def ints(self) -> NDArray[np.int64] | None:
        """The integers of an injective key type, else None."""
        if self._ints is None and self.type.injective:
            self._ints = splitmix64_inverse(self.hashes)
        return self._ints

    def canonical(self) -> pa.Array:
        """Return the canonical bytes, large_binary."""
        keys = self._canonical  # read once: another thread may replace the call by the bytes
        if keys is None:
            assert self.ints is not None
            keys = codec.from_matrix(codec.encode_ints(self.ints, self.type.types[0]))
        elif callable(keys):
            keys = keys()
        self._canonical = keys
        return keys

    def take(self, indices: NDArray[np.int64]) -> Keys:
        """Return the keys at these rows."""
        if self.type.injective:
            ints = None if self._ints is None else self._ints[indices]
            return Keys(self.type, self.hashes[indices], ints=ints)
        return Keys(self.type, self.hashes[indices], canonical=lambda: self.canonical().take(pa.array(indices)))

    def key_groups(self, count: int) -> NDArray[np.uint16]:
        """Return the key group of every key."""
        return key_groups_of(self._routing_hashes(), count)

    def order(self, key_groups: NDArray[np.uint16]) -> NDArray[np.int64]:
        """Return the indices that sort by (key group, canonical bytes)."""
        ints = self.ints
        if ints is None:
            table = pa.table({"group": key_groups, "key": self.canonical()})
            indices = pc.sort_indices(table, sort_keys=[("group", "ascending"), ("key", "ascending")])
            return np.asarray(indices.to_numpy(), np.int64)
        by_key = np.argsort(ints.view(np.uint64) if pa.types.is_uint64(self.type.types[0]) else ints)
        # A stable sort of 16-bit numbers is a radix sort: two passes beat one sort of pairs.
        return by_key[np.argsort(key_groups[by_key], kind="stable")]

    def _routing_hashes(self) -> NDArray[np.uint64]:
        if not self.type.unrouted:
            return self.hashes
        kind = self.type
        routed = KeyType(kind.names[kind.unrouted :], kind.types[kind.unrouted :], kind.nullable[kind.unrouted :])
        return routed.from_canonical(codec.without_first(self.canonical(), kind.unrouted_width)).hashes


def _hashes(kind: KeyType, keys: pa.Array, ints: pa.Array | None) -> NDArray[np.uint64]:
    """Hash canonical keys; a single nullable integer column like the fast path, except for its null."""
    if len(kind.types) > 1 or not codec.is_integral(kind.types[0]):
        return xxh3_of(keys)
    column = codec.decode(keys, kind.types)[0] if ints is None else ints
    hashes = splitmix64(codec.ints_of(column))
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        hashes[null] = xxh3_of(pa.array([b"\x00" * 9], pa.large_binary()))[0]
    return hashes
