"""What a table keeps of the records that a barrier froze: their copies, and the delta of the copies.

The operator thread adds copies, in steps; once every record is copied, other threads may read them. Values and keys of
variable width are taken out of the table's arenas in the same steps, since arenas move. All other columns are read from
the copies when a segment is sealed, in the order of its rows.

Invariants
    - A slot is copied once. The copy has the record's words as of the barrier.
    - Keys that were taken out are those of the first copies, in their order.

Pure: no clock, thread or I/O.
Source: docs/design/0043-incremental-freeze.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch
from holdfast.state.compiled.sources import Words
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.tables.delta import Delta
from holdfast.state.tables.expiry import Through
from holdfast.state.tables.kernels.layout import Flag
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.spec import Columns
from holdfast.state.tables.values import concatenated
from holdfast.state.tables.words import ValueWords

Gather = Callable[[Words, int, int, Rows, Words], None]
"""The kernel gather."""


class Copies:
    """Copies of records, one after another.

    Args:
        most: How many records there are at most.
        width: Words of a record.
        state_at: The place of the state word; the key comes before it, the values behind it.
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
        """Bytes of all copies, made or not, and of what was taken out."""
        taken = sum(int(values.nbytes) for _, columns in self._taken for values in columns.values())
        return self.words.nbytes + self.slots.nbytes + taken

    def of_values(self, at: int) -> Words:
        """Return one word of the values of all copies, a view."""
        matrix: Words = self.words[: self.count * self.width].reshape(self.count, self.width)
        return matrix[:, self.state_at + 1 + at]

    def take_out(self, made: int, keys_of: Callable[[Words], Keys], columns_of: Callable[[Words], Columns]) -> None:
        """Note that so many copies are made, and take keys and values of the new ones out of the arenas."""
        first, self.count = self.count, made
        if self.in_arena and (made > first or not self._taken):
            words = self._gathered(0, self.width, np.arange(first, made))
            self._taken.append((keys_of(words[: self.state_at]), columns_of(self._values_in(words))))

    def rows(self, rows: Rows) -> tuple[Keys, NDArray[np.bool_], Columns]:
        """Return keys, presence and columns of these copies; not if they had to be taken out."""
        words = self._gathered(0, self.width, rows)
        columns = self.values.unpack(self._values_in(words), None)
        return self.kind.from_words(words[: self.state_at]), _present(words[self.state_at]), columns

    def keys(self) -> Keys:
        """Return the keys of all copies."""
        if not self.in_arena:
            return self.kind.from_words(self._gathered(0, self.state_at, np.arange(self.count)))
        return self._joined()[0]

    def puts(self) -> NDArray[np.bool_]:
        """Return whether the keys of all copies existed."""
        return _present(self._gathered(self.state_at, 1, np.arange(self.count))[0])

    def columns(self) -> Columns:
        """Return the columns of all copies."""
        if not self.in_arena:
            words = self._gathered(self.state_at + 1, self.values.count, np.arange(self.count))
            return self.values.unpack(words, None)
        return self._joined()[1]

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


class FrozenDelta(Delta):
    """The delta of copies. Keys and columns are gathered when they are asked for, on the thread that asks.

    Args:
        names: The name in the delta of each of the table's columns.
    """

    def __init__(
        self,
        epoch: Epoch,
        follows: Epoch,
        operator: int,
        key_group_count: int,
        copies: Copies,
        through: Through | None,
        names: Mapping[str, str],
    ) -> None:
        self._copies: Copies
        self._names: Mapping[str, str]
        given: dict[str, Any] = {"epoch": epoch, "follows": follows, "operator": operator, "through": through}
        given |= {"key_group_count": key_group_count, "_copies": copies, "_names": names}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        if through is not None:
            through.setflags(write=False)

    @cached_property
    def keys(self) -> Keys:
        """The keys, one per row."""
        return self._copies.keys()

    @cached_property
    def puts(self) -> NDArray[np.bool_]:
        """Whether the keys existed, shape (n,)."""
        puts = self._copies.puts()
        puts.setflags(write=False)
        return puts

    @cached_property
    def columns(self) -> Columns:
        """The values by column name, shape (n,) each."""
        return self._named(self._copies.columns())

    def __len__(self) -> int:
        return self._copies.count + self.range_groups().size

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return self._copies.nbytes

    def renamed(self, names: Mapping[str, str]) -> Delta:
        """Return the delta with other names of columns."""
        return FrozenDelta(
            self.epoch,
            self.follows,
            self.operator,
            self.key_group_count,
            self._copies,
            self.through,
            {name: names[present] for name, present in self._names.items()},
        )

    def take(self, rows: NDArray[np.int64]) -> Delta:
        """Return the delta of these rows only, without the ranges."""
        if self._copies.in_arena:
            return super().take(rows)
        keys, puts, columns = self._copies.rows(rows)
        given = self.epoch, self.follows, self.operator, self.key_group_count
        return Delta(*given, keys, puts, self._named(columns))

    def _named(self, columns: Columns) -> Columns:
        return {self._names[name]: _read_only(values) for name, values in columns.items()}


def _present(states: Words) -> NDArray[np.bool_]:
    present: NDArray[np.bool_] = (states & Flag.WORKING) != 0
    return present


def _read_only(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        values.setflags(write=False)
    return values
