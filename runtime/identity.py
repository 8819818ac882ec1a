"""Operators keep their identity over changes of the code: their number in storage and what their state means.

Keys in storage begin with an operator's number. The number belongs to the name: operators that are moved, added or
removed in the code leave the others' numbers alone, and the number of a removed operator is not given away, because its
state may still be there.

The identity of an operator's state is kept with every checkpoint. It holds, per key column, name, type, nullability and
provenance; per aggregate, function, result type and input column, with the same four; the window's size, offset, event
time, lateness and emission. All of it is structured; display text is never compared. The provenance of a column
(provenance.py) is the column behind renames, or the expression that computes it.

Checkpoints of older versions hold key columns and state columns only. What they lack is reported as not known, and is
complete with the next checkpoint.

Invariants
    - Two names never share a number, not even at different times of one job.
    - State is read only by an operator whose identity is the one that wrote it, or that docs/design/0024 lets read it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError, Where
from holdfast.runtime.aggregates import BoundAggregation
from holdfast.runtime.forms import POLARS, Form
from holdfast.runtime.provenance import provenance_of
from holdfast.runtime.steps import INPUT, Aggregate, OperatorSpec, Plan, WindowAggregate
from holdfast.runtime.windows import span
from holdfast.state.spec import OPERATORS_END

FIRST_OPERATOR_ID = 1


def assign_operator_ids(names: Sequence[str], previous: Mapping[str, int]) -> dict[str, int]:
    """Return the number of every operator, those of `previous` unchanged.

    Args:
        names: The plan's operators, in order.
        previous: Every operator that the job ever had, also those no longer in the code.

    Returns:
        All of `previous`, and the new names.

    Raises:
        ConfigError: there are no numbers left.
    """
    ids = dict(previous)
    following = max(ids.values(), default=FIRST_OPERATOR_ID - 1) + 1
    for name in names:
        if name in ids:
            continue
        if following >= OPERATORS_END:
            raise ConfigError(
                f"there is no number left for operator {name!r}; a job can have {OPERATORS_END - 1} in its life",
                not_done="the job was not started",
                next_step="start a new job under another name",
            )
        ids[name] = following
        following += 1
    return ids


@dataclass(frozen=True)
class Difference:
    """One way in which an operator differs from the one that wrote its state."""

    operator: str
    what: str
    effect: str | None
    """What follows, for a change that is allowed; None: the change is refused."""
    next_step: str = ""


def describe_operators(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return, per operator, the identity of its state, as JSON-able values to be kept with a checkpoint."""
    steps = {
        step.kind.operator: step.kind
        for fragment in plan.fragments
        for step in fragment.steps
        if isinstance(step.kind, Aggregate | WindowAggregate)
    }
    return {operator.name: _described(plan, operator, steps.get(operator.name)) for operator in plan.operators}


def check_against(plan: Plan, previous: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a plan whose operators cannot read the state that is there.

    Args:
        previous: What `describe_operators` gave for the job's last run.

    Raises:
        ConfigError: the first difference that is refused.
    """
    for found in differences(plan, previous):
        if found.effect is None:
            raise ConfigError(
                found.what,
                not_done="the job was not started; its state is unchanged",
                next_step=found.next_step,
                where=Where(job=plan.app, operator=found.operator),
            )


def differences(plan: Plan, previous: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
    """Return every difference between the plan's operators and those that wrote the state, allowed ones included."""
    now = describe_operators(plan)
    return [each for name in now if name in previous for each in _compared(name, previous[name], now[name])]


def not_known(plan: Plan, previous: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the operators whose state a version wrote that kept no complete identity."""
    now = describe_operators(plan)
    return [name for name in now if name in previous and "identity" in now[name] and "identity" not in previous[name]]


def _described(plan: Plan, operator: OperatorSpec, step: Aggregate | WindowAggregate | None) -> dict[str, Any]:
    table = operator.table
    described: dict[str, Any] = {
        "id": operator.id,
        "key": [[name, str(kind)] for name, kind in zip(table.key.names, table.key.types, strict=True)],
        "columns": [[column.name, column.dtype.name] for column in table.columns],
    }
    if operator.window is not None:
        described["window"] = operator.window
    if step is not None:
        described["identity"] = _identity(plan, operator.fragment, step)
    return described


def _identity(plan: Plan, fragment: int, step: Aggregate | WindowAggregate) -> dict[str, Any]:
    schema = plan.fragments[fragment].schema

    def column(name: str) -> dict[str, Any]:
        return _column(schema.field(name)) | {"from": provenance_of(plan, fragment, INPUT, name)}

    def aggregate(bound: BoundAggregation) -> dict[str, Any]:
        shown = {"name": bound.result.name, "function": bound.kind, "result": str(bound.result.type)}
        return shown | {"input": None if bound.column is None else column(bound.column)}

    identity: dict[str, Any] = {
        "v": 1,
        "polars": POLARS,
        "key": [column(name) for name in step.keys],
        "aggregates": [aggregate(bound) for bound in step.aggregations],
    }
    if isinstance(step, WindowAggregate):
        identity["window"] = {
            "kind": "tumbling", "size_us": step.window.size_us, "offset_us": step.window.offset_us,
            "time": column(step.time), "lateness_us": step.lateness_us, "emit": step.emit,
        }  # fmt: skip
    return identity


def _column(field: pa.Field) -> dict[str, Any]:
    return {"column": field.name, "type": str(field.type), "nullable": field.nullable}


def _compared(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    old, new = before.get("identity"), now.get("identity")
    if old is None or new is None:
        return [*_windows_by_text(name, before, now), *_tables(name, before, now)]
    found = _Found(name, old.get("polars") == new["polars"])
    if ("window" in old) != ("window" in new):
        kinds = ["aggregates per key", "aggregates per window and key"]
        found.refuse(f"kept {kinds['window' in old]} and now keeps {kinds['window' in new]}")
        return found.differences
    _compare_keys(found, old["key"], new["key"])
    _compare_aggregates(found, old["aggregates"], new["aggregates"])
    if "window" in old:
        _compare_windows(found, old["window"], new["window"])
    return found.differences or _tables(name, before, now)


class _Found:
    """Differences of one operator, as they are found."""

    def __init__(self, operator: str, same_polars: bool) -> None:
        self.operator, self._same_polars = operator, same_polars
        self.differences: list[Difference] = []

    def refuse(self, what: str, why: str = ", so it cannot read its state") -> None:
        what = f"operator {self.operator!r} {what}{why}"
        self.differences.append(Difference(self.operator, what, None, _way_out(self.operator)))

    def allow(self, what: str, effect: str) -> None:
        self.differences.append(Difference(self.operator, f"operator {self.operator!r} {what}", effect))

    def compare_provenance(self, called: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Compare where two columns of the same name and type come from."""
        old, new = before["from"], now["from"]
        if old == new:
            return
        if not self._same_polars and _is_computed(old) and _is_computed(new):
            self.allow(
                f"may have another {called}: {now['column']!r} is computed, and Polars, which has another version now, "
                "writes the expression in another form",
                "the kept state is read as it is; if the expression was changed, the state holds values of both",
            )
        elif _is_computed(old) and _is_computed(new):
            self.refuse(f"computes {now['column']!r}, the {called}, by another expression than before")
        else:
            self.refuse(f"had as {called} {_made_from(before)} and now has {_made_from(now)}")


def _compare_keys(found: _Found, before: list[Any], now: list[Any]) -> None:
    if [_typed(each) for each in before] != [_typed(each) for each in now]:
        found.refuse(f"had the key {_columns(before)} and now has {_columns(now)}")
        return
    for old, new in zip(before, now, strict=True):
        found.compare_provenance("key column", old, new)


def _compare_aggregates(found: _Found, before: list[Any], now: list[Any]) -> None:
    if [each["name"] for each in before] != [each["name"] for each in now]:
        found.refuse(f"had the aggregates {_names(before)} and now has {_names(now)}")
        return
    for old, new in zip(before, now, strict=True):
        called = f"aggregate {new['name']!r}"
        was, given = old["input"], new["input"]
        if old["function"] != new["function"] or (was is None) != (given is None):
            found.refuse(f"had {called} as {_call(old)} and now has it as {_call(new)}")
        elif old["result"] != new["result"]:
            found.refuse(f"had {called} of type {old['result']} and now has it as {new['result']}")
        elif was is not None and given is not None:
            _compare_inputs(found, new, was, given)


def _compare_inputs(found: _Found, aggregate: Any, was: Any, given: Any) -> None:
    called, function = f"aggregate {aggregate['name']!r}", aggregate["function"]
    found.compare_provenance(f"input of {called}", was, given)
    if was["nullable"] != given["nullable"] and function != "count":
        found.refuse(f"had {called} over {_columns([was])} and now has it over {_columns([given])}")
    elif (was["type"], was["nullable"]) != (given["type"], given["nullable"]):
        found.allow(
            f"had {called} over {_columns([was])} and now has it over {_columns([given])}",
            "the kept state is read as it is, and later values are added to it",
        )


def _compare_windows(found: _Found, before: Any, now: Any) -> None:
    shape = ("kind", "size_us", "offset_us")
    if [before[part] for part in shape] != [now[part] for part in shape]:
        found.refuse(f"had the windows {window_text(before)} and now has {window_text(now)}")
        return
    if _typed(before["time"])[1:] != _typed(now["time"])[1:]:
        found.refuse(f"had the event time {_columns([before['time']])} and now has {_columns([now['time']])}")
    else:
        found.compare_provenance("event time", before["time"], now["time"])
    if before["emit"] != now["emit"]:
        found.refuse(f"had emit={before['emit']!r} and now has emit={now['emit']!r}",
                     "; windows whose results are out already would be emitted again, or never")  # fmt: skip
    old, new = before["lateness_us"], now["lateness_us"]
    if new > old:
        found.refuse(f"had allowed_lateness {span(old)} and now has {span(new)}",
                     "; windows that are closed already would open again, without the rows they had")  # fmt: skip
    elif new < old:
        found.allow(
            f"had allowed_lateness {span(old)} and now has {span(new)}",
            "windows that are over by the new lateness close when event time next advances, and take no more rows",
        )


def _tables(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Compare key and state columns: all that checkpoints of older versions tell."""
    found = []
    for part, called in (("key", "key"), ("columns", "state columns")):
        if [list(column) for column in before[part]] != now[part]:
            what = (
                f"operator {name!r} had the {called} {_listed(before[part])} and now has {_listed(now[part])}, "
                "so it cannot read its state"
            )
            found.append(Difference(name, what, None, _way_out(name)))
    return found


def _windows_by_text(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Compare windows as checkpoints of older versions name them."""
    old, new = before.get("window"), now.get("window")
    if old == new:
        return []
    what = (
        f"operator {name!r} had the windows {old} and now has {new}; windows that are closed already would be opened "
        "again"
    )
    return [Difference(name, what, None, _way_out(name))]


def window_text(window: Mapping[str, Any]) -> str:
    """Return a window for people."""
    offset = f", offset={span(window['offset_us'])}" if window["offset_us"] else ""
    return f"{window['kind']}({span(window['size_us'])}{offset})"


def _way_out(name: str) -> str:
    return (
        f"take back the change, give the operator a new name, or drop its state: holdfast run ... --drop-state {name}"
    )


def _is_computed(made: Form) -> bool:
    return "column" not in made


def _typed(column: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return column["column"], column["type"], column["nullable"]


def _made_from(column: Mapping[str, Any]) -> str:
    made = column["from"]
    if _is_computed(made):
        return f"{column['column']!r}, which an expression computes"
    named = made["column"]
    return f"the column {named!r}" + ("" if named == column["column"] else f", called {column['column']!r}")


def _call(aggregate: Mapping[str, Any]) -> str:
    given = aggregate["input"]
    return f"{aggregate['function']}({'' if given is None else repr(given['column'])})"


def _names(aggregates: Sequence[Mapping[str, Any]]) -> str:
    return "(" + ", ".join(f"{each['name']}: {_call(each)}" for each in aggregates) + ")"


def _columns(columns: Sequence[Mapping[str, Any]]) -> str:
    shown = (f"{name}: {kind}{' or null' if nullable else ''}" for name, kind, nullable in map(_typed, columns))
    return "(" + ", ".join(shown) + ")"


def _listed(columns: Sequence[Sequence[str]]) -> str:
    return "(" + ", ".join(f"{name}: {kind}" for name, kind in columns) + ")"
