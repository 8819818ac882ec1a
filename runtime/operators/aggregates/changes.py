"""How the aggregates in the code differ from those whose state is kept, and which of them continue which.

An aggregate continues the state kept under its own name, else the one that the code names with `.was(...)`. An
aggregate that continues none starts empty. Kept state that no aggregate continues would be lost, so the user has to
drop it by name.

Pure.
Source: docs/decisions/0038-schema-evolution.md, docs/decisions/0024-identity-of-state.md.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.runtime.functions.aggregation import WHERE, BoundAggregation, call_text, function_of
from holdfast.runtime.operators.contract import Description
from holdfast.runtime.operators.differences import READ_UNCHANGED, Found, columns_text, part_to_drop, type_named
from holdfast.runtime.rows.forms import in_terms_of
from holdfast.state.evolution import widens

FROM_NOW = "it starts from now: it covers only the records after the checkpoint"
FROM_NOW_IN_WINDOWS = f"{FROM_NOW}, also in windows that are open"

Kept = Mapping[str, Any]
"""The identity of an operator with aggregates."""
_NULL = repr(None)
_UNTOLD = "; for keys with state it would begin as null, because its column does not distinguish null from no value"
_BEGIN_NULL = "let the field begin as None, or give it a type without None; or give the operator a new name"


def described(bound: BoundAggregation, column: Description) -> dict[str, Any]:
    """Return the identity of an aggregate: name, function, type of the result, inputs, parameters, condition."""
    inputs = [column(name) for name in bound.columns]
    identity: dict[str, Any] = {"name": bound.name, "function": bound.kind.name, "result": str(bound.result.type)}
    identity["input"] = inputs[0] if inputs else None
    if bound.kind.calls:
        identity |= {"columns": inputs, "input": None, "code": bound.kind.code(), "state": bound.kind.state()}
    elif inputs[1:]:
        identity["by"] = inputs[1]
    if parameters := bound.kind.parameters():
        identity["parameters"] = parameters
    if (condition := bound.condition) is not None:
        identity["function"] += WHERE
        made = in_terms_of(json.loads(condition.form), condition.columns, lambda name: column(name)["from"])
        identity["filter"] = {"text": str(condition), "from": made}
    return identity


def names(before: Kept) -> tuple[str, ...]:
    """Return the names of kept aggregates."""
    return tuple(each["name"] for each in before["aggregates"])


def without(before: Kept, parts: Collection[str]) -> Kept:
    """Return the identity without these aggregates."""
    return {**before, "aggregates": [each for each in before["aggregates"] if each["name"] not in parts]}


def former_names(aggregations: Sequence[BoundAggregation], before: Kept) -> dict[str, str]:
    """Return the kept name of every aggregate that continues kept state."""
    kept_names, former = names(before), {}
    for aggregation in aggregations:
        name = aggregation.name
        if name in kept_names:
            former[name] = name
        elif aggregation.former is not None and aggregation.former in kept_names:
            former[name] = aggregation.former
    return former


def continued(aggregations: Sequence[BoundAggregation], before: Kept, columns: Sequence[str]) -> dict[str, str]:
    """Return the former name of every state column that continues one; columns of no aggregate are their own."""
    own = {column: bound for bound in aggregations for column in bound.state.values()}
    former = former_names(aggregations, before)
    fields = {each["name"]: each["state"] for each in before["aggregates"] if "state" in each}
    former_columns = {}
    for column in columns:
        if column not in own:
            former_columns[column] = column
        elif (name := own[column].name) in former:
            role = column.removeprefix(f"{name}.")
            if role in fields.get(former[name], (role,)):
                former_columns[column] = f"{former[name]}.{role}"
    return former_columns


def compare_aggregates(
    found: Found, aggregations: Sequence[BoundAggregation], before: Kept, now: Kept, *, in_windows: bool
) -> None:
    """Compare the aggregates of two identities.

    Args:
        in_windows: Rows of open windows may be emitted without another record.
    """
    former, aggregates_before = (
        former_names(aggregations, before),
        {each["name"]: each for each in before["aggregates"]},
    )
    for aggregation, new in zip(aggregations, now["aggregates"], strict=True):
        name = new["name"]
        if name not in former:
            _added(found, aggregation, new, in_windows)
            continue
        if former[name] != name:
            found.allow(f"has the aggregate {former[name]!r} under the name {name!r} now", "its state is kept")
        _compare(found.of(former[name]), aggregation, aggregates_before[former[name]], new)
    lost_aggregates = [each for each in aggregates_before.values() if each["name"] not in former.values()]
    for old in lost_aggregates:
        _lost(found, old)
    order = [former[name] for name in names(now) if name in former]
    if not lost_aggregates and order != [name for name in aggregates_before if name in order]:
        found.allow(
            f"had the aggregates in the order {', '.join(aggregates_before)} and now has {', '.join(names(now))}",
            READ_UNCHANGED,
        )


def _added(found: Found, bound: BoundAggregation, new: Mapping[str, Any], in_windows: bool) -> None:
    what = f"has the new aggregate {new['name']!r} = {call(new)}"
    if not in_windows:
        found.allow(what, FROM_NOW)
    elif bound.result.nullable or not bound.kind.nullable(True):
        found.allow(what, FROM_NOW_IN_WINDOWS)
    else:
        column = bound.columns[0]
        found.refuse(
            what,
            ", which would have no value in open windows without later records, and cannot be null",
            "aggregate a column that may be null: after "
            f'.with_columns({column}=pl.coalesce(pl.col("{column}"))); or give the operator a new name',
        )


def _lost(found: Found, old: Mapping[str, Any]) -> None:
    name = old["name"]
    found.refuse(
        f"no longer has the aggregate {name!r} = {call(old)}",
        ", so its state would be lost",
        f"put it back; if it has another name now, say so: NEW=hf.{call(old)}.was({name!r}); or give its state up: "
        f"holdfast run ... --drop-state {part_to_drop(found.operator, name)}",
    )


def _compare(found: Found, bound: BoundAggregation, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    label = f"aggregate {new['name']!r}"
    if _function(old) != _function(new):
        found.refuse(f"had {label} as {call(old)} and now has it as {call(new)}")
        return
    if old["result"] != new["result"]:
        what = f"had {label} of type {old['result']} and now has it as {new['result']}"
        if not _widens(old["result"], new["result"]):
            found.refuse(what)
            return
        found.allow(what, READ_UNCHANGED)
    for part, word in (("input", "over"), ("by", "by")):
        if new.get(part) is not None:
            found.compare_provenance(f"{part} of {label}", old[part], new[part])
            _compare_types(found, f"{label} {word}", bound, old[part], new[part])
    for was, current in zip(old.get("columns", ()), new.get("columns", ()), strict=False):
        found.compare_provenance(f"column of {label}", was, current)
    if "state" in new:
        _compare_fields(found, label, old["state"], new["state"])
    if old.get("code") != new.get("code"):
        found.allow(f"runs other code for {label}", "the kept state is read unchanged, and later rows are added to it")
    if "filter" in new:
        was, current = ({"column": each["filter"]["text"], "from": each["filter"]["from"]} for each in (old, new))
        found.compare_provenance(f"filter= of {label}", was, current)


def _function(aggregate: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the function of a kept aggregate, and which inputs it has."""
    inputs = (aggregate["input"] is None, "by" in aggregate)
    return (aggregate["function"], aggregate.get("parameters", {}), *inputs)


def _widens(old: str, new: str) -> bool:
    types = [np.dtype(type_named(text).to_pandas_dtype()) for text in (old, new)]
    return widens(*types)


def _compare_types(found: Found, called: str, bound: BoundAggregation, was: Any, given: Any) -> None:
    """Compare the type of an input column, and whether it may be null.

    Values are kept as they are by functions that have no operations, so these read no state of another type.
    """
    what = f"had {called} {columns_text([was])} and now has it {called.rpartition(' ')[2]} {columns_text([given])}"
    retyped = was["type"] != given["type"] and bound.function.operations is None
    renulled = was["nullable"] != given["nullable"] and not bound.kind.null_free_state
    if retyped or renulled:
        found.refuse(what)
    elif (was["type"], was["nullable"]) != (given["type"], given["nullable"]):
        found.allow(what, "the kept state is read unchanged, and later values are added to it")


def _compare_fields(found: Found, called: str, was: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Compare the fields of a state of the user's own."""
    for name in (each for each in given if each in was):
        _compare_field(found, f"field {name!r} in the state of {called}", was[name], given[name])
    added = [name for name in sorted(given.keys() - was.keys()) if _begins(found, called, name, given[name])]
    if added:
        found.allow(f"has new fields in the state of {called}: {', '.join(added)}", "they begin as init() has them")
    if lost := sorted(was.keys() - given.keys()):
        found.allow(f"no longer has the fields {', '.join(lost)} in the state of {called}", "their values are not read")


def _compare_field(found: Found, called: str, was: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Compare a field that continues a kept one."""
    if was["type"] != given["type"]:
        found.refuse(f"had the {called} of type {was['type']} and now has it as {given['type']}")
        return
    if was["nullable"] and not given["nullable"]:
        found.refuse(f"had the {called}, which could be null and now cannot")
    elif given["nullable"] and not was["nullable"]:
        if given["init"] != _NULL:
            found.refuse(
                f"allows null in the {called} now, which init() sets to {_init_text(given)}", _UNTOLD, _BEGIN_NULL
            )
            return
        found.allow(f"allows null in the {called} now", f"{READ_UNCHANGED}; where it has no value yet, it is null")
    if was["init"] != given["init"]:
        what = f"sets the {called} to {_init_text(given)} in init(), which set it to {_init_text(was)}"
        found.allow(what, "a key that has a value keeps it; all others begin as init() has it now")


def _begins(found: Found, called: str, name: str, given: Mapping[str, Any]) -> bool:
    """Return whether a new field begins as init() has it for keys that have a state; refuse it otherwise."""
    if not given["nullable"] or given["init"] == _NULL:
        return True
    what = f"has the new field {name!r} in the state of {called}, which may be null and which init() sets to "
    found.refuse(what + _init_text(given), _UNTOLD, _BEGIN_NULL)
    return False


def _init_text(field: Mapping[str, Any]) -> str:
    return field["init"] if isinstance(field["init"], str) else "a long value"


def call(aggregate: Mapping[str, Any]) -> str:
    """Return a kept aggregate as it is written in code."""
    inputs = [each["column"] for part in ("input", "by") if (each := aggregate.get(part)) is not None]
    condition = aggregate.get("filter")
    parameters = aggregate.get("parameters", {})
    function = function_of(aggregate)
    return call_text(function, inputs, parameters, None if condition is None else condition["text"])
