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
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

__all__ = ["changed", "grown", "replace", "shortened"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
COPIED_WHOLE = 64
"""Up to this size a mapping is copied as a whole, which takes less than a microsecond."""
CHUNK = 1 << 7
"""Items of a sequence that are kept, and freed, together."""
_Chunk: TypeAlias = list[T] | tuple[T, ...]

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
        return dataclasses.replace(value, **changes)  # a cached value beside the fields, or not a field


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
    """A dict that is shared with other copies, and a small one with later changes."""

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
    return items if isinstance(items, _Shared) else _Shared((), *_chunked(items))


def _chunked(items: Iterable[T]) -> tuple[list[_Chunk[T]], int, int]:
    """Return items in chunks, and the stretch that has all of them."""
    chunks = list[_Chunk[T]]()
    every = list(items)
    for first in range(0, len(every), CHUNK):
        part = every[first : first + CHUNK]
        chunks.append(part if first + CHUNK >= len(every) else tuple(part))
    return chunks, 0, len(every)


class _Shared(Sequence[T]):
    """Some items of its own, then a stretch of chunks that are shared with other copies; all but the last one are full.

    Full chunks are tuples: if no item refers to others, the garbage collector leaves them out from then on, where it
    would look at every item of a list.

    Nothing before the end of the longest stretch ever changes in them. The copy that ends there may add an item; one
    that ends before it shares an equal item, or else copies its stretch. Chunks that no copy reaches are freed one by
    one: to free tens of thousands of items together takes as long as a turn of a loop may last.
    """

    __slots__ = ("_chunks", "_end", "_front", "_start")

    def __init__(self, front: tuple[T, ...], chunks: list[_Chunk[T]], start: int, end: int) -> None:
        self._front, self._chunks, self._start, self._end = front, chunks, start, end

    def grown(self, item: T) -> _Shared[T]:
        number, at = divmod(self._end, CHUNK)
        if number == len(self._chunks):
            if number:
                self._chunks[-1] = tuple(self._chunks[-1])
            self._chunks.append([item])
        elif at == len(self._chunks[number]):
            last = self._chunks[number]
            assert isinstance(last, list), "a full chunk has no end to add to"
            last.append(item)
        elif self._chunks[number][at] != item:
            return _Shared(self._front, *_chunked([*self._stretch(), item]))
        return _Shared(self._front, self._chunks, self._start, self._end + 1)

    def shortened(self, count: int, kept: tuple[T, ...]) -> _Shared[T]:
        count = min(count, len(self))
        front = (*kept, *self._front[count:])
        start = self._start + max(0, count - len(self._front))
        dropped = start // CHUNK
        chunks = self._chunks[dropped:] if dropped else self._chunks
        return _Shared(front, chunks, start - dropped * CHUNK, self._end - dropped * CHUNK)

    def _stretch(self) -> Iterator[T]:
        return islice(chain.from_iterable(self._chunks), self._start, self._end)

    def __len__(self) -> int:
        return len(self._front) + self._end - self._start

    def __iter__(self) -> Iterator[T]:
        return chain(self._front, self._stretch())

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
        if at < own:
            return self._front[at]
        number, at = divmod(self._start + at - own, CHUNK)
        return self._chunks[number][at]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))
