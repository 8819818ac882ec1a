"""Changed copies of frozen values, several times as fast: dataclasses.replace, and a mapping with one entry changed.

State machines return a changed copy of their state for every event, usually with one of fifteen fields changed. The
copy takes over the original's fields without running `__init__`. That is correct only for classes that check and
compute nothing when they are created; the others go through dataclasses.replace.

A driver's tables have an entry per worker, and each worker changes its own in every epoch: with a copy of the table per
change, the work grows with the square of the number of workers.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, Iterator, Mapping
from functools import cache
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["changed", "replace"]

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
