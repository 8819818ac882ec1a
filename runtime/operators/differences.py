"""Differences between the identity of an operator's state and the one that wrote it; common to all operators.

Pure.
Source: docs/decisions/0024-identity-of-state.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.runtime.rows.forms import Form
from holdfast.state.evolution import widens_key

READ_UNCHANGED = "the kept state is read unchanged"
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())


@dataclass(frozen=True)
class StateDifference:
    """One way in which an operator differs from the one that wrote its state."""

    operator: str
    what: str
    effect: str | None
    """The consequence of an allowed change; None: the change is refused."""
    next_step: str = ""


class Found:
    """The differences of one operator, collected as they are found."""

    def __init__(self, operator: str, same_polars: bool, part: str | None = None) -> None:
        self.operator, self._same_polars, self._part = operator, same_polars, part
        self.differences: list[StateDifference] = []

    def of(self, part: str) -> Found:
        """Return the same collection for a part of the state that can be given up alone."""
        found = Found(self.operator, self._same_polars, part)
        found.differences = self.differences
        return found

    def refuse(self, what: str, why: str = ", so it cannot read its state", next_step: str | None = None) -> None:
        """Record a change with which the state cannot be read."""
        what = f"operator {self.operator!r} {what}{why}"
        next_step = next_step or way_out(self.operator, self._part)
        self.differences.append(StateDifference(self.operator, what, None, next_step))

    def allow(self, what: str, effect: str) -> None:
        """Record an allowed change and its effect."""
        self.differences.append(StateDifference(self.operator, f"operator {self.operator!r} {what}", effect))

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
    same = [typed(each) for each in before] == [typed(each) for each in now]
    if not same and not (len(before) == len(now) and all(map(_continues, before, now))):
        found.refuse(f"had the key {columns_text(before)} and now has {columns_text(now)}")
        return
    if not same:
        found.allow(f"had the key {columns_text(before)} and now has {columns_text(now)}", READ_UNCHANGED)
    for old, new in zip(before, now, strict=True):
        found.compare_provenance("key column", old, new)


def compare_kept(
    found: Found, called: str, before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> None:
    """Compare the columns of rows that are kept whole, by name.

    State keeps numbers and text as they are, so the comparison of the state columns decides about these; of a time or
    a decimal it does not hold the type.
    """
    olds = {each["column"]: each for each in before}
    for new in now:
        if (old := olds.get(new["column"])) is None:
            continue
        was, given = old["type"], new["type"]
        numbers = pa.null() not in (type_named(was), type_named(given))
        if _plain(was) != _plain(given) and not numbers:
            found.refuse(f"had the {called} {columns_text([old])} and now has {columns_text([new])}")
        else:
            found.compare_provenance(called, old, new)


def refuse_added(found: Found, before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> None:
    """Refuse columns of rows that are kept now and were not before: the rows in the state lack their values."""
    known = {each["column"] for each in before}
    if added := [each["column"] for each in now if each["column"] not in known]:
        found.refuse(f"now keeps {', '.join(added)} too", ", which the rows in its state do not have")


def _plain(kind: str) -> str:
    """Return the name of a type without the layout of its text."""
    return kind.removeprefix("large_").removesuffix("_view")


def kept_by(identity: Mapping[str, Any]) -> str:
    """Return the contents of an identity's state, in words. Identities of aggregates do not record it."""
    aggregates = "aggregates per window and key" if "window" in identity else "aggregates per key"
    return str(identity.get("keeps", aggregates))


def way_out(name: str, part: str | None = None) -> str:
    """Return the next step after a refused change, of an operator or of a part of its state."""
    if part is not None:
        return (
            f"undo the change; or let {part!r} start from now, without its state: holdfast run ... "
            f"--drop-state {part_to_drop(name, part)}; or give the operator a new name"
        )
    return f"undo the change, give the operator a new name, or drop its state: holdfast run ... --drop-state {name}"


def part_to_drop(operator: str, part: str) -> str:
    """Return how `--drop-state` names a part of an operator's state."""
    return f"{operator}.{part}"


def _continues(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a key column is the same as before, or of a wider type."""
    same = (old["column"], old["nullable"]) == (new["column"], new["nullable"])
    return same and (old["type"] == new["type"] or widens_key(type_named(old["type"]), type_named(new["type"])))


def type_named(text: str) -> pa.DataType:
    """Return the numeric type of this name; null for all others."""
    names = {str(kind): kind for kind in (*_INTEGERS, pa.float32(), pa.float64())}
    return names.get(text, pa.null())


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
