"""approx_distinct: about how many different values there are, with HyperLogLog.

A sketch has 4,096 registers, so its standard error is 1.6 %. While fewer than 1,024 registers are set, state is a
sorted list of them; afterwards it is all registers, 4 KiB. A state follows from the set of values alone: order, batches
and merges do not change it.

Integers, times and booleans are hashed by their value, and floats by their bits with one zero and one NaN. Text and
bytes are hashed by the xxh3 of their canonical bytes. The hash is a part of the format of state.

Pure.
Source: Flajolet et al., HyperLogLog, 2007; Ertl, New cardinality estimation algorithms for HyperLogLog sketches, 2017,
algorithm 6 (the estimator); Steele et al., Fast splittable pseudorandom number generators, 2014 (the mixing of words).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.functions.contract import AggregateFunction, Groups, Kind, State, StateColumn
from holdfast.runtime.functions.packed import cut, pieces
from holdfast.runtime.functions.types import as_bytes, canonical, is_decimal, is_kept, plain_dtype
from holdfast.state.keys.batch import KeyType
from holdfast.state.keys.canonical import is_textual

REGISTER_BITS = 12
REGISTERS = 1 << REGISTER_BITS
RANK_BITS = 64 - REGISTER_BITS
LISTED_MAX = REGISTERS // 4
"""A list of as many registers would be as long as all of them."""
GROUPS_MAX = 1_024
"""Sketches that are unpacked together: 4 MiB."""
_ENTRY = np.dtype(np.uint32)
_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_ALPHA = 1 / (2 * np.log(2))
_ROUNDS = 64
"""Terms of the two series of the estimator; they have converged in doubles long before."""


@dataclass(frozen=True)
class ApproxDistinct(Kind):
    """About how many different values there are."""

    name: ClassVar[str] = "approx_distinct"

    def nullable(self, given: bool) -> bool:
        return False

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction | None:
        kind = given[0].type
        return Sketch() if is_kept(kind) else None


@dataclass(frozen=True)
class Sketch(AggregateFunction):
    """A HyperLogLog sketch."""

    result: pa.DataType = pa.int64()

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return {"sketch": StateColumn(pa.large_binary())}

    def partial(self, inputs: Sequence[pa.Array], groups: Groups, count: int) -> State:
        hashes = hashes_of(inputs[0])
        low = hashes & np.uint64((1 << RANK_BITS) - 1)
        ranks = RANK_BITS + 1 - np.frexp(low.astype(np.float64))[1]
        places = groups * REGISTERS + (hashes >> np.uint64(RANK_BITS)).astype(np.int64)
        order = np.argsort(places * REGISTERS + ranks)
        places, ranks = places[order], ranks[order]
        last = np.ones(places.size, np.bool_)
        last[:-1] = places[1:] != places[:-1]
        places, ranks = places[last], ranks[last]
        of = places // REGISTERS
        counts = np.bincount(of, minlength=count)
        if counts.max(initial=0) < LISTED_MAX:
            return {"sketch": _listed(places, ranks, counts)}
        # A list of LISTED_MAX registers would be taken for all of them, so longer ones are merged from shorter ones.
        parts = np.maximum(-(-counts // (LISTED_MAX - 1)), 1)
        sizes = np.full(int(parts.sum()), LISTED_MAX - 1)
        sizes[np.cumsum(parts) - 1] = counts - (parts - 1) * (LISTED_MAX - 1)
        return self.combine({"sketch": _listed(places, ranks, sizes)}, np.repeat(np.arange(count), parts), count)

    def combine(self, states: State, groups: Groups, count: int) -> State:
        packed = [_packed(registers) for registers in _merged(states["sketch"], groups, count)]
        return {"sketch": pa.concat_arrays(packed) if packed else pa.array([], pa.large_binary())}

    def results(self, states: State) -> pa.Array:
        sketches = states["sketch"]
        counts = [_estimates(registers) for registers in _merged(sketches, np.arange(len(sketches)), len(sketches))]
        return pa.array(np.concatenate([np.zeros(0, np.int64), *counts]))


def hashes_of(values: pa.Array) -> NDArray[np.uint64]:
    """Return a hash of each value, the same on every machine."""
    kind = values.type
    if is_textual(kind):
        return KeyType(("value",), (kind,), (False,)).encode([values]).hashes
    if is_decimal(kind):
        words = np.frombuffer(as_bytes(values).buffers()[1], np.uint64, 2 * len(values), 16 * values.offset)
        return _mixed(_mixed(words[0::2]) ^ words[1::2])
    if pa.types.is_boolean(kind):
        return _mixed(values.to_numpy(zero_copy_only=False).astype(np.uint64))
    if pa.types.is_floating(kind):
        return _mixed(canonical(values).to_numpy(zero_copy_only=False).astype(np.float64).view(np.uint64))
    numbers = values.view(pa.from_numpy_dtype(plain_dtype(kind))).to_numpy(zero_copy_only=False)
    return _mixed(numbers.astype(np.int64).view(np.uint64))


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = words + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def _listed(places: NDArray[np.int64], ranks: NDArray[Any], counts: NDArray[np.int64]) -> pa.Array:
    """Return lists of registers, however long, from distinct places in order."""
    entries = ((places % REGISTERS) << 8 | ranks).astype(_ENTRY)
    return cut(entries.view(np.uint8), np.concatenate([[0], np.cumsum(counts)]) * _ENTRY.itemsize)


def _merged(sketches: pa.Array, groups: Groups, count: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the registers of the groups, some groups at a time, shape (groups, REGISTERS)."""
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(0, count + GROUPS_MAX, GROUPS_MAX))
    for part, first in enumerate(range(0, count, GROUPS_MAX)):
        rows = order[bounds[part] : bounds[part + 1]]
        registers = np.zeros((min(GROUPS_MAX, count - first), REGISTERS), np.uint8)
        _merge(registers, sketches.take(pa.array(rows)), groups[rows] - first)
        yield registers


def _merge(registers: NDArray[np.uint8], sketches: pa.Array, groups: Groups) -> None:
    whole = np.asarray(pa.compute.binary_length(sketches).to_numpy(zero_copy_only=False)) == REGISTERS
    lists, of = pieces(sketches.filter(pa.array(~whole)), _ENTRY)
    flat = groups[~whole][of] * REGISTERS + (lists >> np.uint32(8)).astype(np.int64)
    np.maximum.at(registers.reshape(-1), flat, (lists & np.uint32(0xFF)).astype(np.uint8))
    full, _ = pieces(sketches.filter(pa.array(whole)), np.dtype(np.uint8))
    if full.size:
        owners = groups[whole]
        starts = np.flatnonzero(np.concatenate([[True], owners[1:] != owners[:-1]]))
        best = np.maximum.reduceat(full.reshape(-1, REGISTERS), starts, axis=0)
        registers[owners[starts]] = np.maximum(registers[owners[starts]], best)


def _packed(registers: NDArray[np.uint8]) -> pa.Array:
    """Return sketches: lists of the registers that are set, or all of them if the list would be no shorter."""
    counts = np.count_nonzero(registers, axis=1)
    whole = counts >= LISTED_MAX
    sizes = np.where(whole, REGISTERS, counts * _ENTRY.itemsize)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    data = np.zeros(int(offsets[-1]) // _ENTRY.itemsize, _ENTRY)
    rows, places = np.nonzero(np.where(whole[:, None], 0, registers))
    before = np.cumsum(np.where(whole, 0, counts)) - np.where(whole, 0, counts)
    at = offsets[rows] // _ENTRY.itemsize + np.arange(rows.size) - before[rows]
    data[at] = (places << 8 | registers[rows, places]).astype(_ENTRY)
    words = registers[whole].view(_ENTRY)
    data[(offsets[:-1][whole] // _ENTRY.itemsize)[:, None] + np.arange(words.shape[1])] = words
    return cut(data.view(np.uint8), offsets)


def _estimates(registers: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return about how many values each sketch has seen."""
    rows, ranks = registers.shape[0], RANK_BITS + 2
    places = np.arange(rows)[:, None] * ranks + registers
    counts = np.bincount(places.ravel(), minlength=rows * ranks).reshape(rows, ranks)
    z = REGISTERS * _tau(1 - counts[:, -1] / REGISTERS)
    for rank in range(RANK_BITS, 0, -1):
        z = (z + counts[:, rank]) / 2
    with np.errstate(over="ignore"):
        z = z + REGISTERS * _sigma(counts[:, 0] / REGISTERS)
        return np.asarray(np.rint(_ALPHA * REGISTERS * REGISTERS / z), np.int64)


def _sigma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    y, z = 1.0, x.copy()
    for _ in range(_ROUNDS):
        x = x * x
        z = z + x * y
        y += y
    return np.where(x >= 1, np.inf, z)


def _tau(x: NDArray[np.float64]) -> NDArray[np.float64]:
    y, z, argument = 1.0, 1 - x, x
    for _ in range(_ROUNDS):
        x = np.sqrt(x)
        y /= 2
        z = z - (1 - x) ** 2 * y
    return np.where((argument <= 0) | (argument >= 1), 0.0, z / 3)
