"""Arithmetic, comparisons and logic of expressions over whole columns, without a query engine.

Polars plans and starts a query for each batch, which takes a tenth of a millisecond, also for ten rows. Most filters
and projections consist of expressions that are a few calls of numpy, each of about a microsecond. `compiled` returns
None for all others, and a function raises `NeedsQuery` for values to which Polars gives another meaning: nulls, and
NaN in a comparison.

Invariants
    - A result equals that of Polars, bit for bit, but for the sign and payload of NaN.

Pure.
Source: docs/decisions/0134-small-batches-without-a-query.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

INT64 = range(-(1 << 63), 1 << 63)
Values = Any
"""A numpy array of integers, floats or booleans, an Arrow array of text, or the value of a literal."""
Columns = Mapping[str, pa.Array]
Compute = Callable[[Columns], Values]

_ARITHMETIC: Mapping[str, Callable[[Values, Values], Values]] = {
    "Plus": np.add,
    "Minus": np.subtract,
    "Multiply": np.multiply,
}
_COMPARISONS: Mapping[str, tuple[Callable[[Values, Values], Values], Callable[[Values, Values], Values]]] = {
    "Gt": (np.greater, pc.greater),
    "GtEq": (np.greater_equal, pc.greater_equal),
    "Lt": (np.less, pc.less),
    "LtEq": (np.less_equal, pc.less_equal),
    "Eq": (np.equal, pc.equal),
    "NotEq": (np.not_equal, pc.not_equal),
}
"""For numbers, and for text."""
_LOGIC: Mapping[str, Callable[[Values, Values], Values]] = {"And": np.logical_and, "Or": np.logical_or}


class NeedsQuery(Exception):
    """Values that only Polars computes."""


@dataclass(frozen=True)
class Compiled:
    """A function on columns.

    Args:
        kind: Type of the result: pa.int64(), pa.float64(), pa.bool_() or pa.string().
        varies: Whether the result depends on the row; that of a literal does not.
    """

    kind: pa.DataType
    compute: Compute
    varies: bool = True


def compiled(expr: pl.Expr, schema: pa.Schema) -> Compiled | None:
    """Return a function that computes this expression over columns of the schema; None if only Polars can."""
    try:
        tree = json.loads(expr.meta.undo_aliases().meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, TypeError, ValueError):
        return None
    node = _node(tree, schema)
    return node if node is not None and node.varies else None


def as_array(values: Values, kind: pa.DataType) -> pa.Array:
    """Return the result of a compiled function as an Arrow array."""
    if kind == pa.bool_():
        return pa.array(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _node(tree: Any, schema: pa.Schema) -> Compiled | None:
    match tree:
        case {"Column": str(name)}:
            return _column(name, schema)
        case {"Literal": literal}:
            return _literal(literal)
        case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
            return _applied(_node(inner, schema), np.logical_not, (pa.bool_(),))
        case {"Function": {"input": [inner], "function": "Negate"}}:
            return _applied(_node(inner, schema), np.negative, (pa.int64(), pa.float64()))
        case {"BinaryExpr": {"left": left, "op": str(op), "right": right}}:
            first, second = _node(left, schema), _node(right, schema)
            if first is not None and second is not None and (first.varies or second.varies):
                return _pair(op, first, second)
    return None


def _column(name: str, schema: pa.Schema) -> Compiled | None:
    kind = schema.field(name).type if name in schema.names else None
    if kind == pa.int64() or kind == pa.float64():
        dtype = np.int64 if kind == pa.int64() else np.float64
        return Compiled(kind, lambda columns: _numbers(columns[name], dtype))
    if kind == pa.bool_():
        return Compiled(kind, lambda columns: _whole(columns[name]).to_numpy(zero_copy_only=False))
    if kind == pa.string():
        return Compiled(kind, lambda columns: _whole(columns[name]))
    return None


def _whole(column: pa.Array) -> pa.Array:
    if column.null_count:
        raise NeedsQuery
    return column


def _numbers(column: pa.Array, dtype: type) -> Values:
    """Return what to_numpy returns, which gives the interpreter away and waits for other threads to get it back."""
    start, data = _whole(column).offset, column.buffers()[1]
    return np.frombuffer(data, dtype, start + len(column))[start:] if len(column) else np.empty(0, dtype)


def _literal(literal: Any) -> Compiled | None:
    match literal:
        case {"Dyn": {"Int": int(value)}} | {"Scalar": {"Int64": int(value)}} if value in INT64:
            return _constant(pa.int64(), np.int64(value))
        case {"Dyn": {"Float": float(value)}} | {"Scalar": {"Float64": float(value)}}:
            return _constant(pa.float64(), np.float64(value))
        case {"Scalar": {"String": str(value)}}:
            return _constant(pa.string(), pa.scalar(value))
    return None


def _constant(kind: pa.DataType, value: Values) -> Compiled:
    return Compiled(kind, lambda _columns: value, varies=False)


def _applied(
    inner: Compiled | None, apply: Callable[[Values], Values], kinds: tuple[pa.DataType, ...]
) -> Compiled | None:
    if inner is None or not inner.varies or inner.kind not in kinds:
        return None
    compute = inner.compute
    return Compiled(inner.kind, lambda columns: apply(compute(columns)))


def _pair(op: str, first: Compiled, second: Compiled) -> Compiled | None:
    left, right, kinds = first.compute, second.compute, {first.kind, second.kind}
    numbers = kinds <= {pa.int64(), pa.float64()}
    if numbers and op in _ARITHMETIC:
        if pa.float64() in kinds and op != "Multiply" and _has_zero(first, second):
            return None  # Polars leaves -0.0 as it is where 0 is added, and takes 0 - x for -x
        apply = _ARITHMETIC[op]
        kind = pa.float64() if pa.float64() in kinds else pa.int64()
        return Compiled(kind, lambda columns: apply(left(columns), right(columns)))
    if numbers and op == "TrueDivide":
        if not second.varies:
            with np.errstate(all="ignore"):
                inverse = np.true_divide(1.0, right({}))  # so does Polars, for more rows than one
            return Compiled(pa.float64(), lambda columns: np.multiply(left(columns), inverse))
        return Compiled(pa.float64(), lambda columns: np.true_divide(left(columns), right(columns)))
    if numbers and op in _COMPARISONS:
        compare, floats = _COMPARISONS[op][0], pa.float64() in kinds
        return Compiled(pa.bool_(), lambda columns: _compared(compare, left(columns), right(columns), floats))
    if kinds == {pa.string()} and op in _COMPARISONS:
        of_text = _COMPARISONS[op][1]
        return Compiled(
            pa.bool_(), lambda columns: of_text(left(columns), right(columns)).to_numpy(zero_copy_only=False)
        )
    if kinds == {pa.bool_()} and op in _LOGIC:
        join = _LOGIC[op]
        return Compiled(pa.bool_(), lambda columns: join(left(columns), right(columns)))
    return None


def _has_zero(*sides: Compiled) -> bool:
    return any(not side.varies and side.compute({}) == 0 for side in sides)


def _compared(compare: Callable[[Values, Values], Values], left: Values, right: Values, floats: bool) -> Values:
    if floats:
        for side in (left, right):
            if side.dtype == np.float64 and np.isnan(side).any():
                raise NeedsQuery  # for Polars NaN equals NaN, and is above all other numbers
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    return compare(left, right)
