"""Sort words: the form in which an ordered index compares keys.

A key becomes signed words, compared one after another: per column a word, and before it one that puts nulls first if
the column is nullable. A text column is the last one, with its first bytes; canonical bytes decide between equal words.

Where rows are ordered below user keys that have text, the first word is the number of the user key in a table of these
keys. So rows of a user key are adjacent, and finding them compares no bytes. The order of user keys means nothing then.

Invariants
    - The order is that of the canonical bytes, below a user key and for all keys without such numbers.
    - A number is not given to another user key before `clear`.

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.state.compiled.sources import Words
from holdfast.state.keys import canonical as codec
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.kernels.tree_layout import Bounds
from holdfast.state.tables.records import TableRecords
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import TableSpec


class Bound:
    """Bounds of ranges as kernels read them, and the memory that they name.

    Args:
        words: Shape (n, words).
        canonical: The canonical bytes of as many columns; None if words decide.
        above: Whether entries that are equal to a bound are before it.
    """

    def __init__(self, words: Words, canonical: pa.Array | None, above: bool) -> None:
        self.words, self.places = np.ascontiguousarray(words), np.zeros(Bounds.FIELDS, np.int64)
        self._canonical, self._above = canonical, above
        self.places[Bounds.WORDS], self.places[Bounds.COUNT] = self.words.ctypes.data, words.shape[1]
        self.places[Bounds.ABOVE] = above
        if canonical is not None:
            data, starts, lengths = codec.bytes_of(canonical)
            starts, lengths = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
            self._kept = data, starts, lengths
            self.places[Bounds.DATA], self.places[Bounds.STARTS] = data.ctypes.data, starts.ctypes.data
            self.places[Bounds.LENGTHS] = lengths.ctypes.data

    def __len__(self) -> int:
        return len(self.words)

    def take(self, rows: Rows) -> Bound:
        """Return the bounds of these rows."""
        canonical = None if self._canonical is None else self._canonical.take(pa.array(rows))
        return Bound(self.words[rows], canonical, self._above)


class SortWords:
    """How the keys of one type are compared.

    Args:
        kind: The type of all keys.
        timed: A time comes before the key.
    """

    def __init__(self, kind: KeyType, timed: bool) -> None:
        self.kind, self._timed = kind, timed
        self.numbered = bool(kind.suffix and not kind.unrouted and not timed and not kind.routed.fixed)
        """Whether the first word is the number of the user key."""
        columns = range(kind.routed_part.stop if self.numbered else 0, len(kind.types))
        texts = [at for at in columns if codec.is_textual(kind.types[at])]
        self._end = texts[0] + 1 if texts else len(kind.types)
        self.text = bool(texts)
        """Whether canonical bytes decide between equal words."""
        self.count = (timed or self.numbered) + sum(1 + kind.nullable[at] for at in columns if at < self._end)
        """Words of a key."""
        self.clear()

    def clear(self) -> None:
        """Forget the numbers of all user keys."""
        self._users = TableRecords(TableSpec(0, "user keys", self.kind.routed, ())) if self.numbered else None

    @property
    def users(self) -> int:
        """How many user keys have a number."""
        return 0 if self._users is None else len(self._users)

    @property
    def nbytes(self) -> int:
        """Bytes of the user keys' table."""
        return 0 if self._users is None else self._users.nbytes

    def whole(self, keys: Keys, times: NDArray[np.int64] | None) -> Bound:
        """Return the bounds that equal these keys; times come first if there are any."""
        first = [] if times is None else [times]
        if self._users is not None:
            first = [self._users.add(keys.routed())]
        columns = keys.columns() if self.kind.fixed else self.kind.decode(keys)
        start = self.kind.routed_part.stop if self.numbered else 0
        words = self._words(first, columns[start:], start)
        assert words.shape[1] == self.count
        return Bound(words, keys.canonical() if self.text else None, False)

    def below(self, users: Keys, suffix: Sequence[pa.Array], above: bool) -> Bound:
        """Return the bounds of user keys' rows whose suffix begins with these columns.

        Args:
            users: Values of the routed columns; a user key may occur more than once.
            suffix: The first columns of the suffix, or none of them.
            above: Whether the rows that are equal are before the bound.
        """
        assert users.type == self.kind.routed and not self.kind.unrouted and not self._timed
        start = self.kind.routed_part.stop  # the columns before it are those of the user key
        if self._users is not None:
            words = self._words([self._users.find(users)], suffix, start)
        else:
            columns = users.columns() if users.type.fixed else users.type.decode(users)
            words = self._words([], [*columns, *suffix], 0)
        canonical = None
        if self.text and start + len(suffix) >= self._end:
            canonical = codec.joined(users.canonical(), codec.encode(suffix)) if suffix else users.canonical()
        return Bound(words, canonical, above)

    def _words(self, first: list[Words], columns: Sequence[pa.Array], start: int) -> Words:
        """Return the words of columns, of which the first one is the column `start` of the key."""
        words = list(first)
        for at, column in enumerate(columns[: self._end - start], start):
            assert column.type == self.kind.types[at]
            if self.kind.nullable[at]:
                words.append(column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64))
            words.append(codec.sort_words(column))
        return np.stack(words, axis=1)


__all__ = ["Bound", "SortWords"]
