"""Field ids: columns of state keep their identity in storage when the code changes.

A column's id is the name under which it was first written; a later column of the same name gets a number after it. The
ids belong to one operator. Those of the last checkpoint decide those of the plan, as with the numbers of operators.

Invariants
    - Two columns never share an id, not even at different times of one operator.
    - A column that the operator's first checkpoint has is never `late`.

Pure.
Source: docs/decisions/0038-schema-evolution.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.state.tables.spec import TableSpec


@dataclass(frozen=True)
class Fields:
    """The ids of an operator's columns, as a checkpoint keeps them."""

    ids: Mapping[str, str]
    """By name."""
    late: frozenset[str] = frozenset()
    """Ids of columns that were added after the operator's first checkpoint."""
    past: tuple[str, ...] = ()
    """Ids of columns that were removed; never assigned again."""


def kept_fields(schema: Mapping[str, Any]) -> Fields:
    """Return the fields of an operator's schema in a manifest; without an evolution, the ids are the names."""
    kept = schema.get("fields")
    if kept is None:
        return Fields({name: name for name, _ in schema.get("columns", ())})
    return Fields(kept["ids"], frozenset(kept["late"]), tuple(kept["past"]))


def described(table: TableSpec) -> dict[str, Any] | None:
    """Return the fields of a table as JSON-able values to store with a checkpoint; None if it never evolved."""
    ids, late = {column.name: column.id for column in table.columns}, [c.id for c in table.columns if c.late]
    if not late and not table.past and all(name == id for name, id in ids.items()):
        return None
    return {"ids": ids, "late": late, "past": list(table.past)}


def with_fields(table: TableSpec, before: Fields, former: Mapping[str, str]) -> TableSpec:
    """Return a table whose columns continue those of an earlier declaration.

    Args:
        former: The earlier name of every column that continues one; the others start from now.
    """
    used_ids = {*before.ids.values(), *before.past}
    columns = []
    for column in table.columns:
        if column.name in former:
            id = before.ids[former[column.name]]
            column = replace(column, id=id, late=id in before.late)
        else:
            column = replace(column, id=free_id(column.name, used_ids), late=True)
            used_ids.add(column.id)
        columns.append(column)
    ids = {column.id for column in columns}
    return replace(table, columns=tuple(columns), past=tuple(sorted(used_ids - ids)))


def free_id(name: str, used: Collection[str]) -> str:
    """Return an id for a new column that no column of the operator ever had."""
    return next(id for id in itertools.chain([name], (f"{name}#{n}" for n in itertools.count(2))) if id not in used)
