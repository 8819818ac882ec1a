"""Aggregates of the user's own, in Python: `hf.Aggregate(init, add, merge, result)`.

State is a dataclass; each of its fields is a column of state, so it is stored as other state is, shown under the names
of its fields, and evolves by field: a field that was added later begins as `init()` has it; one that may be null has to
begin as None, because its column does not distinguish null from no value yet. A key without rows is not stored as a
state: it counts as `init()`.

`add` takes the rows of a key one by one, in the order in which they arrive, which may differ after a failure for rows
of different partitions; `merge` joins states of sessions. So both must not depend on order. The functions must return
the same for the same arguments.

Pure, as far as the user's functions are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.runtime.functions.aggregation import Aggregation
from holdfast.runtime.functions.contract import AggregateFunction, CannotFold, Groups, Kind, State, StateColumn
from holdfast.runtime.functions.types import is_kept, loaded, stored
from holdfast.runtime.functions.users.custom_batches import BatchFunction
from holdfast.runtime.functions.users.user_code import CORRECT_IT, ROWS, UserCode, called, state_of
from holdfast.runtime.rows.forms import bounded, code_hash, name_of
from holdfast.runtime.rows.row_types import RowMaker, special_types
from holdfast.runtime.rows.rows import WrongRow, batch_of_rows
from holdfast.runtime.rows.schema import field_of, schema_of

_MISSING: Any = None
"""Lets a missing argument be refused with a message, in place of Python's TypeError."""


def Aggregate(
    init: Callable[[], Any] = _MISSING,
    add: Callable[..., Any] = _MISSING,
    merge: Callable[[Any, Any], Any] = _MISSING,
    result: Callable[[Any], Any] = _MISSING,
    *,
    to: Any = None,
    columns: Sequence[str] | None = None,
    batches: bool = False,
    filter: Any = None,
) -> Aggregation:
    """An aggregate of your own: `hf.Aggregate(Spread, add, merge, result)`.

    Args:
        init: Returns the state of a key without rows, an instance of a dataclass; usually the dataclass itself.
        add: Takes a state and a row (an `hf.Row`); returns the new state. Nulls are not skipped.
        merge: Takes two states; returns the state of the rows of both.
        result: Takes a state; returns the value of the result column.
        to: Type of the result, such as `float` or `float | None`; by default the annotation of `result`.
        columns: The columns of the rows; by default all columns of the stream.
        batches: The functions work on whole batches: `add(states, rows, groups)` takes a pyarrow.RecordBatch with one
            state per key, one of rows, and the number of the state of each row; `merge` two batches of states, which
            belong together row by row; both return a batch of states. `result` returns an array.
        filter: Only rows for which this expression is true are added.

    Raises:
        ConfigError: an argument is missing or not a function, the state is not a dataclass, or the result has no type.
    """
    functions = {"init": init, "add": add, "merge": merge, "result": result}
    for role, function in functions.items():
        if not callable(function):
            given = "is missing" if function is None else f"is {function!r}, which is not a function"
            raise _refused(f"{role} {given}", "give four functions: hf.Aggregate(init, add, merge, result)")
    start = init()
    if not dataclasses.is_dataclass(start) or isinstance(start, type):
        raise _refused(
            f"init() returns {start!r:.80}, which is not an instance of a dataclass",
            "keep the state in a dataclass whose fields have defaults, and give the dataclass as init",
        )
    schema = schema_of(type(start))
    for field in schema:
        if not is_kept(field.type):
            raise _refused(f"the field {field.name!r} of the state is {field.type}", "use a type of numbers or text")
    gives = _result_of(result, to)
    return Aggregation(Custom(UserCode(init, add, merge, result, schema, gives), batches), columns, filter)


@dataclass(frozen=True)
class Custom(Kind):
    """An aggregate of the user's own, per row or over batches."""

    functions: UserCode
    batches: bool

    name: ClassVar[str] = "Aggregate"
    calls: ClassVar[bool] = True

    def parameters(self) -> dict[str, Any]:
        return {}

    def code(self) -> list[str]:
        return [code_hash(each) for each in (self.functions.add, self.functions.merge, self.functions.result)]

    def state(self) -> dict[str, Any]:
        start, fields = self.functions.start(), self.functions.schema
        rows = {ROWS: {"type": str(pa.int64()), "nullable": False, "init": "0"}}
        return rows | {
            each.name: {
                "type": str(each.type),
                "nullable": each.nullable,
                "init": bounded(repr(getattr(start, each.name))),
            }
            for each in fields
        }

    def nullable(self, given: bool) -> bool:
        return bool(self.functions.gives.nullable)

    def over(self, given: Sequence[pa.Field], nullable: bool) -> AggregateFunction:
        return (BatchFunction if self.batches else RowFunction)(self.functions, pa.schema(given))


@dataclass(frozen=True)
class RowFunction(AggregateFunction):
    """Calls the functions, row by row and state by state.

    Args:
        rows: The columns of a row.
    """

    functions: UserCode
    rows: pa.Schema

    takes_nulls: ClassVar[bool] = True

    @property
    def result(self) -> pa.DataType:
        return self.functions.gives.type

    @property
    def columns(self) -> Mapping[str, StateColumn]:
        return self.functions.columns

    def fold(self, held: State, inputs: Sequence[pa.Array], groups: Groups) -> State:
        states, add = self._instances(held), self.functions.add
        batch = pa.RecordBatch.from_arrays(list(inputs), schema=self.rows)
        for group, row in zip(groups.tolist(), RowMaker(self.rows, None).rows(batch), strict=True):
            states[group] = state_of(add, group, f" for the row {row!r:.200}", states[group], row)
        return self._stored(states, held[ROWS] + np.bincount(groups, minlength=len(states)))

    def combine(self, states: State, groups: Groups, count: int) -> State:
        instances, merge = self._instances(states), self.functions.merge
        merged_instances: list[Any] = [None] * count
        for group, rows, instance in zip(groups.tolist(), states[ROWS].tolist(), instances, strict=True):
            if rows:
                first = merged_instances[group] is None
                merged_instances[group] = (
                    instance if first else state_of(merge, group, "", merged_instances[group], instance)
                )
        total = np.zeros(count, np.int64)
        np.add.at(total, groups, states[ROWS])
        return self._stored([self.functions.start() if each is None else each for each in merged_instances], total)

    def results(self, states: State) -> pa.Array:
        values = [called(self.functions.result, at, "", each) for at, each in enumerate(self._instances(states))]
        try:
            [array] = batch_of_rows(pa.schema([self.functions.gives]), [(value,) for value in values]).columns
        except WrongRow as wrong:
            raise CannotFold(f"cannot be given: {wrong.what}", CORRECT_IT, wrong.row or 0) from wrong
        return array

    def _instances(self, states: State) -> list[Any]:
        """Return states as the user's functions take them."""
        instances = [self.functions.start() for _ in range(len(states[ROWS]))]
        nonempty_states = np.flatnonzero(states[ROWS]).tolist()
        types = special_types(type(self.functions.start()))
        for field in self.functions.schema:
            values = loaded(states[field.name], field.type).to_pylist()
            if (kind := types.get(field.name)) is not None:
                values = [None if value is None else kind.python(value) for value in values]
            for at in nonempty_states:
                if values[at] is not None or field.nullable:  # a field that was added later has no value yet
                    object.__setattr__(instances[at], field.name, values[at])
        return instances

    def _stored(self, states: list[Any], rows: Any) -> State:
        try:
            batch = batch_of_rows(self.functions.schema, states)
        except WrongRow as wrong:
            raise CannotFold(f"cannot be kept: {wrong.what}", CORRECT_IT, wrong.row or 0) from wrong
        some = pa.array(rows > 0)
        columns = {
            field.name: stored(pa.compute.if_else(some, array, pa.scalar(None, array.type)))
            for field, array in zip(self.functions.schema, batch.columns, strict=True)
        }
        return {ROWS: rows, **columns}


def _result_of(result: Callable[[Any], Any], to: Any) -> pa.Field:
    """Return the field of the result."""
    hints = {} if to is not None else _hints(result)
    result_field = field_of("result", hints.get("return") if to is None else to)
    if result_field is None:
        raise _refused(
            f"the type of what {name_of(result)} returns is not known",
            "annotate the function, def result(state) -> float: ..., or give it: to=float",
        )
    return result_field


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Aggregate: {what}", not_done="the job was not planned", next_step=next_step)
