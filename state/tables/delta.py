"""The keyed writes of one operator since the last epoch known to be committed: erased ranges and one row per key.

A barrier freezes a delta; sealed, it is the operator's part of the changelog segment. Values are
absolute, so writing a delta twice, or over a state that holds part of it, does no harm.

Invariants
    - Every key occurs once. A deleted key has default values.
    - The rows are newer than the ranges: a range erases rows from before the delta, never the delta's own rows.
    - Arrays are never modified; another thread may read them.
    - merge(older, newer) has the effect of writing older, then newer (PROTOCOL P8).

Pure: no clock, thread or I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch
from holdfast.state.keys.batch import Keys
from holdfast.state.tables.expiry import NOTHING, Through, can_expire, covered, joined
from holdfast.state.tables.records import Records
from holdfast.state.tables.spec import Columns, TableSpec
from holdfast.state.tables.values import concatenated, taken


@dataclass(frozen=True, eq=False)
class Delta:
    """One operator's writes in one epoch.

    Args:
        epoch: The epoch whose barrier froze it.
        follows: The completed epoch to which it applies.
        operator: Number of the operator.
        key_group_count: Key groups of the job.
        keys: One key per row.
        puts: bool, shape (n,): True = the key has these values, False = it was deleted.
        columns: The values by column name, shape (n,) each: NumPy arrays of plain columns, Arrow arrays of others.
        through: The ranges to erase before the rows are written (state/tables/expiry.py); None: none.
    """

    epoch: Epoch
    follows: Epoch
    operator: int
    key_group_count: int
    keys: Keys
    puts: NDArray[np.bool_]
    columns: Columns
    through: Through | None = None

    def __post_init__(self) -> None:
        assert self.follows < self.epoch
        if self.through is not None:
            assert can_expire(self.keys.type) and self.through.shape == (self.key_group_count,)
            self.through.setflags(write=False)
        for array in (self.puts, *self.columns.values()):
            assert len(array) == len(self.keys)
            if isinstance(array, np.ndarray):
                array.setflags(write=False)

    def __len__(self) -> int:
        """The number of rows in a segment: one per key and one per key group with a range."""
        return len(self.keys) + self.range_groups().size

    def range_groups(self) -> NDArray[np.int64]:
        """Return the key groups that have a range."""
        return np.flatnonzero(self.through != NOTHING) if self.through is not None else np.empty(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of hashes, kinds and values."""
        return 8 * len(self.keys) + self.puts.nbytes + sum(int(array.nbytes) for array in self.columns.values())

    def take(self, rows: NDArray[np.int64]) -> Delta:
        """Return the delta of these rows only, without the ranges."""
        columns = {name: taken(array, rows) for name, array in self.columns.items()}
        keys, puts = self.keys.take(rows), self.puts[rows]
        return Delta(self.epoch, self.follows, self.operator, self.key_group_count, keys, puts, columns)


def merge(older: Delta, newer: Delta) -> Delta:
    """Return the combined effect of writing `older` and then `newer`: the newer value of a key wins.

    Rows that the newer range covers are gone; rows from before the older range were gone already.
    """
    assert older.operator == newer.operator and older.keys.type == newer.keys.type and older.epoch < newer.epoch
    assert older.columns.keys() == newer.columns.keys()
    stays = ~_among(older.keys, newer.keys)
    if newer.through is not None:
        stays &= ~covered(older.keys, newer.through)
    rest = older.take(np.flatnonzero(stays))
    columns = {name: concatenated([array, rest.columns[name]]) for name, array in newer.columns.items()}
    return Delta(
        newer.epoch,
        min(older.follows, newer.follows),
        newer.operator,
        newer.key_group_count,
        _joined(newer.keys, rest.keys),
        np.concatenate([newer.puts, rest.puts]),
        columns,
        joined((older.through, newer.through)),
    )


def _among(asked: Keys, stored: Keys) -> NDArray[np.bool_]:
    """Return whether each asked key is among the stored ones."""
    index = Records(TableSpec(0, "keys", stored.type, ()))
    index.add(stored)
    return index.find(asked) >= 0


def _joined(first: Keys, second: Keys) -> Keys:
    if first.type.fixed:
        return first.type.from_words(np.concatenate([first.words(), second.words()], axis=1))
    hashes = np.concatenate([first.hashes, second.hashes])
    return first.type.from_canonical(pa.concat_arrays([first.canonical(), second.canonical()]), hashes)
