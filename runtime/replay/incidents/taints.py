"""Which columns of a job hold values of some columns of its sources: in streams, and in the state of its operators.

A column is a copy, if it has the values themselves, perhaps under another name; computed, if it depends on them; else
free. The result of a Python function is free if it is a number or a time, and a copy if it is text under the name of a
copy that the function receives; other text may be anything.

Invariants
    - Text that may hold a value of such a column is never free.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import polars as pl
import pyarrow as pa

from holdfast.checkpoint.manifest import OperatorState
from holdfast.runtime.functions.aggregation import WHERE
from holdfast.runtime.operators.contract import INPUT, MAIN, Placed, entry, operator_of
from holdfast.runtime.plan.identity import describe_operators
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.plan.provenance import senders, step_at

ROW = "row."
"""Before the names of columns with which operators keep rows."""
SIDES = ("left.", "right.")
"""Before the names of columns with which operators keep rows of one of their inputs."""
KEEPING = frozenset({"min", "max", "first", "last"})
"""Functions of aggregates whose state is one of the values."""
COUNTING = frozenset({"count"})


class Taint(Enum):
    """How a column depends on the values."""

    FREE = "free"
    COPY = "copy"
    COMPUTED = "computed"


@dataclass(frozen=True)
class Stateful:
    """A step with state, and where it is."""

    fragment: int
    placed: Placed


class Taints:
    """The columns of a plan.

    Args:
        columns: Those of sources whose values matter, by source.
    """

    def __init__(self, plan: Plan, columns: dict[str, Collection[str]]) -> None:
        self._plan, self._columns = plan, columns
        self._identities = {name: each.get("identity", {}) for name, each in describe_operators(plan).items()}
        self._steps = {
            placed.step.name: Stateful(fragment.index, placed)
            for fragment in plan.fragments
            for placed in fragment.steps
            if placed.step.stateful and placed.step.name is not None
        }

    def of_source(self, name: str) -> Collection[str]:
        """Return the columns of a source whose values matter."""
        return self._columns.get(name, ())

    def of_sink(self, name: str) -> dict[str, Taint]:
        """Return the taints of the columns that reach a sink."""
        for fragment in self._plan.fragments:
            for placed in fragment.steps:
                if placed.step.writes_to == name:
                    return {each: self.of(fragment.index, placed.input, each) for each in placed.schema.names}
        return {}

    def of_key(self, operator: OperatorState, column: str, kind: pa.DataType) -> Taint:
        """Return the taint of a column of an operator's keys."""
        if (at := self._steps.get(operator_of(operator.name))) is None:
            return self._unknown(kind)
        names = {column, *(column.removeprefix(side) for side in SIDES)}
        taints = [taint for name in names for taint in self._inputs(at, name)]
        if taints:
            return _joined(taints)
        return self._opaque(at, kind)

    def of_value(self, operator: OperatorState, column: str, kind: pa.DataType) -> Taint:
        """Return the taint of a column of an operator's values."""
        if (at := self._steps.get(operator_of(operator.name))) is None:
            return self._unknown(kind)
        identity = operator.schema.get("identity", {})
        for described in identity.get("aggregates", ()):
            if column == described["name"] or column.startswith(f"{described['name']}."):
                return self._of_aggregate(at, described, kind)
        for prefix in (ROW, *SIDES):  # names in the state of a user's function have no dots
            if column.startswith(prefix) and (taints := list(self._inputs(at, column.removeprefix(prefix)))):
                return _joined(taints)
        return self._opaque(at, kind)

    def of(self, fragment: int, step: int, name: str) -> Taint:
        """Return the taint of a column of a step's output, or with `INPUT` of the fragment's input."""
        if step <= INPUT:
            if sent := senders(self._plan, fragment, step):
                return _joined(self.of(*each, name) for each in sent)
            return self._of_source(fragment, name)
        at = step_at(self._plan, fragment, step)
        origin = at.step.made_from(name)
        if isinstance(origin, pl.Expr):
            roots = [self.of(fragment, at.input, root) for root in origin.meta.root_names()]
            return Taint.FREE if all(taint is Taint.FREE for taint in roots) else Taint.COMPUTED
        if origin is not None:
            return _joined(taint for taint in self._inputs(Stateful(fragment, at), origin))
        return self._made(Stateful(fragment, at), name)

    def _of_source(self, fragment: int, name: str) -> Taint:
        for spec in self._plan.sources:
            if spec.fragment == fragment:
                columns = self._columns.get(spec.name, ())
                if spec.computed is not None and spec.computed.name == name:
                    roots = spec.computed.expr.meta.root_names()
                    return Taint.COMPUTED if any(root in columns for root in roots) else Taint.FREE
                return Taint.COPY if name in columns else Taint.FREE
        return Taint.FREE

    def _made(self, at: Stateful, name: str) -> Taint:
        """Return the taint of a column that a step creates, or hands on without saying so."""
        # Late rows and other sides have columns that the stream lacks; they may have any type.
        kind = at.placed.schema.field(name).type if name in at.placed.schema.names else pa.large_string()
        if not _may_hold_text(kind):
            return Taint.FREE
        for described in self._identities.get(at.placed.step.name or "", {}).get("aggregates", ()):
            if name == described["name"]:
                return self._of_aggregate(at, described, kind)
        same = list(self._inputs(at, name))
        if any(taint is Taint.COPY for taint in same):
            return _joined(same)
        if same and not at.placed.step.busy_with():
            return _joined(same)
        return self._opaque(at, kind)

    def _of_aggregate(self, at: Stateful, described: dict[str, Any], kind: pa.DataType) -> Taint:
        function = described["function"].removesuffix(WHERE)
        given = [described.get("input"), described.get("by"), *described.get("columns", ())]
        taints = [taint for each in given if each for taint in self._inputs(at, each["column"])]
        if function in COUNTING or all(taint is Taint.FREE for taint in taints):
            return Taint.FREE
        if function in KEEPING and all(taint is Taint.COPY for taint in taints):
            return Taint.COPY if _is_text(kind) else Taint.FREE
        return Taint.COMPUTED

    def _inputs(self, at: Stateful, name: str) -> Iterator[Taint]:
        """Yield the taints of the columns of this name in the inputs of a step; a side has columns of its own."""
        reads_side = at.placed.step.reads_side != MAIN
        for point in at.placed.inputs:
            if reads_side or name in _names(self._plan, at.fragment, point):
                yield self.of(at.fragment, point, name)

    def _opaque(self, at: Stateful, kind: pa.DataType) -> Taint:
        """Return the taint of what may be made of any input column."""
        if not _may_hold_text(kind):
            return Taint.FREE
        every = (
            self.of(at.fragment, point, name)
            for point in at.placed.inputs
            for name in _names(self._plan, at.fragment, point)
        )
        return Taint.FREE if all(taint is Taint.FREE for taint in every) else Taint.COMPUTED

    def _unknown(self, kind: pa.DataType) -> Taint:
        """Return the taint of state that the present code has no operator for."""
        return Taint.COMPUTED if _may_hold_text(kind) else Taint.FREE


def _names(plan: Plan, fragment: int, point: int) -> list[str]:
    if point <= INPUT:
        return list(plan.fragments[fragment].entering(entry(point)).names)
    return list(step_at(plan, fragment, point).schema.names)


def _joined(taints: Iterable[Taint]) -> Taint:
    """Return the taint of a column that has the values of all of these."""
    every = set(taints)
    return every.pop() if len(every) == 1 else (Taint.COMPUTED if every else Taint.FREE)


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _may_hold_text(kind: pa.DataType) -> bool:
    """Return whether values of a type may hold text, such as bytes, lists and structs do."""
    plain = pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)
    return not plain
