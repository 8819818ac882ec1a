"""Values that later steps cannot hold: refused at decoding, by an expression, a function or a sink, with their place.

The years are those of Python's `datetime`; what Arrow can hold beyond them is written here as plain numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.model import Epoch, Tag, Timeline
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.contract.accepting import accept, undeliverable
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.held_values import unheld
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
TIME = pa.timestamp("us", "UTC")
YEAR_0, YEAR_10000 = -62_135_596_800_000_001, 253_402_300_800_000_000
DAY_0, DAY_10000 = -719_163, 2_932_897
SCHEMA = pa.schema([pa.field("k", pa.string(), False), pa.field("at", TIME), pa.field("day", pa.date32())])
OUTSIDE = "lies outside the years 1 to 9999"


@dataclass
class Row:
    k: str
    at: datetime | None
    day: date | None


@dataclass
class Key:
    k: str


def times(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64()).view(TIME)


def days(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32()).view(pa.date32())


BATCH = pa.RecordBatch.from_arrays(
    [pa.array(["a", "b", "c", "d"]), times(0, YEAR_10000, None, YEAR_0), days(0, 0, DAY_10000, None)], schema=SCHEMA
)
"""Only the first row holds values that a column may hold."""


def app_of(step: Callable[[Any], Any], *, dlq: bool = True, on_error: Any = None, row_type: Any = Row) -> hf.App:
    app = hf.App("held", key_groups=8, dlq=MemorySink() if dlq else None)
    source: Any = PlannedSource(SCHEMA, row_type)
    step(app.source("rows", source, on_error=on_error)).sink("out", MemorySink())
    return app


def push(t: TestDriver, batch: pa.RecordBatch = BATCH) -> None:
    """Append a batch as it is; `t.push` refuses such values."""
    source = t.sources["rows"]
    source.tables[0] = pa.concat_tables([source.tables[0], pa.Table.from_batches([batch])])
    t.checkpoint()


def keys(t: TestDriver) -> list[str]:
    return [row["k"] for row in t.rows("out")]


class Echo(hf.KeyedProcess[Row, Key]):
    def on_record(self, ctx: hf.Context, r: Row) -> None:
        ctx.emit(Key(r.k))


STEPS: dict[str, Callable[[Any], Any]] = {
    "no step": lambda rows: rows,
    "map": lambda rows: rows.map(lambda r: Key(r.k), to=Key, on_error="dlq"),
    "flat_map": lambda rows: rows.flat_map(lambda r: [Key(r.k)], to=Key),
    "filter": lambda rows: rows.filter(lambda r: True),
    "map_batches": lambda rows: rows.map_batches(lambda b: b.select(["k", "at", "day"]), to=SCHEMA),
    "process": lambda rows: rows.key_by("k").process("p", Echo(), to=Key),
    "expression": lambda rows: rows.with_columns(next=pl.col("day").dt.offset_by("1d")),
}


class TestRecordsOfASource:
    @pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
    def test_are_dead_letters_before_any_step(self, step: Callable[[Any], Any]) -> None:
        with TestDriver(app_of(step), 1) as t:
            push(t)
            assert keys(t) == ["a"]
            letters = [(row["operator"], row["offset"], row["error"]) for row in t.rows("dlq")]
            assert letters == [
                (
                    "rows",
                    1,
                    f"column 'at' has the value {YEAR_10000:,} us since 1970, which lies outside the years 1 to 9999",
                ),
                (
                    "rows",
                    2,
                    f"column 'day' has the value {DAY_10000:,} days since 1970, which lies outside the years 1 to 9999",
                ),
                (
                    "rows",
                    3,
                    f"column 'at' has the value {YEAR_0:,} us since 1970, which lies outside the years 1 to 9999",
                ),
            ]

    def test_are_left_out_by_policy(self) -> None:
        with TestDriver(app_of(STEPS["map"], on_error="drop"), 1) as t:
            push(t)
            assert (keys(t), t.rows("dlq")) == (["a"], [])

    def test_stop_the_job_with_record_column_and_value(self) -> None:
        what = rf"offset 1 of partition 0 cannot be decoded: column 'at' has the value {YEAR_10000:,} us"
        with TestDriver(app_of(STEPS["flat_map"], dlq=False), 1) as t, pytest.raises(hf.JobFailed, match=what):
            push(t)


class TestExpressions:
    def test_stop_the_job_with_column_value_and_row(self) -> None:
        app = app_of(lambda rows: rows.with_columns(later=pl.col("at") + pl.duration(days=3_000_000)))
        what = r"with_columns.* cannot be computed: column 'later' has the value .* us since 1970, .*; the row is k='a'"
        with TestDriver(app, 1) as t, pytest.raises(hf.JobFailed, match=what):
            push(t)

    def test_are_not_asked_about_rows_that_a_filter_drops(self) -> None:
        app = app_of(
            lambda rows: rows.filter(pl.col("k") == "none").with_columns(
                later=pl.col("at") + pl.duration(days=3_000_000)
            )
        )
        with TestDriver(app, 1) as t:
            push(t)
            assert keys(t) == []


class TestFunctions:
    @pytest.mark.parametrize(
        "result",
        [
            lambda r: Row(r.k, datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-5))), None),
            lambda r: Row(r.k, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), None),
        ],
        ids=["year 10000", "year 0"],
    )
    def test_functions_that_return_a_time_outside_the_utc_year_range_fail_on_the_row(self, result: Any) -> None:
        app = app_of(lambda rows: rows.map(result, to=Row, on_error="dlq"))
        with TestDriver(app, 1) as t:
            push(t, BATCH.slice(0, 1))
            assert keys(t) == []
            [letter] = t.rows("dlq")
            assert "returned a wrong row: column 'at'" in letter["error"]

    def test_over_batches_fail_on_the_rows_at_fault(self) -> None:
        def moved(batch: pa.RecordBatch) -> pa.RecordBatch:
            wrong = [DAY_10000 if k == "b" else 0 for k in batch.column("k").to_pylist()]
            return batch.set_column(2, "day", days(*wrong))

        app = app_of(lambda rows: rows.map_batches(moved, to=SCHEMA, on_error="dlq"))
        rows = pa.RecordBatch.from_arrays([pa.array(["a", "b", "c"]), times(0, 0, 0), days(0, 0, 0)], schema=SCHEMA)
        with TestDriver(app, 1) as t:
            push(t, rows)
            assert keys(t) == ["a", "c"]
            [letter] = t.rows("dlq")
            assert f"column 'day' has the value {DAY_10000:,} days since 1970" in letter["error"]


class Unexpecting(MemorySink):
    """A sink whose client library overflows for one value, when rows are staged or when they are delivered."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self._when = when

    def accept(self, batch: pa.RecordBatch) -> None:
        if self._when == "staged" and "c" in batch.column("k").to_pylist():
            raise OverflowError("int too large")

    def open(self, *args: Any, **kwargs: Any) -> Any:
        target: Any = super().open(*args, **kwargs)
        if self._when == "delivered":
            target.deliver = self._overflow
            target.deliver_together = self._overflow
        return target

    def _overflow(self, *_: Any) -> Any:
        raise OverflowError("int too large")


class TestSinks:
    @pytest.mark.continuous("its cluster has a mode of its own")
    @pytest.mark.parametrize("hosts", [CONTINUOUS, MICROBATCH])
    @pytest.mark.parametrize(
        ("when", "what"),
        [
            ("staged", r"converted for the target: OverflowError: int too large; the row is k='c', at="),
            ("delivered", r"a value of epoch \d+ cannot be converted for the target: OverflowError: int too large"),
        ],
    )
    def test_an_unexpected_error_of_conversion_ends_the_job_at_once(
        self, tmp_path: Path, when: str, what: str, hosts: str
    ) -> None:
        create_log(LocalObjects(tmp_path), SCHEMA, 1)
        rows = pa.RecordBatch.from_arrays([pa.array(["a", "b", "c"]), times(0, 1, 2), days(0, 1, 2)], schema=SCHEMA)
        LogWriter(LocalObjects(tmp_path)).append({0: pa.Table.from_batches([rows])})
        app = hf.App("held", key_groups=8)
        app.source("rows", hf.Log(tmp_path, SCHEMA)).sink("out", Unexpecting(when))
        cluster = Cluster(app.plan(), 1, 0, MemoryObjects(), 1.0, {"rows": (0,)}, hosts)
        cluster.begin()
        cluster.pass_time(5)
        phase: Any = cluster.driver.state.phase
        assert phase.outcome == "failed" and re.search(what, phase.error.what)
        assert cluster.driver.state.job.generation == 1, "it did not try again"

    @pytest.mark.continuous("it runs no job")
    def test_a_refusal_of_a_sink_shows_the_first_row_that_it_means(self, tmp_path: Path) -> None:
        sink = hf.Http("http://127.0.0.1:9/rows", progress=tmp_path / "p")
        batch = pa.record_batch({"n": [1, 2, 3, 4], "x": [0.5, 1.5, float("nan"), float("inf")]})
        with pytest.raises(
            hf.ConfigError, match="column 'x' holds NaN or an infinity.*; the first such row is n=3, x=nan"
        ):
            accept(sink, batch)

    @pytest.mark.continuous("it runs no job")
    def test_every_sink_refuses_years_that_no_column_may_hold(self) -> None:
        with pytest.raises(hf.ConfigError, match=r"column 'at' has the value .* 9999; the row is k='b', at=253"):
            accept(MemorySink(), BATCH)

    @pytest.mark.continuous("it runs no job")
    def test_rows_of_a_completed_epoch_that_cannot_be_converted_are_named(self) -> None:
        sink = MemorySink()
        found = undeliverable(sink, Tag(Timeline(1), Epoch(7)), [BATCH.slice(0, 1), BATCH], OverflowError("date"))
        assert "a value of epoch 7 cannot be converted for the target: OverflowError: date (" in found.what
        assert f"column 'at' has the value {YEAR_10000:,} us" in found.what and "--to-epoch" in found.next_step


class TestTable:
    @pytest.mark.continuous("it runs no job")
    @pytest.mark.parametrize(
        ("array", "wrong"),
        [
            (times(YEAR_0, YEAR_0 + 1, YEAR_10000 - 1, YEAR_10000, None), [0, 3]),
            (times(YEAR_0, 1, YEAR_10000).slice(1), [1]),
            (days(DAY_0, DAY_0 + 1, DAY_10000 - 1, DAY_10000), [0, 3]),
            (times(YEAR_10000).cast(pa.timestamp("us")), [0]),
            (pa.array([253_402_300_799, 253_402_300_800]).view(pa.timestamp("s")), [1]),
            (pa.array([-(2**63), 2**63 - 1]).view(pa.timestamp("ns")), []),
            (pa.array([0, 86_399_999_999, 86_400_000_000, -1]).view(pa.time64("us")), [2, 3]),
            (pa.array([10**9 * 86_400, -(10**9) * 86_400]).view(pa.duration("s")), [0, 1]),
            (pa.ListArray.from_arrays([0, 0, 2, 3], days(0, DAY_10000, 0)), [1]),
            (pa.ListArray.from_arrays([0, 0, 2, 3], days(0, DAY_10000, 0)).slice(1), [0]),
            (pa.StructArray.from_arrays([times(0, YEAR_0)], ["x"]), [1]),
            (pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], days(0, DAY_0)), [1]),
            (pa.DictionaryArray.from_arrays([1, 0, None], days(0, DAY_0)), [0]),
            (pa.array(["9999-12-32"]), []),
            (pa.array([float("nan")]), []),
            (times(), []),
        ],
        ids=str,
    )
    def test_says_what_a_column_may_hold(self, array: pa.Array, wrong: list[int]) -> None:
        found = unheld(array)
        assert (found is None and not wrong) or (found is not None and found.nonzero()[0].tolist() == wrong)

    @pytest.mark.continuous("it runs no job")
    @pytest.mark.parametrize("value", [date.min, date.max, None])
    def test_holds_all_dates_of_python(self, value: date | None) -> None:
        assert unheld(pa.array([value], pa.date32())) is None
