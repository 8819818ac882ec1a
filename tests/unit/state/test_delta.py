from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model import Epoch
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.delta import Delta, merge

NUMBER = KeyType(("k",), (pa.int64(),))
NAME = KeyType(("k",), (pa.utf8(),), (True,))
CELLS = {NUMBER: st.integers(-5, 5), NAME: st.sampled_from(["a", "ab", "a\x00", "", None])}


def delta_of(kind: KeyType, epoch: int, rows: dict[Any, int | None]) -> Delta:
    keys = kind.encode([pa.array(list(rows), kind.types[0])])
    puts = np.array([value is not None for value in rows.values()], np.bool_)
    values = np.array([value or 0 for value in rows.values()], np.int64)
    return Delta(Epoch(epoch), Epoch(0), 1, 128, keys, puts, {"count": values})


def rows_of(delta: Delta) -> dict[Any, int | None]:
    keys = delta.keys.type.decode(delta.keys)[0].to_pylist()
    assert len(set(keys)) == len(keys)
    values = zip(keys, delta.puts.tolist(), delta.columns["count"].tolist(), strict=True)
    return {key: value if put else None for key, put, value in values}


class TestMerge:
    @settings(deadline=None)
    @given(st.data(), st.sampled_from([NUMBER, NAME]))
    def test_lets_the_newer_value_of_every_key_win(self, data: st.DataObject, kind: KeyType) -> None:
        rows = st.dictionaries(CELLS[kind], st.integers(1, 9) | st.none(), max_size=6)
        older, newer = data.draw(rows), data.draw(rows)
        merged = merge(delta_of(kind, 3, older), delta_of(kind, 4, newer))
        assert rows_of(merged) == older | newer

    def test_is_the_newer_epoch_and_follows_what_the_older_one_followed(self) -> None:
        merged = merge(delta_of(NUMBER, 3, {1: 1}), delta_of(NUMBER, 4, {1: 2}))
        assert (merged.epoch, merged.follows) == (4, 0)
