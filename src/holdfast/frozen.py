"""Changed copies of frozen values, several times as fast: of dataclasses, mappings and sequences.

State machines return a changed copy of their state for every event, usually with one of fifteen fields changed. The
copy takes over the original's fields without running `__init__`. That is correct only for classes that check and
compute nothing when they are created; the others go through dataclasses.replace.

A driver's tables have an entry per worker, and each worker changes its own in every epoch: with a copy of the table per
change, the work grows with the square of the number of workers. So it does with the retained checkpoints: every epoch
adds one at the end, and an expiry takes many from the front.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeVar, overload

__all__ = ["changed", "grown", "replace", "shortened"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
COPIED_WHOLE = 64
"""Up to this size a mapping is copied as a whole, which takes less than a microsecond."""

if TYPE_CHECKING:
    from dataclasses import replace  # the type checker knows it and compares the changes with the fields
else:

    def replace(value: T, /, **changes: Any) -> T:
        """Return a copy with these fields changed."""
        kind = type(value)
        if count := _fields_copied(kind):
            copy = object.__new__(kind)
            fields = copy.__dict__
            fields.update(value.__dict__)
            fields.update(changes)
            if len(fields) == count:
                return copy
        return dataclasses.replace(value, **changes)  # a cached value beside the fields, or a change that is no field


@cache
def _fields_copied(kind: Any) -> int:
    """Return how many fields an object of this class has; 0 if creating one does more than store them."""
    fields = dataclasses.fields(kind)
    checks = hasattr(kind, "__post_init__") or hasattr(kind, "__slots__") or not kind.__dataclass_params__.init
    return 0 if checks or not all(field.init for field in fields) else len(fields)


def changed(table: Mapping[K, V], key: K, value: V) -> Mapping[K, V]:
    """Return a copy with this entry set. A known key keeps its place in the order, a new one is the last.

    With n entries it takes a time that grows with the square root of n, on average; `{**table, key: value}` with n.
    """
    if isinstance(table, _Patched):
        return table.changed(key, value)
    if len(table) <= COPIED_WHOLE:
        return {**table, key: value}
    return _Patched({**table}, {}).changed(key, value)


class _Patched(Mapping[K, V]):
    """A dict that is shared with other copies, and a small one with what has changed since."""

    __slots__ = ("_base", "_patch")

    def __init__(self, base: dict[K, V], patch: dict[K, V]) -> None:
        self._base, self._patch = base, patch

    def changed(self, key: K, value: V) -> _Patched[K, V]:
        patch = {**self._patch, key: value}
        if len(patch) <= isqrt(len(self._base)):
            return _Patched(self._base, patch)
        return _Patched({**self._base, **patch}, {})

    def __getitem__(self, key: K) -> V:
        patch = self._patch
        return patch[key] if key in patch else self._base[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._base) + sum(key not in self._base for key in self._patch)

    def __repr__(self) -> str:
        return repr(self._whole())

    def items(self) -> ItemsView[K, V]:
        return self._whole().items()

    def _whole(self) -> dict[K, V]:
        return {**self._base, **self._patch} if self._patch else self._base


def grown(items: Sequence[T], item: T) -> Sequence[T]:
    """Return a copy with one more item at the end: on average in the same time for every length."""
    return _shared(items).grown(item)


def shortened(items: Sequence[T], count: int, kept: tuple[T, ...] = ()) -> Sequence[T]:
    """Return a copy that has these items in place of its first `count`: on average in a time that grows with `count`.

    Args:
        kept: Few of those first ones, since every copy holds them.
    """
    return _shared(items).shortened(count, kept)


def _shared(items: Sequence[T]) -> _Shared[T]:
    return items if isinstance(items, _Shared) else _Shared((), list(items), 0, len(items))


class _Shared(Sequence[T]):
    """Some items of its own, then a stretch of a list that is shared with other copies.

    Nothing before the end of the longest stretch ever changes in the list. The copy that ends there may add an item;
    one that ends before it shares an equal item, or else copies its stretch.
    """

    __slots__ = ("_end", "_front", "_items", "_start")

    def __init__(self, front: tuple[T, ...], items: list[T], start: int, end: int) -> None:
        self._front, self._items, self._start, self._end = front, items, start, end

    def grown(self, item: T) -> _Shared[T]:
        items, start, end = self._items, self._start, self._end
        if end == len(items):
            items.append(item)
        elif items[end] != item:
            items, start, end = [*items[start:end], item], 0, end - start
        return _Shared(self._front, items, start, end + 1)

    def shortened(self, count: int, kept: tuple[T, ...]) -> _Shared[T]:
        count = min(count, len(self))
        front = (*kept, *self._front[count:])
        items, start, end = self._items, self._start + max(0, count - len(self._front)), self._end
        if 2 * start > len(items):  # most of the list is of no use to this copy and later ones
            items, start, end = items[start:end], 0, end - start
        return _Shared(front, items, start, end)

    def __len__(self) -> int:
        return len(self._front) + self._end - self._start

    def __iter__(self) -> Iterator[T]:
        return chain(self._front, islice(self._items, self._start, self._end))

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[T, ...]: ...
    def __getitem__(self, at: int | slice) -> T | tuple[T, ...]:
        if isinstance(at, slice):
            return tuple(self[n] for n in range(*at.indices(len(self))))
        count = len(self)
        if not -count <= at < count:
            raise IndexError(at)
        at = at % count
        own = len(self._front)
        return self._front[at] if at < own else self._items[self._start + at - own]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))
