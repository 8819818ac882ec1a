"""What every aggregate function must give, in plain Python over a list of rows; shares no code with the functions.

A function that is registered needs a line here: the tests of all functions iterate over the registry.
"""

from __future__ import annotations

import math
import statistics
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import xxhash

import holdfast as hf

Rows = Sequence[tuple[Any, Any]]
"""The value and the `by` of every row that counts; rows without a value are left out."""
CALLS: dict[str, Callable[..., Any]] = {
    "count": lambda **more: hf.count("v", **more),
    "sum": lambda **more: hf.sum("v", **more),
    "min": lambda **more: hf.min("v", **more),
    "max": lambda **more: hf.max("v", **more),
    "mean": lambda **more: hf.mean("v", **more),
    "var": lambda **more: hf.var("v", **more),
    "first": lambda **more: hf.first("v", by="by", **more),
    "last": lambda **more: hf.last("v", by="by", **more),
    "top": lambda **more: hf.top("v", 3, by="by", **more),
    "collect": lambda **more: hf.collect("v", **more),
    "distinct": lambda **more: hf.distinct("v", **more),
    "approx_distinct": lambda **more: hf.approx_distinct("v", **more),
    "quantile": lambda **more: hf.quantile("v", 0.7, **more),
    "member": lambda **more: hf.member("v", expected=50, **more),
}
"""How a test calls each function on a column `v`, ordered by a column `by`."""


def rank(value: Any) -> tuple[bool, Any]:
    """Order values with NaN behind all others."""
    return (True, 0) if _nan(value) else (False, value)


def same(name: str, found: Any, wanted: Any) -> bool:
    """Return whether a result is the oracle's, as closely as the function promises."""
    if name == "member" and isinstance(found, bytes) and isinstance(wanted, list):
        return _bits_set(found) == {bit for value in wanted for bit in _bits(found, value)}
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(same(name, a, b) for a, b in zip(found, wanted, strict=True))
    if not isinstance(found, float) or not isinstance(wanted, float | int):
        return type(found) is type(wanted) and found == wanted
    if math.isnan(found) or math.isnan(wanted):
        return math.isnan(found) and math.isnan(wanted)
    tolerance = 1 / 128 if name == "quantile" else 1e-9
    return found == wanted or math.isclose(found, wanted, rel_tol=tolerance, abs_tol=1e-9)


def expected(name: str, rows: Rows, k: int = 3) -> Any:
    """Return the result of a function over rows; of `top`, the first k values."""
    values = [value for value, _ in rows]
    if not values:
        return 0 if name in ("count", "distinct", "approx_distinct") else None
    found = _ORACLES[name](values, rows)
    return found[:k] if name == "top" else found


def _nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _mean(values: list[Any]) -> Any:
    if not isinstance(values[0], Decimal):
        return sum(values) / len(values)
    whole = Context(prec=80, rounding=ROUND_HALF_EVEN)
    scale = -int(values[0].as_tuple().exponent)
    return whole.quantize(whole.divide(sum(values), Decimal(len(values))), Decimal(1).scaleb(-scale - 4))


def _var(values: list[Any]) -> Any:
    if len(values) < 2:
        return None
    return math.nan if any(map(_nan, values)) else float(statistics.variance(map(float, values)))


def _extreme(pick: Callable[..., Any], values: list[Any]) -> Any:
    return pick([value for value in values if not _nan(value)], default=math.nan)


def _distinct(values: list[Any]) -> int:
    return len({"nan" if _nan(value) else value for value in values})


def _bits_set(members: bytes) -> set[int]:
    """Return which bits of a filter are set: it lists them, or has all of them."""
    _, _, size, length = struct.unpack_from("<BBQB", members)
    kept = members[11 + length :]
    if len(kept) == size // 8:
        return {bit for bit in range(size) if kept[bit // 8] >> bit % 8 & 1}
    return set(struct.unpack(f"<{len(kept) // 4}I", kept))


def _bits(members: bytes, value: Any) -> set[int]:
    """Return the bits that a value sets, by two hashes."""
    _, per_value, size, length = struct.unpack_from("<BBQB", members)
    first = _hash(value, members[11 : 11 + length].decode())
    step = _mixed(first) | 1
    return {(first + n * step) % 2**64 % size for n in range(per_value)}


def _hash(value: Any, kind: str) -> int:
    """Return the hash of a value: of text and bytes xxh3 of the form that keys have, of all others mixed words."""
    unit = {"us": timedelta(microseconds=1), "ms": timedelta(milliseconds=1)}
    match value:
        case str() | bytes():
            raw = value.encode() if isinstance(value, str) else value
            return int(xxhash.xxh3_64_intdigest(b"\x01" + raw.replace(b"\0", b"\0\xff") + b"\0"))
        case Decimal():
            whole = int(value.scaleb(2)) % 2**128
            return _mixed(_mixed(whole % 2**64) ^ whole >> 64)
        case float():
            return _mixed(struct.unpack("<Q", struct.pack("<d", math.nan if _nan(value) else value + 0.0))[0])
        case datetime():
            return _mixed((value - datetime.fromtimestamp(0, value.tzinfo)) // unit[kind[10:12]])
        case date():
            return _mixed((value - date(1970, 1, 1)).days)
        case timedelta():
            return _mixed(value // unit[kind[9:11]])
    return _mixed(int(value))


def _mixed(word: int) -> int:
    """Return the next output of SplitMix64 with this state."""
    word = (word + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def _picked(pick: Callable[..., Any], rows: Rows) -> Any:
    return pick(rows, key=lambda row: (rank(row[1]), rank(row[0])))[0]


_ORACLES: dict[str, Callable[[list[Any], Rows], Any]] = {
    "count": lambda values, rows: len(values),
    "sum": lambda values, rows: sum(values),
    "min": lambda values, rows: _extreme(min, values),
    "max": lambda values, rows: _extreme(max, values),
    "mean": lambda values, rows: _mean(values),
    "var": lambda values, rows: _var(values),
    "first": lambda values, rows: _picked(min, rows),
    "last": lambda values, rows: _picked(max, rows),
    "top": lambda values, rows: [
        value for value, _ in sorted(rows, key=lambda row: (rank(row[1]), rank(row[0])), reverse=True)
    ],
    "collect": lambda values, rows: sorted(values, key=rank),
    "distinct": lambda values, rows: _distinct(values),
    # With so few values a sketch is exact, but for a collision of registers, which the values of the tests avoid.
    "approx_distinct": lambda values, rows: _distinct(values),
    "member": lambda values, rows: values,
    "quantile": lambda values, rows: float(sorted(values, key=rank)[math.floor(0.7 * (len(values) - 1))]),
}
