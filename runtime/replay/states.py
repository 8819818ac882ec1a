"""The state of an operator in two versions of a job, key by key.

States with the same declaration are compared as they are stored, so a key whose result looks the same may differ. Where
the declaration changed, the columns that both have are compared as they are shown.

Source: docs/decisions/0132-shadow.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch
from holdfast.runtime.inspect.keyhistory import history_of
from holdfast.runtime.inspect.reading import StateReading
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.inspect.view import View
from holdfast.runtime.replay.contrast import ColumnChanges, Contrast, Row, Unlike, alike, frozen, same
from holdfast.state.blocks import StateRows
from holdfast.state.merged import Chained, Changed, aligned, compared
from holdfast.state.tables.values import arrow, differ
from holdfast.storage.held_values import rows_of


def contrast_of(name: str, before: StateReading | None, after: StateReading | None, limit: int) -> Contrast:
    """Return which keys of an operator differ; a version without the operator has no key.

    Raises:
        Damaged: an object differs from what was written.
    """
    contrast = Contrast("operator", name)
    contrast.routed = next(each.view.routed.names for each in (after, before) if each is not None)
    if before is None or after is None:
        contrast.is_in = "after" if before is None else "before"
    elif before.view.key != after.view.key:  # other keys: none of one version is a key of the other
        contrast.columns = ColumnChanges.of(before.view.schema.names, after.view.schema.names)
    else:
        contrast.columns = ColumnChanges.of(before.view.values, after.view.values)
        _keys_of_both(contrast, before, after, limit)
        return contrast
    for reading in (before, after):
        for key, values in () if reading is None else _shown(reading.view, reading.rows()):
            is_former = reading is before
            contrast.before, contrast.after = contrast.before + is_former, contrast.after + (not is_former)
            change = Unlike("removed", key, values, None) if is_former else Unlike("added", key, None, values)
            contrast.count(change, limit)
    return contrast


def values_of(stored: Stored, operator: str, typed: str, key: Row) -> dict[Epoch, Row | None]:
    """Return the values of one key by the epochs of a job in which they changed; None: it was removed.

    Args:
        typed: The key, as a user types it, which may name several windows.
        key: The key itself.
    """
    history, wanted = history_of(stored, operator, typed), frozen(key)
    changes: dict[Epoch, Row | None] = {}
    for row in (row for batch in history.batches() for row in rows_of(batch)):
        if frozen({name: row[name] for name in history.view.keys}) == wanted:
            values = {name: row[name] for name in history.view.values}
            changes[Epoch(row["epoch"])] = None if row["change"] == "removed" else values
    return changes


def apart(one: Row | None, other: Row | None) -> bool:
    """Return whether the values of a key differ in a column that both versions have, by more than rounding."""
    if one is None or other is None:
        return one is not other
    return not all(alike(value, other[name]) for name, value in one.items() if name in other)


def _keys_of_both(contrast: Contrast, before: StateReading, after: StateReading, limit: int) -> None:
    contrast.before, contrast.after = (sum(map(len, each.rows())) for each in (before, after))
    if before.view.schema == after.view.schema and repr(before.view.spec) == repr(after.view.spec):
        for part in compared(Chained(before.rows()), Chained(after.rows())):
            for unlike, is_rounded in _unlike(after.view, part):
                if is_rounded:
                    contrast.rounded += 1
                else:
                    contrast.count(unlike, limit)
        return
    names = [name for name in before.view.values if name in after.view.values]
    for old, new in aligned((Chained(before.rows()), Chained(after.rows()))):
        olds, news = _by_key(before.view, old), _by_key(after.view, new)
        for at, (key, values) in (olds | news).items():
            if at not in olds or at not in news:
                change = Unlike("removed", key, values, None) if at in olds else Unlike("added", key, None, values)
                contrast.count(change, limit)
                continue
            one, other = olds[at][1], news[at][1]
            if not all(same(one[name], other[name]) for name in names):
                if all(alike(one[name], other[name]) for name in names):
                    contrast.rounded += 1
                else:
                    contrast.count(Unlike("changed", key, one, other), limit)


def _unlike(view: View, part: Changed) -> Iterator[tuple[Unlike, bool]]:
    """Yield the differences of one part, and whether each is rounding alone."""
    olds, news = (None if rows is None else list(_shown(view, [rows])) for rows in (part.before, part.after))
    if olds is None or news is None:
        yield from ((Unlike("removed", key, values, None), False) for key, values in olds or ())
        yield from ((Unlike("added", key, None, values), False) for key, values in news or ())
        return
    assert part.before is not None and part.after is not None
    exact = _apart(part.before, part.after)
    for at, ((key, one), (_, other)) in enumerate(zip(olds, news, strict=True)):
        yield Unlike("changed", key, one, other), alike(one, other) and not exact[at]


def _apart(before: StateRows, after: StateRows) -> NDArray[np.bool_]:
    """Return in which rows a stored value differs that is no floating point number."""
    apart = np.zeros(len(before), bool)
    for name, old in before.columns.items():
        if not pa.types.is_floating(arrow(old).type):
            apart |= differ(old, after.columns[name])
    return apart


def _by_key(view: View, rows: StateRows | None) -> dict[Any, tuple[Row, Row]]:
    return {} if rows is None else {frozen(key): (key, values) for key, values in _shown(view, [rows])}


def _shown(view: View, parts: Iterable[StateRows]) -> Iterator[tuple[Row, Row]]:
    """Yield key and values of each row, as they are shown."""
    for rows in parts:
        for row in rows_of(view.table(rows)):
            yield {name: row[name] for name in view.keys}, {name: row[name] for name in view.values}
