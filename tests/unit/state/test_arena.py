from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.state.tables.arena import KeyArena, KeyBatch

STEMS = [b"", b"\x00" * 7, b"\x00" * 8, b"x" * 9, b"x" * 16, b"x" * 130]
keys = st.lists(st.builds(bytes.__add__, st.sampled_from(STEMS), st.binary(max_size=2)), min_size=1, max_size=12)


def batch(stored: list[bytes]) -> KeyBatch:
    return KeyBatch(pa.array(stored, pa.large_binary()))


def arena_of(stored: list[bytes]) -> KeyArena:
    arena = KeyArena()
    arena.append(batch(stored), np.arange(len(stored)))
    return arena


class TestKeyArena:
    @settings(deadline=None)
    @given(keys, keys)
    def test_compares_whole_keys_whatever_their_hashes(self, stored: list[bytes], asked: list[bytes]) -> None:
        rows, slots = (part.reshape(-1) for part in np.indices((len(asked), len(stored))))
        same = arena_of(stored).same(batch(asked))(rows, slots)
        assert same.tolist() == [one == other for one in asked for other in stored]

    def test_tells_keys_apart_by_any_single_byte(self) -> None:
        key = bytes(range(1, 131))
        changed = [key[:at] + b"\xff" + key[at + 1 :] for at in range(len(key))]
        rows = np.arange(len(changed))
        assert not arena_of([key]).same(batch(changed))(rows, np.zeros_like(rows)).any()

    @settings(deadline=None)
    @given(keys, keys)
    def test_returns_the_keys_as_they_were_stored(self, first: list[bytes], second: list[bytes]) -> None:
        arena = arena_of(first)
        arena.append(batch(second), np.arange(len(second)))
        assert arena.take(np.arange(arena.count)).to_pylist() == first + second
