"""Aggregates over tables whose rows change, by an oracle in plain Python; what is refused."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from grouped_jobs import SCHEMA, STEPS, Oracle, app_of, change, play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lookup_jobs import never

import holdfast as hf
from holdfast.runtime.plan.report import render
from holdfast.sinks.memory import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


def table() -> tuple[hf.App, Any]:
    app = hf.App("cities")
    return app, app.table("customers", never(SCHEMA), key="id", deleted="gone")


def refusal(call: Any) -> hf.ConfigError:
    with pytest.raises(hf.ConfigError) as refused:
        call()
    assert refused.value.not_done == "the job was not planned"
    return refused.value


class TestGroups:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=3, max_size=10), st.integers(0, 2**16))
    def test_groups_hold_the_rows_that_the_table_has(self, steps: list[Any], seed: int) -> None:
        with TestDriver(app_of(), 2, seed) as t:
            play(t, steps, Oracle())

    def test_a_row_that_moves_leaves_its_group(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("customers", [change(1, ("a", 4)), change(2, ("a", 5))])
            t.checkpoint()
            t.push("customers", [change(1, ("b", 6))])
            t.checkpoint()
            assert {row["city"]: row["total"] for row in t.rows("out")} == {"a": 5, "b": 6}

    def test_a_group_without_rows_is_deleted_in_output_and_state(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("customers", [change(1, ("a", 4)), change(2, ("b", 5))])
            t.checkpoint()
            assert t.state("cities", "a") is not None
            t.push("customers", [change(1, None)])
            t.checkpoint()
            assert [row["city"] for row in t.rows("out")] == ["b"]
            assert t.state("cities", "a") is None and t.state("cities-rows", 1) is None

    def test_a_group_that_was_empty_begins_with_exact_zeros(self) -> None:
        app, customers = table()
        customers.group_by("city").agg("cities", total=hf.sum("f")).sink("out", MemorySink(key=["city"]))
        with TestDriver(app) as t:
            t.push("customers", [change(1, ("a", 1)) | {"f": 1e300}, change(1, ("a", 1)) | {"f": 0.1}])
            t.checkpoint()
            t.push("customers", [change(1, None)])
            t.checkpoint()
            t.push("customers", [change(2, ("a", 1)) | {"f": 0.3}])
            t.checkpoint()
            assert [row["total"] for row in t.rows("out")] == [0.3]

    def test_a_row_that_a_filter_no_longer_passes_leaves_its_group(self) -> None:
        app, customers = table()
        large = customers.filter(pl.col("v") > 10)
        large.group_by("city").agg("cities", n=hf.count()).sink("out", MemorySink(key=["city"]))
        with TestDriver(app) as t:
            t.push("customers", [change(1, ("a", 40)), change(2, ("a", 50)), change(3, ("b", 60))])
            t.checkpoint()
            t.push("customers", [change(1, ("a", 4)), change(3, ("b", 6))])
            t.checkpoint()
            assert [(row["city"], row["n"]) for row in t.rows("out")] == [("a", 1)]

    def test_a_sum_that_leaves_64_bits_fails_the_job(self) -> None:
        app, customers = table()
        grown = customers.with_columns(v=pl.col("v").cast(pl.Int64) * 2**62)
        grown.group_by("city").agg("cities", total=hf.sum("v")).sink("out", MemorySink(key=["city"]))
        with TestDriver(app) as t, pytest.raises(hf.JobFailed, match="does not fit into 64 bits"):
            t.push("customers", [change(id, ("a", 1)) for id in range(3)])
            t.checkpoint()

    def test_a_plan_names_both_states(self) -> None:
        shown = render(app_of().plan())
        assert "retractions cities-rows by id: keeps one row per key" in shown
        assert "group cities by city: n = count()" in shown


class TestRefusals:
    @pytest.mark.parametrize("aggregate", [hf.max("v"), hf.var("v"), hf.distinct("v"), hf.last("v", by="id")])
    def test_aggregates_that_need_all_rows(self, aggregate: Any) -> None:
        _, customers = table()
        error = refusal(lambda: customers.group_by("city").agg("cities", top=aggregate))
        assert "agg 'cities' on table 'customers'" in error.what and "top = " in error.what
        assert "only if all rows of the group are kept" in error.what
        assert "use one of count, sum, mean" in error.next_step and ".to_changes()" in error.next_step

    def test_a_mean_of_decimals(self) -> None:
        _, customers = table()
        error = refusal(lambda: customers.group_by("city").agg("cities", mean=hf.mean("d")))
        assert "cast(pl.Float64)" in error.next_step

    def test_groups_into_a_sink_that_only_appends(self, tmp_path: Any) -> None:
        _, customers = table()
        cities = customers.group_by("city").agg("cities", n=hf.count())
        error = refusal(lambda: cities.sink("out", hf.SQLite(str(tmp_path / "out.db"), table="cities")))
        assert "sink 'out'" in error.what and "replaces rows by" in error.what and "key=['city']" in error.next_step

    def test_a_name_whose_rows_are_taken(self) -> None:
        app, customers = table()
        app.table("cities-rows", never(SCHEMA), key="id")
        assert "'cities-rows'" in refusal(lambda: customers.group_by("city").agg("cities", n=hf.count())).what

    def test_a_column_that_does_not_exist(self) -> None:
        _, customers = table()
        assert "there is no column 'town'" in refusal(lambda: customers.group_by("town")).what
