"""Differences between the identity of an operator's state and the one that wrote it; what all operators share.

Pure.
Source: docs/design/0024-identity-of-state.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.rows.forms import Form


@dataclass(frozen=True)
class Difference:
    """One way in which an operator differs from the one that wrote its state."""

    operator: str
    what: str
    effect: str | None
    """The consequence of an allowed change; None: the change is refused."""
    next_step: str = ""


class Found:
    """The differences of one operator, collected as they are found."""

    def __init__(self, operator: str, same_polars: bool) -> None:
        self.operator, self._same_polars = operator, same_polars
        self.differences: list[Difference] = []

    def refuse(self, what: str, why: str = ", so it cannot read its state") -> None:
        """Record a change with which the state cannot be read."""
        what = f"operator {self.operator!r} {what}{why}"
        self.differences.append(Difference(self.operator, what, None, way_out(self.operator)))

    def allow(self, what: str, effect: str) -> None:
        """Record an allowed change and its effect."""
        self.differences.append(Difference(self.operator, f"operator {self.operator!r} {what}", effect))

    def compare_provenance(self, called: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Compare the origin of two columns with the same name and type."""
        old, new = before["from"], now["from"]
        if old == new:
            return
        if not self._same_polars and is_computed(old) and is_computed(new):
            self.allow(
                f"may have another {called}: {now['column']!r} is computed, and Polars, now another version, writes "
                "the expression in another form",
                "the kept state is read unchanged; if the expression was changed, the state holds values of both",
            )
        elif is_computed(old) and is_computed(new):
            self.refuse(f"computes {now['column']!r}, the {called}, with a different expression than before")
        else:
            self.refuse(f"had as {called} {origin_text(before)} and now has {origin_text(now)}")


def compare_keys(found: Found, before: list[Any], now: list[Any]) -> None:
    """Compare the key columns of two identities."""
    if [typed(each) for each in before] != [typed(each) for each in now]:
        found.refuse(f"had the key {columns_text(before)} and now has {columns_text(now)}")
        return
    for old, new in zip(before, now, strict=True):
        found.compare_provenance("key column", old, new)


def kept_by(identity: Mapping[str, Any]) -> str:
    """Return what the state of an identity holds. Identities of aggregates do not record it."""
    aggregates = "aggregates per window and key" if "window" in identity else "aggregates per key"
    return str(identity.get("keeps", aggregates))


def way_out(name: str) -> str:
    """Return what to do about a change that is refused."""
    return f"undo the change, give the operator a new name, or drop its state: holdfast run ... --drop-state {name}"


def is_computed(made: Form) -> bool:
    """Return whether a provenance is an expression."""
    return "column" not in made


def typed(column: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return name, type and nullability of a column."""
    return column["column"], column["type"], column["nullable"]


def origin_text(column: Mapping[str, Any]) -> str:
    """Return the origin of a column as text for messages."""
    made = column["from"]
    if is_computed(made):
        return f"{column['column']!r}, which an expression computes"
    named = made["column"]
    return f"the column {named!r}" + ("" if named == column["column"] else f", called {column['column']!r}")


def columns_text(columns: Sequence[Mapping[str, Any]]) -> str:
    """Return columns with their types as text for messages."""
    shown = (f"{name}: {kind}{' or null' if nullable else ''}" for name, kind, nullable in map(typed, columns))
    return "(" + ", ".join(shown) + ")"
