"""How the aggregates in the code differ from those whose state is kept, and which of them continue which.

An aggregate continues the state kept under its own name, else the one that the code names with `.was(...)`. What
continues none starts from now; kept state that nothing continues would be lost, so the user gives it up by name.

Pure.
Source: docs/design/0038-schema-evolution.md, docs/design/0024-identity-of-state.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.runtime.operators.differences import READ_UNCHANGED, Found, columns_text, part_to_drop, type_named
from holdfast.runtime.rows.aggregates import BoundAggregation
from holdfast.state.evolution import widens

FROM_NOW = "it starts from now: it covers only the records after the checkpoint"
FROM_NOW_IN_WINDOWS = f"{FROM_NOW}, also in windows that are open"

Kept = Mapping[str, Any]
"""The identity of an operator with aggregates."""


def names(before: Kept) -> tuple[str, ...]:
    """Return the names of kept aggregates."""
    return tuple(each["name"] for each in before["aggregates"])


def without(before: Kept, parts: Collection[str]) -> Kept:
    """Return the identity without these aggregates."""
    return {**before, "aggregates": [each for each in before["aggregates"] if each["name"] not in parts]}


def former_names(aggregations: Sequence[BoundAggregation], before: Kept) -> dict[str, str]:
    """Return the kept name of every aggregate that continues kept state."""
    kept, former = names(before), {}
    for bound in aggregations:
        name = bound.result.name
        if name in kept:
            former[name] = name
        elif bound.former is not None and bound.former in kept:
            former[name] = bound.former
    return former


def continued(aggregations: Sequence[BoundAggregation], before: Kept, columns: Sequence[str]) -> dict[str, str]:
    """Return the former name of every state column that continues one; columns of no aggregate are their own."""
    own = {column: bound for bound in aggregations for column in bound.state.values()}
    former = former_names(aggregations, before)
    found = {}
    for column in columns:
        if column not in own:
            found[column] = column
        elif (name := own[column].result.name) in former:
            found[column] = former[name] + column.removeprefix(name)
    return found


def compare_aggregates(
    found: Found, aggregations: Sequence[BoundAggregation], before: Kept, now: Kept, *, in_windows: bool
) -> None:
    """Compare the aggregates of two identities.

    Args:
        in_windows: Rows of open windows may be emitted without another record.
    """
    former, kept = former_names(aggregations, before), {each["name"]: each for each in before["aggregates"]}
    for bound, new in zip(aggregations, now["aggregates"], strict=True):
        name = new["name"]
        if name not in former:
            _added(found, bound, new, in_windows)
            continue
        if former[name] != name:
            found.allow(f"has the aggregate {former[name]!r} under the name {name!r} now", "its state is kept")
        _compare(found.of(former[name]), kept[former[name]], new)
    lost = [each for each in kept.values() if each["name"] not in former.values()]
    for old in lost:
        _lost(found, old)
    order = [former[name] for name in names(now) if name in former]
    if not lost and order != [name for name in kept if name in order]:
        found.allow(
            f"had the aggregates in the order {', '.join(kept)} and now has {', '.join(names(now))}", READ_UNCHANGED
        )


def _added(found: Found, bound: BoundAggregation, new: Mapping[str, Any], in_windows: bool) -> None:
    what = f"has the new aggregate {new['name']!r} = {call(new)}"
    if not in_windows:
        found.allow(what, FROM_NOW)
    elif bound.kind == "count" or bound.result.nullable:
        found.allow(what, FROM_NOW_IN_WINDOWS)
    else:
        column = bound.column
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


def _compare(found: Found, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    called = f"aggregate {new['name']!r}"
    was, given = old["input"], new["input"]
    if old["function"] != new["function"] or (was is None) != (given is None):
        found.refuse(f"had {called} as {call(old)} and now has it as {call(new)}")
        return
    if old["result"] != new["result"]:
        what = f"had {called} of type {old['result']} and now has it as {new['result']}"
        if not _widens(old["result"], new["result"]):
            found.refuse(what)
            return
        found.allow(what, READ_UNCHANGED)
    if was is not None and given is not None:
        _compare_inputs(found, new, was, given)


def _widens(old: str, new: str) -> bool:
    types = [np.dtype(type_named(text).to_pandas_dtype()) for text in (old, new)]
    return widens(*types)


def _compare_inputs(found: Found, aggregate: Any, was: Any, given: Any) -> None:
    called, function = f"aggregate {aggregate['name']!r}", aggregate["function"]
    found.compare_provenance(f"input of {called}", was, given)
    if was["nullable"] != given["nullable"] and function != "count":
        found.refuse(f"had {called} over {columns_text([was])} and now has it over {columns_text([given])}")
    elif (was["type"], was["nullable"]) != (given["type"], given["nullable"]):
        found.allow(
            f"had {called} over {columns_text([was])} and now has it over {columns_text([given])}",
            "the kept state is read unchanged, and later values are added to it",
        )


def call(aggregate: Mapping[str, Any]) -> str:
    """Return a kept aggregate as it is written in code."""
    given = aggregate["input"]
    return f"{aggregate['function']}({'' if given is None else repr(given['column'])})"
