"""Fragments at work: what comes out of exchanges and sinks for what goes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.model import Epoch
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.tables.table import StateTable

BIDS = pa.schema(
    [
        pa.field("auction", pa.int64(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("note", pa.string(), nullable=False),
    ]
)
ROWS = [(1, 10.0, "a"), (2, None, "b"), (1, -5.0, "c"), (3, 7.5, "d")]


@dataclass
class Run:
    """All fragments of a plan in one process; edges hand batches straight on."""

    plan: Plan
    written: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    sent: list[pa.RecordBatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tables = {
            operator.name: StateTable(operator.table, self.plan.key_groups) for operator in self.plan.operators
        }
        self.fragments = [
            FragmentRuntime(fragment, self.tables, self.send, self.write, "hot") for fragment in self.plan.fragments
        ]
        self.epoch = 0

    def send(self, edge: int, batch: pa.RecordBatch) -> None:
        assert batch.schema.equals(self.plan.edges[edge].schema)
        self.sent.append(batch)
        self.fragments[self.plan.edges[edge].to_fragment].on_batch(batch)

    def write(self, sink: str, batch: pa.RecordBatch) -> None:
        self.written.append((sink, batch))

    def barrier(self) -> None:
        for fragment in self.fragments:
            fragment.on_barrier()
        self.epoch += 1
        for table in self.tables.values():
            table.freeze(Epoch(self.epoch), Epoch(self.epoch - 1))

    def rows(self, sink: str = "out") -> list[dict[str, Any]]:
        """Take the rows written to a sink since the last call."""
        taken = [row for name, batch in self.written if name == sink for row in batch.to_pylist()]
        self.written = [(name, batch) for name, batch in self.written if name != sink]
        return taken


def run_of(build: Callable[[Any], None], schema: pa.Schema = BIDS) -> Run:
    app = hf.App("hot")
    build(app.source("bids", PlannedSource(schema)))
    return Run(app.plan())


def batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = BIDS) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


class TestAppendStreams:
    def test_a_stream_without_steps_passes_on_the_same_batch(self) -> None:
        run = run_of(lambda s: s.sink("out", MemorySink()))
        given = batch(ROWS)
        run.fragments[0].on_batch(given)
        assert run.written[0][1] is given

    def test_a_filter_drops_rows_whose_predicate_is_false_or_null(self) -> None:
        run = run_of(lambda s: s.filter(pl.col("price") > 0).sink("out", MemorySink()))
        run.fragments[0].on_batch(batch(ROWS))
        assert [row["note"] for row in run.rows()] == ["a", "d"]

    def test_steps_see_the_results_of_preceding_steps(self) -> None:
        run = run_of(
            lambda s: (
                s.filter(pl.col("price") > 0)
                .with_columns(price=pl.col("price") * 2, old="price")
                .filter(pl.col("price") > 15)
                .select("note", "price", half="old", one=pl.lit(1))
                .sink("out", MemorySink())
            )
        )
        run.fragments[0].on_batch(batch(ROWS))
        assert run.rows() == [{"note": "a", "price": 20.0, "half": 10.0, "one": 1}]

    def test_columns_can_be_swapped(self) -> None:
        run = run_of(lambda s: s.select(note=pl.col("auction"), auction=pl.col("note")).sink("out", MemorySink()))
        run.fragments[0].on_batch(batch(ROWS[:1]))
        assert run.rows() == [{"note": 1, "auction": "a"}]

    def test_a_projection_of_constants_has_one_row_per_input_row(self) -> None:
        run = run_of(lambda s: s.filter(pl.col("price") > 0).select(x=pl.lit(7)).sink("out", MemorySink()))
        run.fragments[0].on_batch(batch(ROWS))
        assert run.rows() == [{"x": 7}, {"x": 7}]

    def test_constants_survive_projections_that_read_nothing(self) -> None:
        run = run_of(lambda s: s.select(x=pl.lit(7)).select(y=pl.lit("t")).sink("out", MemorySink()))
        run.fragments[0].on_batch(batch(ROWS))
        assert run.rows() == [{"y": "t"}] * 4

    def test_output_has_the_types_of_the_plan(self) -> None:
        run = run_of(
            lambda s: s.with_columns(
                parts=pl.col("note").str.split(","), upper=pl.col("note").str.to_uppercase(), i=pl.lit(1).cast(pl.Int8)
            ).sink("out", MemorySink())
        )
        run.fragments[0].on_batch(batch(ROWS))
        assert run.written[0][1].schema.equals(run.plan.sinks[0].schema)

    def test_filtered_texts_keep_their_type(self) -> None:
        run = run_of(lambda s: s.filter(pl.col("price") > 0).sink("out", MemorySink()))
        run.fragments[0].on_batch(batch(ROWS))
        assert run.written[0][1].schema.equals(BIDS)

    def test_a_stream_used_several_times_reaches_every_use(self) -> None:
        def build(s: Any) -> None:
            positive = s.filter(pl.col("price") > 0)
            positive.sink("out", MemorySink())
            positive.filter(pl.col("price") > 8).sink("high", MemorySink())
            s.select("note").sink("notes", MemorySink())

        run = run_of(build)
        run.fragments[0].on_batch(batch(ROWS))
        assert [len(run.rows(name)) for name in ("out", "high", "notes")] == [2, 1, 4]

    def test_a_batch_without_rows_sends_nothing(self) -> None:
        def build(s: Any) -> None:
            s.sink("out", MemorySink())
            s.filter(pl.col("price") > 0).sink("high", MemorySink())
            s.select(x=pl.lit(1)).sink("ones", MemorySink())
            s.key_by("auction").agg("counts", n=hf.count(), total=hf.sum("price"))

        run = run_of(build)
        run.fragments[0].on_batch(batch([]))
        run.barrier()
        assert run.written == [] and run.sent == []

    def test_a_filter_that_no_row_passes_sends_nothing(self) -> None:
        run = run_of(lambda s: s.filter(pl.col("price") > 100).sink("out", MemorySink()))
        run.fragments[0].on_batch(batch(ROWS))
        assert run.written == []

    def test_strings_and_numbers_of_a_row_stay_together_in_filters_and_projections(self) -> None:
        run = run_of(
            lambda s: (
                s.filter(pl.col("price") > 0)
                .select("price", text="note", twice=pl.col("auction") * 2)
                .filter(pl.col("twice") > 2)
                .sink("out", MemorySink())
            )
        )
        run.fragments[0].on_batch(batch([*ROWS, (9, 1.0, "é")]))
        assert run.rows() == [{"price": 7.5, "text": "d", "twice": 6}, {"price": 1.0, "text": "é", "twice": 18}]

    def test_a_batch_of_only_strings_is_filtered(self) -> None:
        run = run_of(lambda s: s.filter(pl.col("price") > 0).select("note").sink("out", MemorySink()))
        run.fragments[0].on_batch(batch(ROWS).slice(1, 3))
        assert run.rows() == [{"note": "d"}]

    def test_a_slice_of_a_batch_is_processed_correctly(self) -> None:
        run = run_of(lambda s: s.with_columns(x=pl.col("price") + 1).sink("out", MemorySink()))
        run.fragments[0].on_batch(batch(ROWS).slice(2, 2))
        assert [(row["note"], row["x"]) for row in run.rows()] == [("c", -4.0), ("d", 8.5)]


class TestFailingExpressions:
    def test_the_error_names_line_operator_and_source(self) -> None:
        run = run_of(
            lambda s: (
                s.filter(pl.col("price").is_null())
                .with_columns(number=pl.col("note").cast(pl.Int64))
                .sink("out", MemorySink())
            )
        )
        with pytest.raises(hf.JobFailed, match=r"with_columns on stream 'bids' at test_fragment.py:\d+") as caught:
            run.fragments[0].on_batch(batch(ROWS))
        assert caught.value.where.source == "bids" and caught.value.where.job == "hot"

    def test_rows_that_a_filter_dropped_cannot_fail_a_later_projection(self) -> None:
        run = run_of(
            lambda s: (
                s.filter(pl.col("note").str.contains("^[0-9]+$"))
                .with_columns(number=pl.col("note").cast(pl.Int64))
                .sink("out", MemorySink())
            )
        )
        run.fragments[0].on_batch(batch([(1, None, "x"), (2, None, "42")]))
        assert [row["number"] for row in run.rows()] == [42]

    def test_rows_that_a_filter_dropped_cannot_fail_a_later_filter(self) -> None:
        run = run_of(
            lambda s: (
                s.filter(pl.col("auction") > 1).filter(pl.col("note").str.to_integer() > 1).sink("out", MemorySink())
            )
        )
        run.fragments[0].on_batch(batch([(1, None, "x"), (2, None, "42")]))
        assert [row["note"] for row in run.rows()] == ["42"]

    def test_a_failure_after_an_aggregate_names_the_operator(self) -> None:
        run = run_of(
            lambda s: (
                s.key_by("note")
                .agg("counts", n=hf.count())
                .with_columns(number=pl.col("note").cast(pl.Int64))
                .sink("out", MemorySink(key=["note"]))
            )
        )
        run.fragments[0].on_batch(batch(ROWS))
        with pytest.raises(hf.JobFailed) as caught:
            run.barrier()
        assert caught.value.where.operator == "counts"


class TestUpsertStreams:
    def counts(self, then: Callable[[Any], Any]) -> Run:
        return run_of(
            lambda s: then(s.key_by("auction").agg("counts", n=hf.count(), total=hf.sum("price"))).sink(
                "out", MemorySink(key=["auction"])
            )
        )

    def test_a_barrier_gives_the_last_value_of_every_key_changed_in_the_epoch(self) -> None:
        run = self.counts(lambda s: s)
        run.fragments[0].on_batch(batch(ROWS))
        assert run.rows() == []
        run.barrier()
        assert sorted(run.rows(), key=lambda row: row["auction"]) == [
            {"auction": 1, "n": 2, "total": 5.0, "_op": 0},
            {"auction": 2, "n": 1, "total": None, "_op": 0},
            {"auction": 3, "n": 1, "total": 7.5, "_op": 0},
        ]
        run.fragments[0].on_batch(batch([(3, 1.0, "x")]))
        run.barrier()
        assert run.rows() == [{"auction": 3, "n": 2, "total": 8.5, "_op": 0}]

    def test_an_epoch_without_records_gives_nothing(self) -> None:
        run = self.counts(lambda s: s)
        run.barrier()
        run.barrier()
        assert run.written == []

    def test_a_filter_turns_rows_that_do_not_pass_into_deletes(self) -> None:
        run = self.counts(lambda s: s.filter(pl.col("total") < 6))
        run.fragments[0].on_batch(batch(ROWS))
        run.barrier()
        assert sorted(run.rows(), key=lambda row: row["auction"]) == [
            {"auction": 1, "n": 2, "total": 5.0, "_op": 0},
            {"auction": 2, "n": None, "total": None, "_op": 1},
            {"auction": 3, "n": None, "total": None, "_op": 1},
        ]

    def test_a_delete_stays_a_delete_through_later_steps(self) -> None:
        run = self.counts(
            lambda s: (
                s.filter(pl.col("n") > 1)
                .with_columns(one=pl.lit(1), filled=pl.col("total").fill_null(0), key2="auction")
                .filter(pl.col("one") == 1)
                .filter(pl.col("n").is_null() | (pl.col("n") > 0))
            )
        )
        run.fragments[0].on_batch(batch(ROWS[:2] + ROWS[:1]))
        run.barrier()
        assert sorted(run.rows(), key=lambda row: row["auction"]) == [
            {"auction": 1, "n": 2, "total": 20.0, "one": 1, "filled": 20.0, "key2": 1, "_op": 0},
            {"auction": 2, "n": None, "total": None, "one": None, "filled": None, "key2": None, "_op": 1},
        ]

    def test_the_operation_column_is_last_and_types_are_those_of_the_plan(self) -> None:
        run = self.counts(lambda s: s.filter(pl.col("n") > 1).with_columns(x=pl.col("n") * 2))
        run.fragments[0].on_batch(batch(ROWS))
        run.barrier()
        expected = [*run.plan.sinks[0].schema, pa.field("_op", pa.int8(), nullable=False)]
        assert run.written[0][1].schema.equals(pa.schema(expected))

    def test_projections_without_a_filter_keep_the_operation(self) -> None:
        run = self.counts(lambda s: s.select("total", "auction", twice=pl.col("n") * 2))
        run.fragments[0].on_batch(batch(ROWS[:1]))
        run.barrier()
        assert run.rows() == [{"total": 10.0, "auction": 1, "twice": 2, "_op": 0}]

    def test_several_aggregates_emit_in_the_order_of_the_plan(self) -> None:
        def build(s: Any) -> None:
            keyed = s.key_by("auction")
            keyed.agg("counts", n=hf.count()).sink("out", MemorySink(key=["auction"]))
            keyed.agg("tops", top=hf.max("price")).sink("best", MemorySink(key=["auction"]))

        run = run_of(build)
        run.fragments[0].on_batch(batch(ROWS))
        run.barrier()
        assert [name for name, _ in run.written] == ["out", "best"]
        progress = run.fragments[1].progress()
        assert [(each.name, each.rows_in, each.rows_out) for each in progress] == [("counts", 4, 3), ("tops", 4, 3)]

    def test_a_rollback_restores_the_committed_values(self) -> None:
        run = self.counts(lambda s: s)
        run.fragments[0].on_batch(batch(ROWS))
        run.barrier()
        run.rows()
        run.fragments[0].on_batch(batch([(1, 100.0, "x")]))
        assert run.tables["counts"].roll_back(Epoch(1))
        run.fragments[0].on_batch(batch([(1, 1.0, "x")]))
        run.fragments[1].on_barrier()
        assert run.rows() == [{"auction": 1, "n": 3, "total": 6.0, "_op": 0}]
