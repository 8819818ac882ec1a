"""The records of a table that a barrier froze: their copies, and the delta of the copies.

The operator thread adds copies, in steps; once every record is copied, other threads may read them. Values and keys of
variable width are taken out of the table's arenas in the same steps, since arenas move. All other columns are read from
the copies when a segment is sealed, in the order of its rows.

Invariants
    - A slot is copied once. The copy has the record's words as of the barrier.
    - Keys that were taken out are those of the first copies, in their order.

Pure: no clock, thread or I/O.
Source: docs/decisions/0043-incremental-freeze.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch
from holdfast.state.compiled.sources import Words
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.expiry import Through, groups_in
from holdfast.state.tables.kernels.layout import Flag
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import Columns, TableSpec
from holdfast.state.tables.values import concatenated, default_of
from holdfast.state.tables.words import ValueWords

Gather = Callable[[Words, int, int, Rows, Words], None]
"""The kernel gather."""
ROWS_AT_ONCE = 1 << 14
"""Keys that are gathered at a time to compute their key groups: the steps of the hash find them in the cache."""
Rowwise = tuple[Keys, NDArray[np.bool_], Columns]
"""Keys, whether they existed, and columns, with one row each."""


class RecordCopies:
    """Copies of records, one after another.

    Args:
        most: How many records there are at most.
        width: Words of a record.
        state_at: The place of the state word; the key comes before it, the values after it.
    """

    def __init__(self, most: int, width: int, state_at: int, kind: KeyType, values: ValueWords, gather: Gather) -> None:
        # The system hands out memory when it is written.
        self.words: Words = np.empty(most * width, np.int64)
        self.slots: Rows = np.empty(most, np.int64)
        self.width, self.state_at, self.kind, self.values, self._gather = width, state_at, kind, values, gather
        self.count = 0
        self.in_arena = not kind.fixed or bool(values.varying)
        """Whether keys or values of variable width must be taken out."""
        self._taken: list[tuple[Keys, Columns]] = []

    @property
    def nbytes(self) -> int:
        """Bytes of all copies, made or not, and of keys and values that were taken out."""
        taken = sum(int(values.nbytes) for _, columns in self._taken for values in columns.values())
        return self.words.nbytes + self.slots.nbytes + taken

    def of_values(self, at: int) -> Words:
        """Return one word of the values of all copies, a view."""
        matrix: Words = self.words[: self.count * self.width].reshape(self.count, self.width)
        return matrix[:, self.state_at + 1 + at]

    def take_out(self, made: int, keys_of: Callable[[Words], Keys], columns_of: Callable[[Words], Columns]) -> None:
        """Note that this many copies are made, and take keys and values of the new ones out of the arenas."""
        first, self.count = self.count, made
        if self.in_arena and (made > first or not self._taken):
            words = self._gathered(0, self.width, np.arange(first, made))
            self._taken.append((keys_of(words[: self.state_at]), columns_of(self._values_in(words))))

    def key_groups(self, count: int) -> NDArray[np.uint16]:
        """Return the key group of every copy, whose key has a fixed width."""
        groups = np.empty(self.count, np.uint16)
        for first in range(0, self.count, ROWS_AT_ONCE):
            rows = np.arange(first, min(self.count, first + ROWS_AT_ONCE))
            groups[first : first + rows.size] = self.keys(rows).key_groups(count)
        return groups

    def keys(self, rows: Rows) -> Keys:
        """Return the keys, of fixed width, of these copies."""
        return self.kind.from_words(self._gathered(0, self.state_at, rows))

    def rows(self, rows: Rows) -> Rowwise:
        """Return keys, presence and columns of these copies; not if they had to be taken out."""
        words = self._gathered(0, self.width, rows)
        columns = self.values.unpack(self._values_in(words), None)
        return self.kind.from_words(words[: self.state_at]), _present(words[self.state_at]), columns

    def whole(self) -> Rowwise:
        """Return keys, presence and columns of all copies."""
        every = np.arange(self.count)
        if not self.in_arena:
            return self.rows(every)
        keys, columns = self._joined()
        return keys, _present(self._gathered(self.state_at, 1, every)[0]), columns

    def _joined(self) -> tuple[Keys, Columns]:
        """Return all that was taken out, which it replaces by this one piece. Nothing is taken out afterwards."""
        if len(self._taken) > 1:
            pieces = [columns for _, columns in self._taken]
            columns = {name: concatenated([each[name] for each in pieces]) for name in pieces[0]}
            self._taken = [(self._joined_keys([keys for keys, _ in self._taken]), columns)]
        return self._taken[0]

    def _joined_keys(self, taken: list[Keys]) -> Keys:
        if self.kind.fixed:
            return self.kind.from_words(np.concatenate([keys.words() for keys in taken], axis=1))
        canonical = pa.concat_arrays([keys.canonical() for keys in taken])
        return self.kind.from_canonical(canonical, np.concatenate([keys.hashes for keys in taken]))

    def _gathered(self, first: int, count: int, rows: Rows) -> Words:
        """Return words first, first + 1, ... of these copies, shape (count, n)."""
        words = np.empty((count, rows.size), np.int64)
        self._gather(self.words, self.width, first, np.ascontiguousarray(rows, np.int64), words)
        return words

    def _values_in(self, words: Words) -> Words:
        return words[self.state_at + 1 : self.state_at + 1 + self.values.count]


@dataclass(frozen=True, eq=False)
class FrozenDelta:
    """The delta of copies, whose keys and columns are gathered when a segment is sealed, on the thread that seals it.

    Args:
        epoch: The epoch whose barrier froze it.
        follows: The completed epoch to which it applies.
        key_group_count: Key groups of the job.
        through: The ranges to erase before the rows are written; None: none.
    """

    spec: TableSpec
    epoch: Epoch
    follows: Epoch
    key_group_count: int
    copies: RecordCopies
    through: Through | None

    @property
    def operator(self) -> int:
        """Number of the operator."""
        return self.spec.operator

    @property
    def kind(self) -> KeyType:
        """The type of the keys."""
        return self.spec.key

    def __len__(self) -> int:
        return self.copies.count + groups_in(self.through).size

    def sorted_parts(self, rows_max: int) -> Iterator[tuple[NDArray[np.uint16], OperatorDelta]]:
        """Yield the rows as OperatorDelta.sorted_parts does; fixed-width ones are gathered part by part."""
        if self.copies.in_arena:
            yield from self.whole().sorted_parts(rows_max)
            return
        from holdfast.state.keys import ordering  # imports the compiler, which few commands need

        groups = self.copies.key_groups(self.key_group_count)
        for numbers, rows in ordering.parts_by_group(groups, self.key_group_count, rows_max):
            for ordered, order in self.copies.keys(rows).order_in_parts(numbers, rows_max):
                yield ordered, self._delta(*self.copies.rows(rows[order]), None)

    def empty(self) -> OperatorDelta:
        """Return a delta without rows and ranges."""
        columns = {column.name: default_of(column, 0) for column in self.spec.columns}
        return self._delta(self.kind.empty(), np.empty(0, np.bool_), columns, None)

    def whole(self) -> OperatorDelta:
        """Return all rows, in any order, and the ranges."""
        return self._delta(*self.copies.whole(), self.through)

    def _delta(self, keys: Keys, puts: NDArray[np.bool_], columns: Columns, through: Through | None) -> OperatorDelta:
        by_id = {column.id: columns[column.name] for column in self.spec.columns}
        given = self.epoch, self.follows, self.operator, self.key_group_count
        return OperatorDelta(*given, keys, puts, by_id, through)


@dataclass(frozen=True, eq=False)
class Frozen:
    """An epoch that is frozen and neither committed nor rolled back."""

    delta: FrozenDelta
    erased: Rows
    """Slots that only the delta's ranges cover."""

    @property
    def epoch(self) -> Epoch:
        return self.delta.epoch

    @property
    def copies(self) -> RecordCopies:
        return self.delta.copies


class _Pass:
    """A pass over slots or rows, some at a time."""

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    @property
    def left(self) -> int:
        return self._size - self._at

    def take(self, most: int) -> tuple[int, int]:
        """Return the next ones, [first, end)."""
        first = self._at
        self._at += min(self.left, most)
        return first, self._at


class Copying(_Pass):
    """The slots to look at for frozen records of the last frozen epoch.

    Args:
        listed: Where they are, in any order; a slot may occur twice.
        swept: All slots below this one are looked at instead, if that is cheaper; 0: the listed ones.
    """

    def __init__(self, listed: Rows, swept: int) -> None:
        super().__init__(swept or listed.size)
        self.listed, self.swept = listed, bool(swept)


class Committing(_Pass):
    """The copies of the last committed epoch, which become committed values."""

    def __init__(self, copies: RecordCopies) -> None:
        super().__init__(copies.count)
        self.copies = copies


def _present(states: Words) -> NDArray[np.bool_]:
    present: NDArray[np.bool_] = (states & Flag.WORKING) != 0
    return present
