"""Aggregates over state: equal to a plain group-by however the rows are batched, and never silently wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_source import PlannedSource
from sealed_epochs import sealed_epoch

import holdfast as hf
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables import records
from holdfast.state.tables.table import StateTable

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


class Aggregating:
    """One aggregate over a real table; what its sink would hold, key by key."""

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], segments: list[bytes] | None = None, **aggregates: Any
    ) -> None:
        app = hf.App("test")
        stream = app.source("rows", PlannedSource(schema)).key_by(*keys).agg("totals", **aggregates)
        stream.sink("out", MemorySink(key=keys))
        plan = app.plan()
        self.schema, self.keys = plan.edges[0].schema, tuple(keys)
        self.state: StateStore | None = None
        self.operator, self.epoch = plan.operators[0].id, 0
        self.table = StateTable(plan.operators[0].table, plan.key_groups)
        if segments is not None:
            identity = Identity(JobUuid("job"), Generation(1), Timeline(1), WorkerId("w"))
            tables, groups = [operator.table for operator in plan.operators], plan.key_groups
            self.state = StateStore(identity, tables, groups, (0, groups))
            self._segments = segments
            if segments:
                self.epoch = 1
                self.state.restore(Epoch(1), segments)
            self.table = self.state.table(self.operator)
        self.fragment = FragmentRuntime(plan.fragments[1], {"totals": self.table}, self._send, self._write)
        self.held: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        self.fragment.on_batch(batch.select(self.schema.names))

    def barrier(self) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Close the epoch; return results by key."""
        self.fragment.on_barrier()
        self.epoch += 1
        self.table.freeze(Epoch(self.epoch), Epoch(self.epoch - 1))
        return self.held

    def store_all(self) -> None:
        """Seal the epoch, and commit it."""
        assert self.state is not None
        self._segments.append(sealed_epoch(self.state, self.epoch))
        self.state.commit(Epoch(self.epoch))

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing leaves by an edge")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        batch.validate(full=True)
        width = len(self.keys)
        seen = set()
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            assert row[-1] == 0 and row[:width] not in seen
            seen.add(row[:width])
            self.held[row[:width]] = row[width:-1]


def totals(kind: pa.DataType, values: Sequence[Any], nullable: bool = True, **aggregates: Any) -> tuple[Any, ...]:
    """Aggregate one column over one key, one row per batch and in one batch, and expect the same result."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", kind, nullable=nullable)])
    rows = pa.RecordBatch.from_arrays([pa.array([1] * len(values), pa.int64()), pa.array(values, kind)], schema=schema)
    whole, single = Aggregating(schema, ["k"], **aggregates), Aggregating(schema, ["k"], **aggregates)
    whole.take(rows)
    for row in range(rows.num_rows):
        single.take(rows.slice(row, 1))
    (result,), (again,) = whole.barrier().values(), single.barrier().values()
    assert str(result) == str(again)
    return result


ALL: dict[str, Any] = {
    "rows": hf.count(),
    "some": hf.count("v"),
    "total": hf.sum("v"),
    "low": hf.min("v"),
    "top": hf.max("v"),
    "average": hf.mean("v"),
}


class TestNulls:
    def test_nulls_are_skipped(self) -> None:
        assert totals(pa.int64(), [None, 3, None, 5], **ALL) == (4, 2, 8, 3, 5, 4.0)

    def test_without_any_value_results_are_null_but_counts_are_zero(self) -> None:
        assert totals(pa.int64(), [None, None], **ALL) == (2, 0, None, None, None, None)
        assert totals(pa.float64(), [None], **ALL) == (1, 0, None, None, None, None)

    def test_a_column_that_forbids_nulls_needs_no_count_of_values(self) -> None:
        assert totals(pa.int64(), [4, 2], nullable=False, **ALL) == (2, 2, 6, 2, 4, 3.0)

    def test_null_keys_group_together(self) -> None:
        schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])
        run = Aggregating(schema, ["k"], n=hf.count())
        run.take(pa.RecordBatch.from_pydict({"k": [None, 0, None], "v": [1, 2, 3]}, schema=schema))
        assert run.barrier() == {(None,): (2,), (0,): (1,)}


class TestNaN:
    def test_min_and_max_skip_nan(self) -> None:
        assert totals(pa.float64(), [math.nan, 2.0, 1.0], low=hf.min("v"), top=hf.max("v")) == (1.0, 2.0)

    def test_min_and_max_of_only_nan_are_nan(self) -> None:
        low, top = totals(pa.float64(), [math.nan, None], low=hf.min("v"), top=hf.max("v"))
        assert math.isnan(low) and math.isnan(top)

    def test_sum_and_mean_become_nan(self) -> None:
        total, average = totals(pa.float64(), [math.nan, 2.0], total=hf.sum("v"), average=hf.mean("v"))
        assert math.isnan(total) and math.isnan(average)

    def test_infinities_are_values(self) -> None:
        assert totals(pa.float64(), [math.inf, -math.inf], low=hf.min("v"), top=hf.max("v")) == (-math.inf, math.inf)


class TestTypes:
    @pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()], ids=str)
    def test_narrow_integers_add_up_beyond_their_width(self, kind: pa.DataType) -> None:
        most = 2 ** (kind.bit_width - (0 if pa.types.is_unsigned_integer(kind) else 1)) - 1
        result = totals(kind, [most, most, 1], total=hf.sum("v"), low=hf.min("v"), top=hf.max("v"))
        assert result == (2 * most + 1, 1, most)

    def test_the_largest_unsigned_integers_are_compared_as_unsigned(self) -> None:
        assert totals(pa.uint64(), [2**64 - 1, 1], low=hf.min("v"), top=hf.max("v")) == (1, 2**64 - 1)

    def test_the_limits_of_the_range_can_be_results(self) -> None:
        assert totals(pa.int64(), [INT64_MIN, INT64_MAX], low=hf.min("v"), top=hf.max("v")) == (INT64_MIN, INT64_MAX)
        assert totals(pa.int64(), [INT64_MAX], low=hf.min("v"), nullable=False) == (INT64_MAX,)

    def test_float32_adds_up_in_float64(self) -> None:
        assert totals(pa.float32(), [2.0**25, 1.0], total=hf.sum("v"), top=hf.max("v")) == (2.0**25 + 1, 2.0**25)

    @pytest.mark.parametrize(
        ("kind", "early", "late"),
        [
            (pa.timestamp("us", "UTC"), datetime(1960, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)),
            (pa.timestamp("s"), datetime(1960, 1, 1), datetime(2024, 1, 1)),
            (pa.date32(), date(1960, 1, 1), date(2024, 1, 1)),
            (pa.date64(), date(1960, 1, 1), date(2024, 1, 1)),
            (pa.duration("ms"), timedelta(-1), timedelta(1)),
            (pa.time32("s"), datetime(1960, 1, 1, 1).time(), datetime(1960, 1, 1, 2).time()),
            (pa.time64("us"), datetime(1960, 1, 1, 1).time(), datetime(1960, 1, 1, 2).time()),
        ],
        ids=str,
    )
    def test_times_have_a_min_and_a_max(self, kind: pa.DataType, early: Any, late: Any) -> None:
        result = totals(kind, [late, None, early], first=hf.min("v"), last=hf.max("v"), n=hf.count("v"))
        assert result == (early, late, 2)

    @pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.list_(pa.int64()), pa.decimal128(9, 2)], ids=str)
    def test_values_of_any_type_can_be_counted(self, kind: pa.DataType) -> None:
        assert totals(kind, [None, pa.scalar(None, kind).as_py()], n=hf.count("v")) == (0,)

    @pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
    def test_text_and_bytes_have_a_least_and_a_greatest(self, kind: pa.DataType) -> None:
        def of(*texts: str | None) -> list[Any]:
            written = pa.array(texts, pa.large_string()).cast(pa.large_binary())
            return list(written.cast(kind).to_pylist())

        both: dict[str, Any] = {"n": hf.count("v"), "low": hf.min("v"), "top": hf.max("v"), "rows": hf.count()}
        low, top = of("", "z\x00é")
        assert totals(kind, of("b", None, "z", "", "z\x00é", "a" * 300), **both) == (5, low, top, 6)
        assert totals(kind, of("b"), nullable=False, **both) == (1, *of("b", "b"), 1)
        assert totals(kind, [None, None], **both) == (0, None, None, 2)

    def test_text_too_large_to_keep_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "VALUE_BYTES_MAX", 100)
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])
        run = Aggregating(schema, ["k"], n=hf.count(), top=hf.max("v"))
        run.take(pa.RecordBatch.from_pydict({"k": [1], "v": ["a"]}, schema=schema))
        with pytest.raises(hf.JobFailed, match="key '2'.*101 bytes"):
            run.take(pa.RecordBatch.from_pydict({"k": [1, 2], "v": ["b", "c" * 101]}, schema=schema))
        assert run.barrier() == {(1,): (1, "a")}

    def test_the_key_itself_can_be_aggregated(self) -> None:
        assert totals(pa.int64(), [5, 6], top=hf.max("k"), total=hf.sum("k")) == (1, 2)


class TestOverflow:
    def overflowing(self, values: Sequence[int]) -> hf.JobFailed:
        with pytest.raises(hf.JobFailed, match=r"total = sum\('v'\) of operator 'totals'") as caught:
            totals(pa.int64(), values, total=hf.sum("v"))
        return caught.value

    def test_a_sum_that_does_not_fit_fails_the_job_and_names_the_operator(self) -> None:
        assert self.overflowing([INT64_MAX, 1]).where.operator == "totals"

    def test_a_sum_that_does_not_fit_names_the_key(self) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        run = Aggregating(schema, ["k"], total=hf.sum("v"))
        rows = {"k": [5, 6, 7, 6], "v": [1, INT64_MAX, INT64_MAX, 1]}
        with pytest.raises(hf.JobFailed, match=r"does not fit into 64 bits for the key '6'"):
            run.take(pa.RecordBatch.from_pydict(rows, schema=schema))

    @pytest.mark.parametrize(
        "values", [[INT64_MAX, 1], [INT64_MAX // 2 + 1] * 2, [INT64_MIN // 3] * 4, [1] * 9 + [INT64_MAX - 8]]
    )
    def test_overflow_within_one_batch_is_detected(self, values: list[int]) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        run = Aggregating(schema, ["k"], total=hf.sum("v"))
        rows = {"k": [1] * len(values) + [2] * len(values), "v": [*values, *([0] * len(values))]}
        with pytest.raises(hf.JobFailed, match=r"total = sum\('v'\)"):
            run.take(pa.RecordBatch.from_pydict(rows, schema=schema))
        assert run.barrier() == {}

    def test_rows_of_a_batch_that_overflow_only_across_keys_are_accepted(self) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        run = Aggregating(schema, ["k"], total=hf.sum("v"))
        run.take(pa.RecordBatch.from_pydict({"k": [1, 2, 1, 2], "v": [INT64_MAX - 1] * 2 + [1] * 2}, schema=schema))
        assert run.barrier() == {(1,): (INT64_MAX,), (2,): (INT64_MAX,)}

    @pytest.mark.parametrize("keys", [[1], [2, 1], [2, 2, 1]])
    def test_overflow_of_a_sum_that_was_restored_is_detected(self, keys: list[int]) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        segments = list[bytes]()
        first = Aggregating(schema, ["k"], segments=segments, total=hf.sum("v"))
        first.take(pa.RecordBatch.from_pydict({"k": [1], "v": [INT64_MAX - 5]}, schema=schema))
        first.barrier()
        first.store_all()
        again = Aggregating(schema, ["k"], segments=segments, total=hf.sum("v"))
        for key in keys[:-1]:
            again.take(pa.RecordBatch.from_pydict({"k": [key], "v": [3]}, schema=schema))
        with pytest.raises(hf.JobFailed, match=r"total = sum\('v'\)"):
            again.take(pa.RecordBatch.from_pydict({"k": keys[-1:], "v": [6]}, schema=schema))

    def test_a_sum_that_was_restored_is_added_to(self) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        segments = list[bytes]()
        first = Aggregating(schema, ["k"], segments=segments, total=hf.sum("v"))
        first.take(pa.RecordBatch.from_pydict({"k": [1], "v": [INT64_MAX - 5]}, schema=schema))
        first.barrier()
        first.store_all()
        again = Aggregating(schema, ["k"], segments=segments, total=hf.sum("v"))
        again.take(pa.RecordBatch.from_pydict({"k": [1], "v": [5]}, schema=schema))
        assert again.barrier() == {(1,): (INT64_MAX,)}

    @pytest.mark.parametrize(
        "batches",
        [[1 << 62, 1 << 62], [1 << 61, 1 << 61, 1 << 61, 1 << 61], [(1 << 62) + 1, (1 << 62) - 1], [INT64_MAX, 0, 1]],
    )
    def test_overflow_across_several_batches_is_detected(self, batches: list[int]) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        run = Aggregating(schema, ["k"], total=hf.sum("v"))
        for value in batches[:-1]:
            run.take(pa.RecordBatch.from_pydict({"k": [1], "v": [value]}, schema=schema))
        with pytest.raises(hf.JobFailed, match=r"total = sum\('v'\)"):
            run.take(pa.RecordBatch.from_pydict({"k": [1], "v": batches[-1:]}, schema=schema))
        assert run.barrier() == {(1,): (sum(batches[:-1]),)}

    def test_overflow_below_the_lower_limit_is_detected(self) -> None:
        self.overflowing([INT64_MIN, -1])

    def test_overflow_by_any_amount_is_detected(self) -> None:
        self.overflowing([INT64_MAX] * 4)
        self.overflowing([INT64_MIN] * 2)

    @pytest.mark.parametrize(
        "values", [[INT64_MAX], [INT64_MIN], [INT64_MAX - 1, 1], [INT64_MIN + 1, -1], [INT64_MAX, INT64_MIN, 5]]
    )
    def test_the_largest_sums_that_fit_are_exact(self, values: list[int]) -> None:
        assert totals(pa.int64(), values, total=hf.sum("v")) == (sum(values),)

    def test_large_values_of_different_keys_do_not_disturb_each_other(self) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        run = Aggregating(schema, ["k"], total=hf.sum("v"))
        for _ in range(2):
            run.take(pa.RecordBatch.from_pydict({"k": [1, 2, 3], "v": [INT64_MAX // 2] * 3}, schema=schema))
        assert set(run.barrier().values()) == {(INT64_MAX // 2 * 2,)}

    def test_a_batch_that_fails_changes_nothing(self) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
        run = Aggregating(schema, ["k"], n=hf.count(), total=hf.sum("v"))
        run.take(pa.RecordBatch.from_pydict({"k": [1], "v": [7]}, schema=schema))
        with pytest.raises(hf.JobFailed):
            run.take(pa.RecordBatch.from_pydict({"k": [1, 2], "v": [INT64_MAX, 1]}, schema=schema))
        assert run.barrier() == {(1,): (1, 7)}


KEYS = {"number": st.integers(-3, 3), "text": st.none() | st.sampled_from(["", "a", "b\x00", "é"])}
FLOATS = st.none() | st.floats(-1e6, 1e6) | st.just(math.nan)
ROW = st.tuples(KEYS["number"], KEYS["text"], st.none() | st.integers(INT64_MIN // 100, INT64_MAX // 100), FLOATS)
SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("i", pa.int64()),
        pa.field("f", pa.float64()),
    ]
)


def expected(rows: list[tuple[Any, ...]], keys: list[str]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What a plain group-by over all rows gives, with SQL's null for sums of nothing."""
    types = {"number": pl.Int64, "text": pl.String, "i": pl.Int64, "f": pl.Float64}
    frame = pl.DataFrame(rows, schema=types, orient="row")
    some = pl.col("i").count() > 0, pl.col("f").count() > 0
    grouped = frame.group_by(keys).agg(
        n=pl.len().cast(pl.Int64),
        ni=pl.col("i").count().cast(pl.Int64),
        si=pl.when(some[0]).then(pl.col("i").sum()),
        sf=pl.when(some[1]).then(pl.col("f").sum()),
        li=pl.col("i").min(),
        tf=pl.col("f").max(),
        lf=pl.col("f").min(),
        mi=pl.col("i").mean(),
        mf=pl.col("f").mean(),
    )
    return {row[: len(keys)]: row[len(keys) :] for row in grouped.rows()}


def close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-3)
    return bool(one == other) and (one is None) == (other is None)


class TestAgainstAGroupBy:
    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.lists(ROW, max_size=40),
        cuts=st.lists(st.integers(0, 40), max_size=6),
        barriers=st.sets(st.integers(0, 6)),
        keys=st.sampled_from([["number"], ["text"], ["text", "number"]]),
    )
    def test_results_do_not_depend_on_the_division_into_batches_and_epochs(
        self, rows: list[tuple[Any, ...]], cuts: list[int], barriers: set[int], keys: list[str]
    ) -> None:
        run = Aggregating(
            SCHEMA,
            keys,
            n=hf.count(),
            ni=hf.count("i"),
            si=hf.sum("i"),
            sf=hf.sum("f"),
            li=hf.min("i"),
            tf=hf.max("f"),
            lf=hf.min("f"),
            mi=hf.mean("i"),
            mf=hf.mean("f"),
        )
        columns = list(zip(*rows, strict=True)) or [()] * 4
        whole = pa.RecordBatch.from_arrays(
            [pa.array(column, field.type, from_pandas=False) for column, field in zip(columns, SCHEMA, strict=True)],
            schema=SCHEMA,
        )
        edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
        for number, (first, end) in enumerate(pairwise(edges)):
            run.take(whole.slice(first, end - first))
            if number in barriers:
                run.barrier()
        held, wanted = run.barrier(), expected(rows, keys)
        assert held.keys() == wanted.keys()
        for key, results in wanted.items():
            assert all(map(close, held[key], results)), (key, held[key], results)
