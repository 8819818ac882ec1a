"""The outputs of two versions of a job, side by side: rows of a sink, or keys of an operator, that differ.

A sink with a key shows the newest row of each key. A sink without one shows all rows, in any order, each as often as
it was given. So both are compared as their targets would show them after the last epoch, however many epochs wrote a
row.

Invariants
    - A key counts once. In a sink without a key, a row of one version counts against at most one row of the other.
    - Values that differ only by the rounding of floating point numbers are equal; these are counted.
    - ColumnChanges that only one version has are not compared, but named.

Pure.
Source: docs/decisions/0132-shadow.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from holdfast.model import NO_EPOCH, Epoch
from holdfast.runtime.replay.rounding import RELATIVE
from holdfast.sinks.contract.target import DELETE, OP
from holdfast.storage.held_values import rows_of

Row = dict[str, Any]
Change = Literal["added", "changed", "removed"]
PLAIN = frozenset((str, int))
"""Types of most values, which are compared as they are."""
ALIKE_AMONG = 1_000
"""Rows without a key among which the one is looked for that is most alike, to show both side by side."""


@dataclass(frozen=True)
class Unlike:
    """A row or a key that differs.

    Args:
        change: added: only the new version gives it; removed: only the former one; changed: both, with other values.
        key: Its key; None: a row without one.
        before: The values of the former version; None: it has none.
        after: Those of the new version.
        epoch: The epoch from which on they differ; None if that is unknown.
        is_by_new: Whether the new version gave its values in that epoch; else the former one did.
    """

    change: Change
    key: Row | None
    before: Row | None
    after: Row | None
    epoch: Epoch | None = None
    is_by_new: bool = True


@dataclass(frozen=True)
class ColumnChanges:
    """Names of columns that only one version has."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def of(cls, before: Sequence[str], after: Sequence[str]) -> ColumnChanges:
        """Return those of two lists of names."""
        added = tuple(name for name in after if name not in before)
        return cls(added, tuple(name for name in before if name not in after))

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)


@dataclass
class Contrast:
    """The differences in one sink or operator.

    Args:
        is_in: Which versions have it.
        before: Rows that the former version gave, or keys that it has.
        differ: How many rows or keys differ.
        rounded: How many differ by rounding alone; `differ` does not include them.
        first: The first ones that differ.
        routed: The columns of an operator's key by which a user names it.
    """

    kind: Literal["sink", "operator"]
    name: str
    is_in: Literal["both", "before", "after"] = "both"
    columns: ColumnChanges = ColumnChanges()
    before: int = 0
    after: int = 0
    differ: int = 0
    rounded: int = 0
    first: list[Unlike] = field(default_factory=list)
    routed: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Return whether nothing differs."""
        return not self.differ and not self.columns

    def count(self, each: Unlike, limit: int) -> None:
        """Count a difference, and keep it if it is one of the first."""
        self.differ += 1
        if len(self.first) < limit:
            self.first.append(each)


def alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal, but for the rounding of numbers in them; NaN equals NaN."""
    if type(one) is type(other) and type(one) in PLAIN:
        return bool(one == other)
    match one, other:
        case (bool(), _) | (_, bool()):
            return bool(one == other and type(one) is type(other))
        case (float(), int() | float()) | (int(), float()):
            return math.isclose(one, other, rel_tol=RELATIVE) or (math.isnan(one) and math.isnan(other))
        case (list(), list()) | (tuple(), tuple()):
            return len(one) == len(other) and all(map(alike, one, other))
        case (dict(), dict()):
            return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
        case _:
            return bool(one == other)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal to the last digit; NaN equals NaN."""
    return bool(frozen(one) == frozen(other))


def frozen(value: Any) -> Any:
    """Return a value that can be looked up, and is equal for equal values; NaN equals NaN."""
    if type(value) in PLAIN:
        return value
    match value:
        case float() if math.isnan(value):
            return ("NaN",)
        case bool():
            return ("bool", value)
        case list() | tuple():
            return tuple(map(frozen, value))
        case dict():
            return frozenset((name, frozen(each)) for name, each in value.items())
        case _:
            return value


class GivenRows:
    """The rows that both versions gave a sink, epoch after epoch."""

    def __init__(self, key: tuple[str, ...] | None, names: Sequence[str], *, from_nothing: bool) -> None:
        """Args:
        key: The columns of the key; None: rows are only added.
        names: The columns that are compared.
        from_nothing: Whether the target is empty at first, so that a deleted row is like one that never was.
        """
        self.counts = [0, 0]
        self._names = tuple(names)
        self._rows: _Keyed | _Added = _Added() if key is None else _Keyed(key, from_nothing)
        self._equal_until_now: list[tuple[Epoch, Sequence[pa.RecordBatch]]] | None = []
        """The rows of a sink with a key as long as both versions give the same; they need no comparison by key."""

    def take(self, epoch: Epoch, before: Sequence[pa.RecordBatch], after: Sequence[pa.RecordBatch]) -> None:
        """Take what both versions gave in an epoch."""
        for at, batches in enumerate((before, after)):
            self.counts[at] += sum(batch.num_rows for batch in batches)
        is_equal = self._equal(before, after)
        if isinstance(self._rows, _Added) and is_equal:
            return
        if self._equal_until_now is not None and is_equal:
            self._equal_until_now.append((epoch, before))
            return
        for earlier, batches in self._equal_until_now or ():
            self._rows.take(earlier, self._compared(batches), self._compared(batches))
        self._equal_until_now = None
        self._rows.take(epoch, self._compared(before), self._compared(after))

    def fill(self, into: Contrast, limit: int) -> None:
        """Report the present differences, with the first ones side by side."""
        into.before, into.after = self.counts
        self._rows.fill(into, limit)

    def _compared(self, batches: Sequence[pa.RecordBatch]) -> Iterator[Row]:
        names = [name for batch in batches[:1] for name in batch.schema.names if name in self._names or name == OP]
        return (row for batch in batches for row in rows_of(batch.select(names)))

    def _equal(self, before: Sequence[pa.RecordBatch], after: Sequence[pa.RecordBatch]) -> bool:
        """Return whether the rows are the same in the same order, which is fast to see."""
        if not before or not after or before[0].schema != after[0].schema:
            return not before and not after
        return bool(pa.Table.from_batches(before).equals(pa.Table.from_batches(after)))


Last = tuple[Row | None, Epoch]
"""The newest row of a key, None if it was deleted; and the epoch that wrote it, 0 if none did."""
UNWRITTEN: Last = (None, NO_EPOCH)


class _Keyed:
    """The newest row of each key, of both versions."""

    def __init__(self, key: tuple[str, ...], from_nothing: bool) -> None:
        self._key, self._from_nothing = key, from_nothing
        self._last: tuple[dict[Any, Last], dict[Any, Last]] = ({}, {})
        self._keys: dict[Any, Row] = {}
        self._since: dict[Any, Epoch] = {}
        """The keys that differ now, with the epoch since which they do."""
        self._rounded: set[Any] = set()

    def take(self, epoch: Epoch, before: Iterable[Row], after: Iterable[Row]) -> None:
        keys: dict[Any, None] = {}
        for last, rows in zip(self._last, (before, after), strict=True):
            for row in rows:
                is_deleted = row.pop(OP, None) == DELETE
                key = {name: row[name] for name in self._key}
                at = frozen(list(key.values()))
                last[at], keys[at], self._keys[at] = (None if is_deleted else row, epoch), None, key
        for at in keys:
            self._rounded.discard(at)
            if self._differs(at, alike):
                self._since.setdefault(at, epoch)
                continue
            self._since.pop(at, None)
            if self._differs(at, same):
                self._rounded.add(at)

    def fill(self, into: Contrast, limit: int) -> None:
        into.rounded = len(self._rounded)
        for at, epoch in self._since.items():
            (before, wrote), (after, newly) = self._of(at)
            change: Change = "changed"
            if before is None or after is None:
                change = "removed" if before is not None or not (after is not None or wrote) else "added"
            into.count(Unlike(change, self._keys[at], before, after, epoch, newly >= epoch), limit)

    def _differs(self, at: Any, equal: Callable[[Any, Any], bool]) -> bool:
        one, other = self._of(at)
        if self._from_nothing or bool(one[1]) == bool(other[1]):
            return not equal(one[0], other[0])
        return True

    def _of(self, at: Any) -> tuple[Last, Last]:
        return self._last[0].get(at, UNWRITTEN), self._last[1].get(at, UNWRITTEN)


@dataclass
class _Surplus:
    """Equal rows that one version gave more often than the other.

    Args:
        side: 0: the former version.
        epochs: In which it gave them, one per row.
    """

    row: Row
    side: int
    epochs: list[Epoch]


class _Added:
    """Rows that only one of two versions has given so far, each as often as it has."""

    def __init__(self) -> None:
        self._left: dict[Any, _Surplus] = {}

    def take(self, epoch: Epoch, before: Iterable[Row], after: Iterable[Row]) -> None:
        for side, rows in enumerate((before, after)):
            for row in rows:
                at = frozen(row)
                surplus = self._left.setdefault(at, _Surplus(row, side, []))
                if surplus.side == side:
                    surplus.epochs.append(epoch)
                else:
                    surplus.epochs.pop()
                if not surplus.epochs:
                    del self._left[at]

    def fill(self, into: Contrast, limit: int) -> None:
        surplus: _Sides = ([], [])
        for each in self._left.values():
            surplus[each.side].extend((each.row, epoch) for epoch in each.epochs)
        before, after = (sorted(rows, key=_epoch_of) for rows in _without_rounded(surplus, into))
        into.differ = max(len(before), len(after))
        into.first = list(islice(_side_by_side(before[:ALIKE_AMONG], after[:ALIKE_AMONG]), limit))


_Placed = tuple[Row, Epoch]
_Sides = tuple[list[_Placed], list[_Placed]]


def _epoch_of(each: _Placed) -> Epoch:
    return each[1]


def _without_rounded(surplus: _Sides, into: Contrast) -> _Sides:
    """Return the rows without those of which the other version has one that differs by rounding alone."""
    groups: dict[Any, _Sides] = {}
    for side, rows in enumerate(surplus):
        for each in rows:
            groups.setdefault(_exact(each[0]), ([], []))[side].append(each)
    left: _Sides = ([], [])
    for ones, others in groups.values():
        at = 0
        if ones and others:
            ones.sort(key=lambda each: _floats(each[0]))
            others.sort(key=lambda each: _floats(each[0]))
        for one in ones:
            while at < len(others) and _floats(others[at][0]) < _floats(one[0]) and not alike(one[0], others[at][0]):
                left[1].append(others[at])
                at += 1
            if at < len(others) and alike(one[0], others[at][0]):
                into.rounded += 1
                at += 1
            else:
                left[0].append(one)
        left[1].extend(others[at:])
    return left


def _side_by_side(before: list[_Placed], after: list[_Placed]) -> Iterator[Unlike]:
    """Yield rows in pairs of those that are most alike, then those that are like no row of the other side."""
    rest = list(after)
    for row, epoch in before:
        likeness, back = max(((_likeness(row, other), -at) for at, (other, _) in enumerate(rest)), default=(0, 0))
        if not likeness:
            yield Unlike("removed", None, row, None, epoch, is_by_new=False)
            continue
        other, since = rest.pop(-back)
        yield Unlike("changed", None, row, other, since)
    for row, epoch in rest:
        yield Unlike("added", None, None, row, epoch)


def _likeness(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    return sum(name in other and same(value, other[name]) for name, value in one.items())


def _exact(value: Any) -> Any:
    """Return a value that can be looked up, without the floating point numbers in it."""
    match value:
        case float():
            return ("float",)
        case list() | tuple():
            return tuple(map(_exact, value))
        case dict():
            return frozenset((name, _exact(each)) for name, each in value.items())
        case _:
            return frozen(value)


def _floats(value: Any) -> tuple[float, ...]:
    """Return the floating point numbers in a value, in order; NaN comes first."""
    match value:
        case float():
            return (-math.inf if math.isnan(value) else value,)
        case list() | tuple():
            return tuple(number for each in value for number in _floats(each))
        case dict():
            return tuple(number for name in sorted(value) for number in _floats(value[name]))
        case _:
            return ()
