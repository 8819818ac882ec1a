"""Any chain of filters and projections gives the result of Polars on all rows, however they are batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_source import PlannedSource

import holdfast as hf
from holdfast.errors import JobFailed
from holdfast.model import Epoch
from holdfast.runtime.rows.frames import twice
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.tables.table import StateTable

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("s", pa.string()),
    ]
)
TYPES = {"k": pl.Int64, "v": pl.Int64, "s": pl.String}
ROW = st.tuples(st.integers(0, 4), st.none() | st.integers(-9, 9), st.none() | st.sampled_from(["", "a", "bé"]))

STEPS: dict[str, Callable[[Any], Any]] = {
    "drop some": lambda t: t.filter(pl.col("v") > 0),
    "drop by text": lambda t: t.filter(pl.col("s").str.len_chars() < 2),
    "drop none": lambda t: t.filter(pl.lit(True)),
    "keep nulls": lambda t: t.filter(pl.col("v").is_null() | (pl.col("k") < 3)),
    "compute": lambda t: t.with_columns(v=pl.col("v") * 2 + pl.col("k")),
    "fill": lambda t: t.with_columns(v=pl.col("v").fill_null(1), s=pl.col("s").fill_null("none")),
    "swap": lambda t: t.select("k", s=pl.col("v").cast(pl.String), v=pl.col("s").str.len_chars().cast(pl.Int64)),
    "add a constant": lambda t: t.with_columns(one=pl.lit(1)).select("one", "s", "v", "k"),
    "reorder": lambda t: t.select("s", "v", "k"),
}
TENTHS = pl.col("k") * pl.lit(0.1)
CHAIN = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6)


def through(chain: list[str], start: Any) -> Any:
    for name in chain:
        start = STEPS[name](start)
    return start


def frame_of(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=TYPES, orient="row")


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * 3
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


class TestEngine:
    """The streaming engine hands each batch to threads of its own, which costs more than a small batch itself."""

    @pytest.fixture(autouse=True)
    def another_is_preferred(self) -> Iterator[None]:
        """Let Polars use one that is not installed unless a query says which: what says nothing then fails."""
        with pl.Config():
            pl.Config.set_engine_affinity("gpu")
            with pytest.raises(ModuleNotFoundError):
                pl.LazyFrame({"v": [1]}).collect()
            yield

    def run(self, chain: Callable[[Any], Any], rows: list[tuple[Any, ...]]) -> list[pa.RecordBatch]:
        app, out = hf.App("test"), list[pa.RecordBatch]()
        chain(app.source("rows", PlannedSource(SCHEMA))).sink("out", MemorySink())
        write = lambda sink, batch: out.append(batch)
        FragmentRuntime(app.plan().fragments[0], {}, lambda edge, batch: None, write).on_batch(batch_of(rows))
        return out

    def test_the_engine_of_a_chain_is_the_in_memory_one(self) -> None:
        (batch,) = self.run(
            lambda t: t.filter(pl.col("v") > 1).with_columns(v=pl.col("v") * 2), [(1, 1, ""), (1, 2, "")]
        )
        assert batch.column("v").to_pylist() == [4]

    def test_the_search_for_the_failing_step_uses_the_same_engine(self) -> None:
        with pytest.raises(JobFailed, match="cannot be computed"):
            self.run(lambda t: t.filter(pl.col("v") > 0).with_columns(v=pl.col("s").cast(pl.Int64)), [(1, 1, "a")])


class TestChains:
    @settings(max_examples=80, deadline=None)
    @given(rows=st.lists(ROW, max_size=12), chain=CHAIN, cut=st.integers(0, 12))
    def test_an_append_stream_gives_the_same_rows_in_any_batches(
        self, rows: list[tuple[Any, ...]], chain: list[str], cut: int
    ) -> None:
        app = hf.App("test")
        through(chain, app.source("rows", PlannedSource(SCHEMA))).sink("out", MemorySink())
        plan, out = app.plan(), list[pa.RecordBatch]()
        fragment = FragmentRuntime(
            plan.fragments[0], {}, lambda edge, batch: None, lambda sink, batch: out.append(batch)
        )
        fragment.on_batch(batch_of(rows).slice(0, cut))
        fragment.on_batch(batch_of(rows).slice(cut))
        for batch in out:
            batch.validate(full=True)
            assert batch.schema.equals(plan.sinks[0].schema)
        expected = through(chain, frame_of(rows))
        assert [row for batch in out for row in batch.to_pylist()] == expected.to_dicts()

    @pytest.mark.parametrize(
        "chain",
        [
            lambda t: t.select("k", x=TENTHS // 0.1),
            lambda t: t.select("k", x=TENTHS / 7),
            lambda t: t.filter(pl.col("k") == 7).select("k", x=TENTHS / 7),
            lambda t: t.filter(pl.col("k") == 7).filter(pl.col("k") / 10 // 0.1 < 7),
            lambda t: t.filter(pl.col("k") == 7).filter(pl.col("k") / 10 // 0.1 >= 7),
            lambda t: t.filter(TENTHS // 0.1 > 2).filter(pl.col("k") == 3).select("k", x=pl.col("k") / 7),
        ],
    )
    @pytest.mark.parametrize("direct_max", [0, 100], ids=["by queries", "directly where possible"])
    def test_a_row_has_the_same_values_alone_and_among_others(
        self, chain: Any, direct_max: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.operators.chain.ROWS_MAX", direct_max)
        rows = [(k, 1, "") for k in range(20)]
        outs = []
        for cuts in (range(20), [0]):
            app, out = hf.App("test"), list[pa.RecordBatch]()
            chain(app.source("rows", PlannedSource(SCHEMA))).sink("out", MemorySink())
            write = lambda sink, batch, out=out: out.append(batch)
            fragment = FragmentRuntime(app.plan().fragments[0], {}, lambda edge, batch: None, write)
            for at in cuts:
                fragment.on_batch(batch_of(rows).slice(at, 1 if len(cuts) > 1 else 20))
            outs.append([row for batch in out for row in batch.to_pylist()])
        alone, together = outs
        assert alone == together == chain(twice(frame_of(rows))).to_dicts()[: len(together)]

    def test_a_row_that_a_filter_left_of_a_piece_has_the_values_that_it_has_among_others(self) -> None:
        size = 200_000
        app, out = hf.App("test"), list[pa.RecordBatch]()
        app_rows = app.source("rows", PlannedSource(pa.schema([pa.field("k", pa.int64(), nullable=False)])))
        kept = app_rows.filter((pl.col("k") == 5) | (pl.col("k") > size - 9)).select(x=pl.col("k") / 7)
        kept.sink("out", MemorySink())
        write = lambda sink, batch: out.append(batch)
        fragment = FragmentRuntime(app.plan().fragments[0], {}, lambda edge, batch: None, write)
        fragment.on_batch(pa.record_batch({"k": np.arange(size)}))
        fragment.on_batch(pa.record_batch({"k": np.arange(5, 6)}))
        large, small = (batch.column("x")[0].as_py() for batch in out)
        assert large == small == 5 * (1 / 7)

    @settings(max_examples=80, deadline=None)
    @given(epochs=st.lists(st.lists(ROW, max_size=6), max_size=4), chain=CHAIN)
    def test_an_upsert_stream_leaves_the_chain_applied_to_the_last_values(
        self, epochs: list[list[tuple[Any, ...]]], chain: list[str]
    ) -> None:
        app = hf.App("test")
        kept = app.source("rows", PlannedSource(SCHEMA)).key_by("k", "s").agg("kept", v=hf.max("v"))
        app_rows = kept.with_columns(t="s").select("k", "s", "v")
        through(chain_for_keys(chain), app_rows).sink("out", MemorySink(key=["k", "s"]))
        plan = app.plan()
        table = StateTable(plan.operators[0].table, plan.key_groups)
        held: dict[tuple[Any, ...], dict[str, Any]] = {}

        def write(sink: str, batch: pa.RecordBatch) -> None:
            for row in batch.to_pylist():
                key, op = (row["k"], row["s"]), row.pop("_op")
                if op:
                    assert all(value is None for name, value in row.items() if name not in ("k", "s"))
                    held.pop(key, None)
                else:
                    held[key] = row

        fragment = FragmentRuntime(plan.fragments[1], {"kept": table}, lambda edge, batch: None, write)
        for number, rows in enumerate(epochs, 1):
            fragment.on_batch(batch_of(rows).select(plan.edges[0].schema.names))
            fragment.on_barrier()
            table.freeze(Epoch(number), Epoch(number - 1))
        last = frame_of([row for rows in epochs for row in rows]).group_by("k", "s").agg(pl.col("v").max())
        expected = through(chain_for_keys(chain), last.select("k", "s", "v"))
        assert held == {(row["k"], row["s"]): row for row in expected.to_dicts()}


def chain_for_keys(chain: list[str]) -> list[str]:
    """Leave out the steps that change a key column, which an upsert stream refuses."""
    return [name for name in chain if name not in ("fill", "swap")]
