"""Python functions in streams: the rows they get, what they may give, and what happens when they fail."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from planned_source import PlannedSource
from pyspark import cloudpickle

import holdfast as hf
from holdfast.errors import ConfigError, JobFailed, Unavailable
from holdfast.runtime.operators.call import PIECE_ROWS
from holdfast.runtime.operators.contract import Arrival
from holdfast.runtime.plan.compiler import Plan, describe, render
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.tables.table import StateTable


@dataclass
class Bid:
    auction: int
    price: float | None
    note: str


@dataclass
class Total:
    auction: int
    total: float


@dataclass(kw_only=True)
class Named:
    note: str
    auction: int = 0
    tags: int = field(default=7)


@dataclass
class Positive:
    auction: int
    price: float | None
    note: str

    def __post_init__(self) -> None:
        if self.auction < 0:
            raise ValueError("below zero")


BIDS = [Bid(1, 10.0, "a"), Bid(2, None, "b"), Bid(3, -5.0, "c")]


def planned(row_type: type) -> PlannedSource:
    return PlannedSource(schema_of(row_type), row_type)


def stream_of(row_type: type = Bid) -> Any:
    return hf.App("hot").source("bids", planned(row_type))


class Run:
    """The source's fragment of a plan; what reaches sink `out` is kept."""

    def __init__(self, build: Callable[[Any], Any], row_type: type = Bid) -> None:
        app = hf.App("hot")
        build(app.source("bids", planned(row_type))).sink("out", MemorySink())
        self.plan: Plan = app.plan()
        self.schema = schema_of(row_type)
        self.written: list[pa.RecordBatch] = []
        self.fragment = FragmentRuntime(self.plan.fragments[0], {}, self._send, self._write, "hot")

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("no shuffle here")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        assert batch.schema.equals(self.plan.sinks[0].schema)
        self.written.append(batch)

    def counters(self) -> dict[str, tuple[int, int]]:
        return {each.name: (each.rows_in, each.rows_out) for each in self.fragment.progress()}

    def dropped(self) -> dict[str, int | None]:
        return {each.name: each.dropped for each in self.fragment.progress()}

    def push(self, rows: list[Any], arrival: Arrival | None = None) -> Run:
        self.fragment.on_batch(pa.RecordBatch.from_pylist([vars(row) for row in rows], schema=self.schema), arrival)
        return self

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.written for row in batch.to_pylist()]


def total(bid: Bid) -> Total:
    return Total(bid.auction, (bid.price or 0.0) * 2)


def fails_at_two(bid: Bid) -> Total:
    if bid.auction == 2:
        raise KeyError("no auction 2")
    return Total(bid.auction, 0.0)


def noting(seen: list[Any]) -> Callable[[Any], bool]:
    def note(row: Any) -> bool:
        seen.append(row)
        return True

    return note


def shipped(value: Any) -> Any:
    """Return what arrives on an executor."""
    return cloudpickle.loads(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]


class TestArgumentsOfAFunction:
    def test_are_rows_of_the_sources_dataclass(self) -> None:
        seen: list[Any] = []
        Run(lambda s: s.filter(noting(seen))).push(BIDS)
        assert seen == BIDS

    def test_are_rows_of_the_type_of_the_preceding_map(self) -> None:
        seen: list[Any] = []
        Run(lambda s: s.map(total, Total).filter(noting(seen))).push(BIDS[:1])
        assert seen == [Total(1, 20.0)]

    def test_are_of_the_dataclass_after_a_filter_by_expression(self) -> None:
        assert Run(lambda s: s.filter(pl.col("auction") > 2).map(total, Total)).push(BIDS).rows == [
            {"auction": 3, "total": -10.0}
        ]

    def test_are_immutable_rows_after_select(self) -> None:
        seen: list[Any] = []
        Run(lambda s: s.select("note", count=pl.col("auction") + 1).filter(noting(seen))).push(BIDS)
        assert [(r.note, r.count) for r in seen] == [("a", 2), ("b", 3), ("c", 4)]
        assert repr(seen[0]) == "Row(note='a', count=2)" and issubclass(type(seen[0]), hf.Row)
        assert seen[0]._replace(count=9) == ("a", 9)
        assert shipped(seen[0])._asdict() == {"note": "a", "count": 2}
        with pytest.raises(AttributeError, match="no column 'price'; it has note, count"):
            _ = seen[0].price
        with pytest.raises(AttributeError):
            seen[0].note = "x"

    def test_are_of_a_dataclass_again_after_as_(self) -> None:
        run = Run(lambda s: s.select(total="price", auction="auction").as_(Total).filter(lambda r: type(r) is Total))
        assert run.push(BIDS[:1]).rows == [{"auction": 1, "total": 10.0}]

    def test_can_have_keyword_only_fields_and_defaults(self) -> None:
        assert Run(lambda s: s.map(lambda r: Named(note=r.note * r.tags, auction=1), Named), Named).push(
            [Named(note="x", tags=3)]
        ).rows == [{"note": "xxx", "auction": 1, "tags": 7}]

    def test_contain_datetimes_in_utc(self) -> None:
        @dataclass
        class At:
            at: datetime
            maybe: datetime | None

        moment = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)
        seen: list[Any] = []
        Run(lambda s: s.filter(noting(seen)), At).push([At(moment, None), At(moment, moment)])
        assert seen == [At(moment, None), At(moment, moment)]
        assert seen[0].at.tzinfo is UTC


class TestResultsOfAFunction:
    @pytest.mark.parametrize(
        "given",
        [Total(4, 1.5), {"auction": 4, "total": 1.5}, {"total": 1.5, "auction": 4}, (4, 1.5)],
        ids=["dataclass", "dict", "dict in another order", "tuple"],
    )
    def test_a_row_can_be_given_in_any_supported_form(self, given: Any) -> None:
        assert Run(lambda s: s.map(lambda r: given, Total)).push(BIDS[:1]).rows == [{"auction": 4, "total": 1.5}]

    def test_the_fields_of_a_row_are_matched_by_name_not_by_order(self) -> None:
        run = Run(lambda s: s.select(total=pl.lit(1.5), auction="auction").map(lambda r: r, Total))
        assert run.push(BIDS[:1]).rows == [{"auction": 1, "total": 1.5}]

    def test_a_schema_can_be_given_instead_of_a_dataclass(self) -> None:
        run = Run(lambda s: s.map(lambda r: {"n": r.auction}, pa.schema([pa.field("n", pa.int16())])))
        assert run.push(BIDS).rows == [{"n": 1}, {"n": 2}, {"n": 3}]

    def test_flat_map_emits_any_number_of_rows_in_order(self) -> None:
        def repeat(r: Bid) -> Any:
            for n in range(r.auction - 1):
                yield Total(r.auction, float(n))

        assert [(r["auction"], r["total"]) for r in Run(lambda s: s.flat_map(repeat, Total)).push(BIDS).rows] == [
            (2, 0.0),
            (3, 0.0),
            (3, 1.0),
        ]

    def test_a_filter_keeps_rows_whose_result_is_true(self) -> None:
        run = Run(lambda s: s.filter(lambda r: r.price is not None and r.price > 0))
        assert run.push(BIDS).rows == [vars(BIDS[0])]

    def test_map_batches_returns_a_batch(self) -> None:
        def double(batch: pa.RecordBatch) -> Any:
            return pl.DataFrame(batch).select("auction", total=pl.col("auction") * 2.0, x=1).drop("x").to_arrow()

        assert Run(lambda s: s.map_batches(double, Total)).push(BIDS[:1]).rows == [{"auction": 1, "total": 2.0}]

    def test_large_batches_are_processed_in_pieces_and_emitted_as_one(self) -> None:
        rows = [Bid(n, None, "") for n in range(2 * PIECE_ROWS + 3)]
        run = Run(lambda s: s.filter(lambda r: r.auction % 2 == 0).map(total, Total)).push(rows)
        assert [row["auction"] for row in run.rows] == list(range(0, len(rows), 2))
        assert len(run.written) == 1

    def test_columns_that_a_later_step_drops_may_still_be_read(self) -> None:
        run = Run(lambda s: s.filter(lambda r: r.note == "b").select("auction").with_columns(y=pl.col("auction") * 2))
        assert run.push(BIDS).rows == [{"auction": 2, "y": 4}]


class TestFailures:
    def failed(self, build: Callable[[Any], Any], arrival: Arrival | None = None, rows: list[Any] = BIDS) -> JobFailed:
        with pytest.raises(JobFailed) as caught:
            Run(build).push(rows, arrival)
        return caught.value

    def test_the_error_names_step_function_exception_and_line(self) -> None:
        error = self.failed(lambda s: s.map(fails_at_two, Total))
        assert "map on stream 'bids' at test_functions.py:" in error.what
        assert "fails_at_two raised KeyError: 'no auction 2' at test_functions.py:" in error.what
        assert '`raise KeyError("no auction 2")`' in error.what
        assert (error.where.job, error.where.operator, error.where.source) == ("hot", "map fails_at_two", "bids")

    @pytest.mark.parametrize("how", ["map", "map_batches"])
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1], ids=["interrupt", "time limit"])
    def test_exceptions_of_signals_are_not_failures_of_a_row(self, how: str, number: int) -> None:
        def over(number: int, frame: object) -> None:
            pytest.fail("over")

        def called(_: Any) -> Any:
            signal.raise_signal(number)

        before = signal.signal(signal.SIGUSR1, over), signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises((KeyboardInterrupt, pytest.fail.Exception)):
                Run(lambda s: getattr(s, how)(called, Bid, on_error="drop")).push(BIDS)
        finally:
            signal.signal(signal.SIGUSR1, before[0])
            signal.signal(signal.SIGINT, before[1])

    @pytest.mark.parametrize("how", ["map", "map_batches"])
    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
    def test_every_exception_that_code_raises_is_a_failure_like_any_other(
        self, how: str, kind: type[BaseException]
    ) -> None:
        def called(_: Any) -> Any:
            raise kind("over")

        run = Run(lambda s: getattr(s, how)(called, Bid, on_error="drop")).push(BIDS)
        assert (run.rows, run.dropped()) == ([], {f"{how} called": 3})
        assert f"called raised {kind.__name__}: over" in self.failed(lambda s: getattr(s, how)(called, Bid)).what

    @pytest.mark.parametrize("how", ["map", "map_batches"])
    def test_a_panic_of_native_code_is_a_failure_like_any_other(self, how: str) -> None:
        def panics(_: Any) -> Any:
            raise pl.exceptions.PanicException("index out of bounds")

        run = Run(lambda s: getattr(s, how)(panics, Bid, on_error="drop")).push(BIDS)
        assert (run.rows, run.dropped()) == ([], {f"{how} panics": 3})
        error = self.failed(lambda s: getattr(s, how)(panics, Bid))
        assert "panics raised PanicException: index out of bounds" in error.what

    def test_the_line_is_from_user_code_even_if_a_library_raised(self) -> None:
        def parse(r: Bid) -> Total:
            return Total(r.auction, datetime.strptime(r.note, "%Y").timestamp())

        assert (
            '`return Total(r.auction, datetime.strptime(r.note, "%Y").timestamp())`'
            in self.failed(lambda s: s.map(parse, Total)).what
        )

    def test_the_code_of_a_partial_and_of_a_callable_object_is_found(self) -> None:
        class Parse:
            def __call__(self, r: Bid) -> Total:
                return Total(int("x"), float(datetime.strptime(r.note, "%Y").year))

        assert '`return Total(int("x"), ' in self.failed(lambda s: s.map(Parse(), Total)).what
        strict = partial(lambda form, r: {"auction": datetime.strptime(r.note, form).year, "total": 0.0}, "%Y")
        assert "`strict = partial(" in self.failed(lambda s: s.map(strict, Total)).what

    def test_the_record_is_named_if_it_is_known(self) -> None:
        error = self.failed(
            lambda s: s.map(lambda r: r, Bid).map(fails_at_two, Total), Arrival(3, 100, 103, contiguous=True)
        )
        assert (error.where.partition, error.where.offset) == (3, 101)
        assert "at offset 101 of partition 3" in error.what

    def test_a_failure_after_a_filter_names_the_offset_range(self) -> None:
        error = self.failed(
            lambda s: s.filter(pl.col("auction") > 1).map(fails_at_two, Total), Arrival(3, 100, 103, contiguous=True)
        )
        assert (error.where.partition, error.where.offset) == (3, None)
        assert "partition 3, offsets 100 to 102" in error.what

    def test_the_record_behind_a_wrong_row_of_flat_map_is_named(self) -> None:
        error = self.failed(
            lambda s: s.flat_map(
                lambda r: [Total(1, 0.0)] * (r.auction - 1) + [Total(r.note, 0.0)] * (r.note == "c"), Total
            ),
            Arrival(0, 0, 3, contiguous=True),
        )
        assert error.where.offset == 2

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            (Total("x", 1.0), "column 'auction' takes int64, not str 'x'"),  # type: ignore[arg-type]
            (Total(1.0, 1.0), "column 'auction' takes int64, not float 1.0"),  # type: ignore[arg-type]
            (Total(1, None), "column 'total' is null"),  # type: ignore[arg-type]
            (Total(1 << 70, 1.0), "column 'auction' takes int64, which cannot hold 1180591620717411303424"),
            ({"auction": 1}, "column 'total' is missing"),
            ({"auction": 1, "total": 1.0, "x": 1}, "column 'x' is not in the schema"),
            ((1,), "a tuple has 1 values for 2 columns"),
            (None, "NoneType is not a row"),
        ],
    )
    def test_a_row_that_does_not_fit_names_field_and_value(self, given: Any, told: str) -> None:
        error = self.failed(lambda s: s.map(lambda r: given, Total))
        assert "lambda returned a wrong row: " in error.what and told in error.what
        assert error.where.operator == "map lambda"

    @pytest.mark.parametrize("given", [None, "rows", {"auction": 1}, Total(1, 1.0), 3])
    def test_flat_map_must_return_rows(self, given: Any) -> None:
        assert "not a list of rows" in self.failed(lambda s: s.flat_map(lambda r: given, Total)).what

    def test_a_filter_must_return_a_boolean(self) -> None:
        assert "lambda returned str 'a', not True or False" in self.failed(lambda s: s.filter(lambda r: r.note)).what

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"auction": [1], "total": [None]}, "column 'total' is null"),
            ({"auction": ["1"], "total": [1.0]}, "column 'auction' takes int64, not string"),
            ({"auction": [1]}, "column 'total' is missing"),
            ({"auction": [1], "total": [1.0], "x": [1]}, "column 'x' is not in the schema"),
        ],
    )
    def test_a_batch_that_does_not_fit_names_the_column(self, given: dict[str, Any], told: str) -> None:
        batch = pa.RecordBatch.from_pydict(given)
        if given.get("total") == [None]:
            batch = batch.set_column(1, "total", pa.array([None], pa.float64()))
        error = self.failed(lambda s: s.map_batches(lambda b: batch, Total))
        assert "returned a wrong batch" in error.what and told in error.what

    def test_map_batches_must_return_a_batch(self) -> None:
        assert "is not a pyarrow.RecordBatch" in self.failed(lambda s: s.map_batches(lambda b: [1], Total)).what

    def test_a_dataclass_that_refuses_its_values_is_named(self) -> None:
        with pytest.raises(JobFailed, match="was not called: making its row raised ValueError: below zero"):
            Run(lambda s: s.filter(lambda r: True), Positive).push([Bid(-1, 1.0, "")])

    def test_a_retryable_error_is_not_a_failure_of_the_row(self) -> None:
        def call(r: Bid) -> Total:
            raise Unavailable("the service is away", next_step="try again")

        with pytest.raises(Unavailable):
            Run(lambda s: s.map(call, Total, on_error="drop")).push(BIDS)

    def test_exiting_the_process_is_a_failure(self) -> None:
        assert "raised SystemExit: 3" in self.failed(lambda s: s.filter(lambda r: sys.exit(3))).what


class TestDropping:
    def test_rows_whose_call_fails_are_left_out_and_counted(self) -> None:
        run = Run(lambda s: s.map(fails_at_two, Total, on_error="drop")).push(BIDS)
        assert [row["auction"] for row in run.rows] == [1, 3]
        assert run.dropped() == {"map fails_at_two": 1}
        assert run.counters() == {"map fails_at_two": (3, 2)}

    def test_rows_that_do_not_fit_are_left_out_and_counted(self) -> None:
        rows = [Bid(n, None if n % 3 else 1.0, "") for n in range(100)]
        run = Run(lambda s: s.map(lambda r: Total(r.auction, r.price), Total, on_error="drop")).push(rows)
        assert [row["auction"] for row in run.rows] == list(range(0, 100, 3))
        assert run.dropped() == {"map lambda": 66}

    def test_a_filter_drops_rows_on_which_it_fails(self) -> None:
        run = Run(lambda s: s.filter(lambda r: r.price > 0, on_error="drop")).push(BIDS)
        assert run.rows == [vars(BIDS[0])]
        assert run.dropped() == {"filter lambda": 1}

    def test_rows_that_cannot_be_built_are_dropped_and_others_keep_their_order(self) -> None:
        rows = [Bid(n, 1.0, str(n)) for n in (1, -1, 2, -2, 3)]
        run = Run(lambda s: s.filter(lambda r: r.auction != 2, on_error="drop"), Positive).push(rows)
        assert [row["note"] for row in run.rows] == ["1", "3"]
        assert run.dropped() == {"filter lambda": 2}

    def test_a_flat_map_that_fails_midway_emits_nothing_for_its_row(self) -> None:
        def halfway(r: Bid) -> Any:
            yield Total(r.auction, 0.0)
            yield Total(r.auction, r.price + 1)  # type: ignore[operator]

        run = Run(lambda s: s.flat_map(halfway, Total, on_error="drop")).push(BIDS)
        assert [row["auction"] for row in run.rows] == [1, 1, 3, 3]

    def test_map_batches_finds_the_failing_rows(self) -> None:
        def total_of(batch: pa.RecordBatch) -> pa.RecordBatch:
            if 13 in batch["auction"].to_pylist():
                raise ValueError("13")
            return pa.RecordBatch.from_arrays([batch["auction"], batch["price"]], ["auction", "total"])

        rows = [Bid(n, None if n == 50 else 1.0, "") for n in range(100)]
        run = Run(lambda s: s.map_batches(total_of, Total, on_error="drop")).push(rows)
        assert [row["auction"] for row in run.rows] == [n for n in range(100) if n not in (13, 50)]
        assert run.dropped() == {"map_batches total_of": 2}

    def test_steps_with_the_same_function_are_counted_separately(self) -> None:
        run = Run(lambda s: s.map(lambda r: r, Bid).map(lambda r: r, Bid)).push(BIDS)
        assert run.counters() == {"map lambda": (3, 3), "map lambda (2)": (3, 3)}


class TestUnion:
    def test_all_rows_of_all_streams_arrive(self) -> None:
        run = Run(lambda s: s.filter(pl.col("auction") == 1).union(s.filter(lambda r: r.auction > 1), s)).push(BIDS)
        assert sorted(row["auction"] for row in run.rows) == [1, 1, 2, 2, 3, 3]

    def test_a_stream_united_with_itself_gives_each_row_twice(self) -> None:
        assert [row["auction"] for row in Run(lambda s: s.union(s)).push(BIDS[:1]).rows] == [1, 1]

    def test_steps_after_a_union_exist_once(self) -> None:
        run = Run(lambda s: s.select("note").union(s.select("note")).map(lambda r: r, pa.schema([("note", pa.utf8())])))
        assert len(run.push(BIDS).rows) == 6
        assert run.counters() == {"map lambda": (6, 6)}

    def test_a_column_is_nullable_if_it_is_in_any_stream(self) -> None:
        run = Run(lambda s: s.select(x="auction").union(s.select(x=pl.col("auction") * 2)))
        assert run.plan.sinks[0].schema.field("x").nullable
        assert [row["x"] for row in run.push(BIDS[:1]).rows] == [1, 2]

    def test_the_dataclass_is_kept_if_all_streams_have_it(self) -> None:
        seen: list[Any] = []
        Run(lambda s: s.union(s.filter(pl.col("auction") > 2)).filter(noting(seen))).push(BIDS[2:])
        assert seen == [BIDS[2], BIDS[2]]

    def test_other_columns_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="stream 2 differ from those of the first: price: expected double"):
            (s := stream_of()).union(s.select("auction", "note"))

    def test_only_other_streams_are_accepted(self) -> None:
        for streams in ((), (3,), (stream_of(),)):
            with pytest.raises(ConfigError):
                stream_of().union(*streams)


class TestAs:
    def test_the_order_becomes_that_of_the_type(self) -> None:
        run = Run(lambda s: s.select(total=pl.lit(1.0), auction="auction").as_(Total))
        assert run.plan.sinks[0].schema.names == ["auction", "total"]
        assert run.push(BIDS[:1]).rows == [{"auction": 1, "total": 1.0}]

    def test_a_null_in_a_field_that_forbids_it_fails(self) -> None:
        run = Run(lambda s: s.select("auction", total="price").as_(Total))
        assert run.push(BIDS[:1]).rows == [{"auction": 1, "total": 10.0}]
        with pytest.raises(JobFailed, match=r"as_ on stream 'bids' at .*: column 'total' is null"):
            run.push(BIDS)

    def test_other_columns_are_refused(self) -> None:
        differ = "total: expected double, but it is missing; price: not expected, found double.\n"
        with pytest.raises(ConfigError, match=f"the columns differ: {differ}") as refused:
            stream_of().select("auction", "price").as_(Total)
        assert ".select('auction', 'total')" in str(refused.value.next_step)

    def test_an_upsert_stream_can_be_given_a_type(self) -> None:
        app = hf.App("hot")
        counted = app.source("bids", planned(Bid)).key_by("auction").agg("sums", total=hf.sum("price"))
        counted.filter(pl.col("total") > 0).as_(Total).sink("out", MemorySink(key=["auction"]))
        plan = app.plan()
        assert plan.sinks[0].upsert_key == ("auction",)
        written: list[dict[str, Any]] = []
        tables = {"sums": StateTable(plan.operators[0].table, plan.key_groups)}
        fragment = FragmentRuntime(
            plan.fragments[1], tables, lambda e, b: None, lambda s, b: written.extend(b.to_pylist())
        )
        fragment.on_batch(pa.RecordBatch.from_pylist([vars(bid) for bid in BIDS], schema=plan.edges[0].schema))
        fragment.on_barrier()
        assert [(row["auction"], row["total"]) for row in written if row["_op"] == 0] == [(1, 10.0)]
        assert sorted((row["auction"], row["total"]) for row in written if row["_op"] == 1) == [(2, None), (3, None)]

    def test_a_null_in_a_put_of_an_upsert_stream_fails(self) -> None:
        app = hf.App("hot")
        sums = app.source("bids", planned(Bid)).key_by("auction").agg("sums", total=hf.sum("price"))
        sums.as_(Total).sink("out", MemorySink(key=["auction"]))
        plan = app.plan()
        tables = {"sums": StateTable(plan.operators[0].table, plan.key_groups)}
        fragment = FragmentRuntime(plan.fragments[1], tables, lambda e, b: None, lambda s, b: None)
        fragment.on_batch(pa.RecordBatch.from_pylist([vars(bid) for bid in BIDS], schema=plan.edges[0].schema))
        with pytest.raises(JobFailed, match="column 'total' is null"):
            fragment.on_barrier()


class TestRefusals:
    @pytest.mark.parametrize(
        ("build", "told"),
        [
            (lambda s: s.map(total, Total, on_error="dlq"), "has no dead letter queue"),
            (lambda s: s.map(total, Total, on_error="ignore"), "on_error is 'ignore'"),
            (lambda s: s.filter(pl.col("auction") > 1, on_error="drop"), "for Python functions only"),
            (lambda s: s.map("total", Total), "not a function"),
            (lambda s: s.map(Total, Total), "not a function"),
            (lambda s: s.map(lambda: 1, Total), "cannot be called with one argument, the row"),
            (lambda s: s.map(lambda a, b: 1, Total), "cannot be called with one argument"),
            (lambda s: s.map(total, int), "neither a dataclass nor a pyarrow.Schema"),
            (lambda s: s.map(total, pa.schema([("_op", pa.int8())])), "'_op' is not allowed"),
            (lambda s: s.key_by("auction").agg("n", n=hf.count()).map(total, Total), "replaces rows by auction"),
            (lambda s: s.key_by("auction").agg("n", n=hf.count()).filter(lambda r: True), "replaces rows by auction"),
            (lambda s: s.union(s.key_by("auction").agg("n", n=hf.count())), "cannot be united"),
        ],
    )
    def test_are_raised_at_the_call(self, build: Callable[[Any], Any], told: str) -> None:
        with pytest.raises(ConfigError) as caught:
            build(stream_of())
        assert told in caught.value.what and "test_functions.py:" in caught.value.what

    def test_include_asynchronous_functions_and_generators(self) -> None:
        async def later(r: Bid) -> Bid:
            return r

        def many(r: Bid) -> Any:
            yield r

        with pytest.raises(ConfigError, match="asynchronous"):
            stream_of().map(later, Bid)
        with pytest.raises(ConfigError, match="yields rows"):
            stream_of().map(many, Bid)

    def test_include_nanoseconds_which_have_no_datetime(self) -> None:
        stream = stream_of().map_batches(lambda b: b, pa.schema([("at", pa.timestamp("ns"))]))
        with pytest.raises(ConfigError, match="no nanoseconds"):
            stream.filter(lambda r: True)


class TestThePlan:
    def test_the_plan_can_be_pickled_with_its_functions(self) -> None:
        factor = 3.0
        run = Run(lambda s: s.map(partial(lambda f, r: Total(r.auction, f * factor), 2.0), Total))
        first = shipped(run.plan.fragments[0])
        written: list[Any] = []
        fragment = FragmentRuntime(first, {}, lambda e, b: None, lambda s, b: written.append(b))
        fragment.on_batch(pa.RecordBatch.from_pylist([vars(BIDS[0])], schema=run.schema))
        assert written[0].to_pylist() == [{"auction": 1, "total": 6.0}]

    def test_the_plan_can_be_rendered(self) -> None:
        run = Run(lambda s: s.map(total, Total, on_error="drop").union(s.map(total, Total)).as_(Total))
        shown = render(run.plan)
        assert "map total, on error: drop" in shown and "to step 2, union" in shown and "check columns" in shown
        assert describe(run.plan)["fragments"][0]["steps"][2]["also"] == [1]
