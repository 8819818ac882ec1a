"""How the state of an operator is shown: under the names and types of its results, from its identity alone.

The identity is stored with every checkpoint (docs/decisions/0024), so the job's code is not needed. Aggregates are
shown by their values, windows with start and end, the clock of an operator per key group. Other state, and state of
versions that kept no identity, is shown by its own columns.

Pure.
Source: docs/decisions/0037-state-inspection.md; API.md (result columns).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.checkpoint.manifest import OperatorState
from holdfast.model import NEVER_US
from holdfast.runtime.functions.aggregation import BoundAggregation, function_of, rebound, state_columns
from holdfast.runtime.functions.registry import KINDS
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.plan.fields import kept_fields
from holdfast.runtime.time.windows import (
    CLOCK_COLUMNS,
    CLOCK_KEY,
    TIME,
    TIME_FIRST_US,
    TIME_LAST_US,
    WINDOW_END,
    WINDOW_START,
)
from holdfast.state.blocks import StateRows
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.spec import TableSpec, column_of_type
from holdfast.state.tables.values import arrow

_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_ALIASES = {"date32[day]": pa.date32(), "date64[ms]": pa.date64()}

Compute = Callable[[StateRows, Sequence[pa.Array]], pa.Array]
"""Makes one shown column from rows and their decoded key columns."""


@dataclass(frozen=True)
class View:
    """The shown columns of one operator.

    Args:
        name: The operator.
        number: Its number, which begins its keys in storage.
        key: Its key type; of unknown nullability, which moves no key, every column is nullable.
        keys: The shown columns that belong to the key; the others are values.
        schema: The shown columns, keys first.
    """

    name: str
    number: int
    key: KeyType
    keys: tuple[str, ...]
    schema: pa.Schema
    compute: tuple[Compute, ...]
    spec: TableSpec
    """The declaration of its state."""

    @property
    def values(self) -> tuple[str, ...]:
        """Return the shown columns that are not keys."""
        return tuple(name for name in self.schema.names if name not in self.keys)

    @property
    def routed(self) -> KeyType:
        """Return the columns of the key by which a user names it: without the end of a window."""
        return self.key.routed

    def table(self, rows: StateRows) -> pa.RecordBatch:
        """Return rows as they are shown."""
        keys = rows.key_columns()
        return pa.RecordBatch.from_arrays([each(rows, keys) for each in self.compute], schema=self.schema)


def view_of(operator: OperatorState) -> View:
    """Return how the state of an operator is shown."""
    schema, identity = operator.schema, operator.schema.get("identity", {})
    key = _key_of(schema, identity)
    if _is_clock(operator):
        columns = [_group(), _time(CLOCK_COLUMNS[0].name)]
        return _view(operator, key, columns[:1], columns[1:])
    keys = [_key(key, at) for at in range(key.unrouted, len(key.names))]
    ends = [_key(key, at) for at in range(key.unrouted)]
    over = [_time(WINDOW_END)] if key.suffix else []
    aggregates = identity.get("aggregates", [])
    times = identity.get("times", schema.get("times", []))
    raw = {name: kind for name, kind in schema["columns"] if name not in key.names}
    if not aggregates:
        return _view(operator, key, ends + keys, [_time(n) if n in times else _raw(n, kind) for n, kind in raw.items()])
    window = identity.get("window", {})
    if "every_us" in window:
        ends = [_named(SLICE_START, _window_start(window["every_us"])), *(_named(SLICE_END, end) for end in ends)]
    elif (size_us := window.get("size_us")) is not None:
        ends = [_window_start(size_us), *ends]
    values = [columns for each in aggregates for columns in _aggregate(each, raw)]
    return _view(operator, key, keys + ends, [*over, *values])


def type_of(text: str) -> pa.DataType:
    """Return the Arrow type that `str` shows as this text."""
    if (match := _TIMESTAMP.fullmatch(text)) is not None:
        return pa.timestamp(match[1], match[2])
    if (match := _DECIMAL.fullmatch(text)) is not None:
        return pa.decimal128(int(match[1]), int(match[2]))
    return _ALIASES[text] if text in _ALIASES else pa.type_for_alias(text)


_Shown = tuple[pa.Field, Compute]
SLICE_START, SLICE_END = "slice_start", "slice_end"
"""Windows that overlap share the state of slices (docs/decisions/0062-slices.md)."""


def _view(operator: OperatorState, key: KeyType, keys: list[_Shown], values: list[_Shown]) -> View:
    fields = [field for field, _ in keys + values]
    names = tuple(field.name for field, _ in keys)
    compute = tuple(each for _, each in keys + values)
    return View(operator.name, operator.id, key, names, pa.schema(fields), compute, _spec_of(operator, key))


def _spec_of(operator: OperatorState, key: KeyType) -> TableSpec:
    """Return the declaration of an operator's state as of its checkpoint."""
    fields, described = kept_fields(operator.schema), operator.schema
    aggregates = [each for each in described.get("identity", {}).get("aggregates", ()) if function_of(each) in KINDS]
    known = {column.name: column for each in aggregates for column in state_columns(_bound(each))}
    columns = [known.get(name, column_of_type(name, kind)) for name, kind in described["columns"]]
    declared = tuple(
        replace(column, id=fields.ids[column.name], late=fields.ids[column.name] in fields.late) for column in columns
    )
    return TableSpec(operator.id, operator.name, key, declared, fields.past)


def _key_of(described: Mapping[str, Any], identity: Mapping[str, Any]) -> KeyType:
    names, types = zip(*((name, type_of(kind)) for name, kind in described["key"]), strict=True)
    key_columns = identity.get("key")
    # Versions without an identity recorded the windows as text.
    suffix = identity.get("suffix", 0)
    before = described.get("unrouted", int("window" in described))
    unrouted_count = before if key_columns is None else len(names) - len(key_columns) - suffix
    known = {each["column"]: each["nullable"] for each in key_columns or ()}
    routed_part = range(unrouted_count, len(names) - suffix)
    nullable = tuple(at in routed_part and known.get(name, True) for at, name in enumerate(names))
    return KeyType(names, types, nullable, unrouted_count, suffix)


def _is_clock(operator: OperatorState) -> bool:
    names = [[each[0] for each in operator.schema[part]] for part in ("key", "columns")]
    return is_part(operator.name) and names == [list(CLOCK_KEY.names), [each.name for each in CLOCK_COLUMNS]]


def _key(key: KeyType, at: int) -> _Shown:
    return pa.field(key.names[at], key.types[at], key.nullable[at]), lambda rows, keys: keys[at]


def _group() -> _Shown:
    """Return the key group itself, whose row has an arbitrary key in it."""
    field = pa.field(CLOCK_KEY.names[0], pa.int64(), nullable=False)
    return field, lambda rows, keys: pa.array(rows.groups.astype(np.int64))


def _named(name: str, shown: _Shown) -> _Shown:
    return shown[0].with_name(name), shown[1]


def _window_start(size_us: int) -> _Shown:
    field = pa.field(WINDOW_START, TIME, nullable=False)
    return field, lambda rows, keys: pa.array(keys[0].view(pa.int64()).to_numpy() - size_us).view(TIME)


def _raw(name: str, type_name: str) -> _Shown:
    column = column_of_type(name, type_name)
    return pa.field(name, column.arrow, column.nullable), lambda rows, keys: arrow(rows.columns[name])


def _time(name: str) -> _Shown:
    """Return event time in microseconds: null before the first record, the end of year 9999 after the last."""

    def times(rows: StateRows, keys: Sequence[pa.Array]) -> pa.Array:
        values = rows.columns[name]
        return pa.array(np.clip(values, TIME_FIRST_US, TIME_LAST_US), mask=values == NEVER_US).view(TIME)

    return pa.field(name, TIME), times


def _aggregate(described: Mapping[str, Any], raw: Mapping[str, str]) -> list[_Shown]:
    """Return an aggregate's value; the state itself, if its function is the user's or of another version."""
    if function_of(described) in KINDS:
        return [_result(described)]
    return [_raw(name, kind) for name, kind in raw.items() if name.startswith(f"{described['name']}.")]


def _result(described: Mapping[str, Any]) -> _Shown:
    """Return an aggregate's value, computed as the operator computes it."""
    aggregate = _bound(described)

    def results(rows: StateRows, keys: Sequence[pa.Array]) -> pa.Array:
        return aggregate.function.results({role: rows.columns[stored] for role, stored in aggregate.state.items()})

    return aggregate.result, results


def _bound(described: Mapping[str, Any]) -> BoundAggregation:
    """Return an aggregate, bound to the inputs that it had."""
    given = [each for part in ("input", "by") if (each := described.get(part)) is not None]
    fields = [pa.field(each["column"], type_of(each["type"]), each["nullable"]) for each in given]
    kind = KINDS[function_of(described)].of(described.get("parameters", {}))
    return rebound(described["name"], kind, fields, "filter" in described)
