"""`hf.Collect`: every column is read back with the type and values of the stream."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import holdfast as hf
from holdfast.model import Epoch, Subtask, Tag, Timeline, Writer
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.sinks.program.collect import Collect

JOB = "6f9b0f6e-0000-4000-8000-000000000001"
WRITER = Writer("out", Subtask(0))
NOON = datetime(2026, 3, 1, 12, 0, 0, 250, tzinfo=UTC)
EVERY_TYPE = pa.table(
    {
        "whole": pa.array([1, -(2**63), None], pa.int64()),
        "small": pa.array([1, -128, None], pa.int8()),
        "real": pa.array([0.1, float("inf"), None], pa.float64()),
        "single": pa.array([0.1, 2.5, None], pa.float32()),
        "flag": pa.array([True, False, None]),
        "text": pa.array(["north", "", None]),
        "bytes": pa.array([b"\x00\xff", b"", None]),
        "day": pa.array([date(2026, 3, 1), date(1, 1, 1), None], pa.date32()),
        "at": pa.array([NOON, datetime(9999, 12, 31, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    }
)
TOTALS = pa.schema([pa.field("shop", pa.string(), nullable=False), pa.field("sales", pa.int64())])


def tag(epoch: int) -> Tag:
    return Tag(Timeline(1), Epoch(epoch))


def filled(folder: Path, schema: pa.Schema, key: tuple[str, ...] | None, *epochs: pa.RecordBatch) -> Collect:
    sink = Collect().bound(str(folder / "out"), schema, key)
    sink.prepare(schema, key)
    target = sink.open(JOB, WRITER)
    for number, batch in enumerate(epochs, 1):
        sink.accept(batch)
        target.deliver(tag(number), [batch])
    target.close()
    return sink


def changes(*rows: tuple[str, int | None, int]) -> pa.RecordBatch:
    schema = pa.schema([*TOTALS, pa.field(OP, pa.int8())])
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


class TestFrame:
    def test_every_type_is_read_back_unchanged(self, tmp_path: Path) -> None:
        [batch] = EVERY_TYPE.to_batches()
        frame = filled(tmp_path, EVERY_TYPE.schema, None, batch).frame()
        expected = pl.from_arrow(EVERY_TYPE)
        assert isinstance(expected, pl.DataFrame)
        assert_frame_equal(frame, expected)

    def test_a_frame_without_rows_has_the_columns(self, tmp_path: Path) -> None:
        expected = pl.from_arrow(EVERY_TYPE.slice(0, 0))
        assert isinstance(expected, pl.DataFrame)
        assert_frame_equal(filled(tmp_path, EVERY_TYPE.schema, None).frame(), expected)

    def test_rows_of_an_append_stream_are_in_the_order_of_delivery(self, tmp_path: Path) -> None:
        first = pa.RecordBatch.from_pylist([{"shop": "south", "sales": 1}, {"shop": "north", "sales": 2}], TOTALS)
        later = pa.RecordBatch.from_pylist([{"shop": "harbour", "sales": 3}], TOTALS)
        frame = filled(tmp_path, TOTALS, None, first, later).frame()
        assert frame["shop"].to_list() == ["south", "north", "harbour"]

    def test_an_upsert_stream_gives_the_last_row_of_each_key_in_order(self, tmp_path: Path) -> None:
        first = changes(("south", 1, PUT), ("north", 1, PUT), ("west", 1, PUT))
        later = changes(("south", 2, PUT), ("west", None, DELETE))
        frame = filled(tmp_path, TOTALS, ("shop",), first, later).frame()
        assert frame.rows() == [("north", 1), ("south", 2)]

    def test_a_frame_before_any_run_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="no run has filled it"):
            hf.Collect().frame()

    def test_the_users_object_shows_the_rows_that_a_run_delivers(self, tmp_path: Path) -> None:
        batch = pa.RecordBatch.from_pylist([{"shop": "south", "sales": 1}], TOTALS)
        users = hf.Collect()
        users.follow(filled(tmp_path, TOTALS, None, batch))
        assert users.frame().rows() == [("south", 1)]


class TestPlan:
    def test_a_column_that_cannot_be_stored_is_refused(self) -> None:
        with pytest.raises(hf.ConfigError, match="uint64"):
            Collect().check(pa.schema([pa.field("n", pa.uint64())]), None)

    def test_a_sink_can_be_used_for_another_stream_after_a_refusal(self) -> None:
        sink = Collect()
        with pytest.raises(hf.ConfigError):
            sink.check(pa.schema([pa.field("n", pa.uint64())]), None)
        sink.check(TOTALS, ("shop",))
        assert sink.key == ("shop",)
