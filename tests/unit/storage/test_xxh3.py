"""Hashes of text and bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
import xxhash

from holdfast.storage.xxh3 import FEW, xxh3_of


class TestXxh3:
    @pytest.mark.parametrize("rows", [0, 1, FEW - 1, FEW, 2 * FEW])
    @pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary(), pa.string(), pa.large_string()])
    def test_is_that_of_the_bytes_for_few_values_and_for_many(self, rows: int, kind: pa.DataType) -> None:
        texts = [f"añ\x00{number}" * (number % 5) for number in range(rows)]
        values = pa.array([text.encode() for text in texts], pa.binary()).cast(kind)

        assert xxh3_of(values).tolist() == [xxhash.xxh3_64_intdigest(text.encode()) for text in texts]

    @pytest.mark.parametrize("rows", [3, FEW + 3])
    def test_the_hash_of_a_null_is_0_and_a_slice_is_hashed_alone(self, rows: int) -> None:
        values = pa.array(["x", None, "", *["y"] * rows])[1:3]
        many = pa.array([None, "z"] * rows)

        assert xxh3_of(values).tolist() == [0, xxhash.xxh3_64_intdigest(b"")]
        assert xxh3_of(many).tolist() == [0, xxhash.xxh3_64_intdigest(b"z")] * rows
