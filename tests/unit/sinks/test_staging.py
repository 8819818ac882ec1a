from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigError, Damaged
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.protocol.staging import FEW_ROWS, Stage, StagedPart, decode, encode, last_per_key, staged_schema

SCHEMA = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.string())])
KEY = ("user",)


def changes(*rows: tuple[int, str | None, int]) -> pa.RecordBatch:
    schema = SCHEMA.append(pa.field(OP, pa.int8()))
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def rows_in(part: StagedPart | None) -> list[tuple[object, ...]]:
    assert part is not None
    rows = [tuple(row.values()) for batch in decode(part.data) for row in batch.to_pylist()]
    assert part.rows == len(rows)
    return rows


class TestStage:
    def test_an_epoch_without_rows_has_no_part(self) -> None:
        stage = Stage(SCHEMA, None)
        stage.add(pa.RecordBatch.from_pylist([], schema=SCHEMA))
        assert stage.seal() is None

    def test_rows_of_an_append_stream_keep_their_order_and_duplicates(self) -> None:
        stage = Stage(SCHEMA, None)
        for users in ([2, 1], [2]):
            stage.add(pa.RecordBatch.from_pydict({"user": users, "name": ["x"] * len(users)}, schema=SCHEMA))
        assert rows_in(stage.seal()) == [(2, "x"), (1, "x"), (2, "x")]

    def test_only_the_last_row_of_a_key_is_staged(self) -> None:
        stage = Stage(SCHEMA, KEY)
        stage.add(changes((1, "a", PUT), (2, "b", PUT), (1, "c", PUT)))
        stage.add(changes((2, None, DELETE), (3, "d", PUT)))
        assert rows_in(stage.seal()) == [(1, "c", PUT), (2, None, DELETE), (3, "d", PUT)]

    def test_a_batch_without_the_op_column_puts_every_row(self) -> None:
        stage = Stage(SCHEMA, KEY)
        stage.add(pa.RecordBatch.from_pydict({"user": [1, 2], "name": ["a", "b"]}, schema=SCHEMA))
        assert rows_in(stage.seal()) == [(1, "a", PUT), (2, "b", PUT)]

    @pytest.mark.parametrize(("rows", "as_they_are"), [(9, True), (2_000, False)])
    def test_few_rows_are_staged_uncompressed_and_many_compressed(self, rows: int, as_they_are: bool) -> None:
        stage, mark = Stage(SCHEMA, None), 0x1122_3344_5566_7788
        stage.add(pa.RecordBatch.from_pydict({"user": [mark] * rows, "name": ["x"] * rows}, schema=SCHEMA))

        part = stage.seal()

        assert part is not None and rows_in(part) == [(mark, "x")] * rows
        assert (mark.to_bytes(8, "little") * rows in part.data) == as_they_are
        assert as_they_are or len(part.data) < 8 * rows

    def test_a_seal_begins_the_next_epoch(self) -> None:
        stage = Stage(SCHEMA, KEY)
        stage.add(changes((1, "a", PUT)))
        assert stage.buffered_bytes > 0
        stage.seal()
        assert (stage.buffered_bytes, stage.seal()) == (0, None)

    def test_batches_of_a_wider_type_are_cast_to_the_schema(self) -> None:
        stage = Stage(SCHEMA, None)
        wide = pa.schema([pa.field("user", pa.int64()), pa.field("name", pa.large_string())])
        stage.add(pa.RecordBatch.from_pydict({"user": [1], "name": ["a"]}, schema=wide))
        part = stage.seal()
        assert part is not None and decode(part.data)[0].schema.field("name").type == pa.string()

    def test_rows_that_the_target_would_refuse_are_refused_before_staging(self) -> None:
        def accept(batch: pa.RecordBatch) -> None:
            raise ConfigError("a null key", next_step="filter it")

        stage = Stage(SCHEMA, KEY, accept)
        with pytest.raises(ConfigError):
            stage.add(changes((1, "a", PUT)))
        assert stage.seal() is None

    def test_deletes_without_a_key_value_are_left_out_but_puts_are_kept(self) -> None:
        seen: list[int] = []
        stage = Stage(SCHEMA, ("user", "name"), lambda batch: seen.append(batch.num_rows))
        schema = SCHEMA.append(pa.field(OP, pa.int8()))
        rows = [(None, "x", DELETE), (1, None, DELETE), (1, "x", DELETE), (None, "y", PUT)]
        for row in rows:
            stage.add(pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True))], schema=schema))
        assert seen == [1, 1]
        assert rows_in(stage.seal()) == [(1, "x", DELETE), (None, "y", PUT)]

    def test_a_batch_with_other_columns_is_an_error_of_the_operator(self) -> None:
        with pytest.raises(AssertionError, match="columns"):
            Stage(SCHEMA, None).add(pa.RecordBatch.from_pydict({"other": [1]}))

    @given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([PUT, DELETE])), min_size=1, max_size=30))
    def test_coalescing_keeps_the_same_rows_as_a_dictionary(self, writes: list[tuple[int, int]]) -> None:
        stage = Stage(SCHEMA, KEY)
        for n, (user, op) in enumerate(writes):
            stage.add(changes((user, str(n), op)))
        kept = {user: (user, str(n), op) for n, (user, op) in enumerate(writes)}
        assert sorted(rows_in(stage.seal())) == sorted(kept.values())


class TestLastPerKey:
    def test_a_key_of_several_columns_may_hold_nulls(self) -> None:
        rows = pa.table({"a": [1, None, 1, None], "b": ["x", "y", "x", "y"], "v": [1, 2, 3, 4]})
        assert last_per_key(rows, ("a", "b"))["v"].to_pylist() == [3, 4]

    @pytest.mark.parametrize("rows", [5, FEW_ROWS - 1, FEW_ROWS, 3 * FEW_ROWS])
    def test_small_and_large_inputs_keep_the_same_rows_in_order(self, rows: int) -> None:
        keys = [row * row % 7 for row in range(rows)]
        last = sorted({key: row for row, key in enumerate(keys)}.values())
        table = pa.table({"a": [key % 2 for key in keys], "b": [f"k{key}" for key in keys], "v": range(rows)})

        assert last_per_key(table, ("a", "b"))["v"].to_pylist() == last

    @pytest.mark.parametrize("rows", [2, FEW_ROWS])
    def test_two_nan_values_are_the_same_key(self, rows: int) -> None:
        table = pa.table({"a": [float("nan")] * rows, "v": range(rows)})

        assert last_per_key(table, ("a",))["v"].to_pylist() == [rows - 1]


class TestDecode:
    def test_the_op_column_is_last_and_contains_put_or_delete(self) -> None:
        schema = staged_schema(SCHEMA, KEY)
        assert (schema.names, schema.field(OP).type) == (["user", "name", OP], pa.int8())
        wrong = pa.Table.from_pylist([{"user": 1, "name": "a", OP: 2}], schema=schema)
        with pytest.raises(Damaged, match="other than 0 and 1"):
            decode(encode(wrong))

    def test_a_foreign_arrow_file_is_damage(self) -> None:
        with pytest.raises(Damaged, match="format is None"):
            decode(encode(pa.table({"user": [1]})))

    @settings(max_examples=60)
    @pytest.mark.parametrize("rows", [2, 500])
    @given(data=st.data())
    def test_truncated_bytes_are_damage(self, rows: int, data: st.DataObject) -> None:
        stage = Stage(SCHEMA, KEY)
        stage.add(changes(*((row, "a", PUT) for row in range(1, rows)), (0, "b", DELETE)))
        part = stage.seal()
        assert part is not None
        with pytest.raises(Damaged, match="staged part is broken"):
            decode(part.data[: data.draw(st.integers(0, len(part.data) - 1))])
