"""Aggregates over tables whose rows change, by an oracle in plain Python; what is refused."""

from __future__ import annotations

from typing import Any

import job_player
import polars as pl
import pytest
import state_sizes
from grouped_jobs import CHANGED, SCHEMA, STEPS, Oracle, app_of, change, play
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lookup_jobs import never

import holdfast as hf
from holdfast.runtime.operators.tables import group
from holdfast.runtime.plan.shown.report import render
from holdfast.sinks.memory.sink import MemorySink
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


NAN, INF = float("nan"), float("inf")


def floats() -> hf.App:
    """A job with aggregates of floats."""
    app, customers = table()
    numbers = customers.group_by("city").agg("cities", total=hf.sum("f"), mean=hf.mean("f"))
    numbers.sink("out", MemorySink(key=["city"]))
    return app


def shown(t: TestDriver) -> dict[str, list[str]]:
    """Return the results per city as texts, of which NaN is equal to itself."""
    return {row["city"]: [repr(row[name]) for name in ("total", "mean")] for row in t.rows("out")}


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

    @pytest.mark.parametrize("gone", [NAN, INF, -INF])
    def test_a_number_that_is_not_finite_leaves_a_sum_with_its_row(self, gone: float) -> None:
        with TestDriver(floats()) as t:
            t.push("customers", [change(1, ("a", 1)) | {"f": gone}, change(2, ("a", 1)) | {"f": 3.0}])
            t.push("customers", [change(3, ("a", 1)) | {"f": 1.0}, change(4, ("b", 1)) | {"f": INF}])
            t.checkpoint()
            assert shown(t) == {"a": [repr(gone)] * 2, "b": ["inf"] * 2}
            t.crash()
            t.recover()
            t.push("customers", [change(1, ("b", 1)) | {"f": gone}])
            t.checkpoint()
            assert shown(t) == {"a": ["4.0", "2.0"], "b": ["inf" if gone == INF else "nan"] * 2}

    def test_a_group_that_was_kept_without_numbers_that_are_not_finite_is_continued(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(group, "NotFinite", None)  # as before such numbers were counted
        with TestDriver(floats()) as t:
            t.push("customers", [change(1, ("a", 1)) | {"f": 3.0}])
            monkeypatch.undo()
            t.upgrade(floats())
            t.push("customers", [change(2, ("a", 1)) | {"f": NAN}])
            t.checkpoint()
            assert shown(t) == {"a": ["nan", "nan"]}
            t.push("customers", [change(2, None)])
            t.checkpoint()
            assert shown(t) == {"a": ["3.0", "3.0"]}

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
        failed = r"total = sum\('v'\) of operator 'cities' does not fit into 64 bits for the key 'a'"
        with TestDriver(app) as t, pytest.raises(hf.JobFailed, match=failed):
            t.push("customers", [change(id, ("a", 1)) for id in range(3)])
            t.checkpoint()

    def test_the_least_integer_is_added(self) -> None:
        app, customers = table()
        grown = customers.with_columns(v=pl.when(pl.col("v") > 1).then(-(2**63)).otherwise(pl.col("v").cast(pl.Int64)))
        grown.group_by("city").agg("cities", total=hf.sum("v")).sink("out", MemorySink(key=["city"]))
        with TestDriver(app) as t:
            t.push("customers", [change(1, ("a", 1))])
            t.push("customers", [change(2, ("a", 2))])
            t.push("customers", [change(1, ("b", 1))])
            t.checkpoint()
            assert {row["city"]: row["total"] for row in t.rows("out")} == {"a": -(2**63), "b": 1}

    def test_a_plan_names_both_states(self) -> None:
        shown = render(app_of().plan())
        assert "retractions cities-rows by id: keeps one row per key" in shown
        assert "group cities by city: n = count()" in shown


def both(how: str) -> hf.App:
    app = hf.App("both", key_groups=8)
    left = app.table("left", never(SCHEMA), key="id", deleted="gone").select("id", "city")
    right = app.table("right", never(SCHEMA), key="id", deleted="gone").select("id", "v")
    joined = left.join("both", right, on="id", how=how)
    joined.sink("out", MemorySink(key=["id"]))
    joined.to_changes().sink("changes", MemorySink())
    return app


HOWS = ["inner", "left", "right", "full"]
JOINED = st.one_of(
    st.tuples(st.just("change"), st.sampled_from(["left", "right"]), st.lists(CHANGED, min_size=1, max_size=5)),
    st.tuples(st.just("change"), st.sampled_from(["left", "right"]), st.lists(CHANGED, min_size=1, max_size=5)),
    *job_player.FAILURES,
    job_player.REWIND,
)


class TestJoinsOfTables:
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        st.lists(JOINED, min_size=3, max_size=10),
        st.sampled_from(["inner", "left", "right", "full"]),
        st.integers(0, 99),
    )
    def test_rows_and_state_follow_the_changes_of_both(self, steps: list[Any], how: str, seed: int) -> None:
        """docs/guide/tables.md: the state of a join by the key of both holds one record per key."""
        tables: dict[str, dict[int, Any]] = {"left": {}, "right": {}}
        with TestDriver(both(how), 2, seed) as t:

            def push(what: str, given: list[Any]) -> None:
                for id, row in given:
                    t.push(what, [change(id, row)], id % 3)
                    tables[what].pop(id, None)
                    tables[what] |= {} if row is None else {id: row}

            def check() -> None:
                left, right = tables["left"], tables["right"]
                known = {"inner": left.keys() & right.keys(), "full": left.keys() | right.keys()} | tables
                of = {id: (left.get(id, (None,))[0], right.get(id, (None, None))[1]) for id in known[how]}
                assert {row["id"]: (row["city"], row["v"]) for row in t.rows("out")} == of
                state_sizes.check(t, {"both": len(left.keys() | right.keys())})

            job_player.play(t, steps, {"change": push}, check)
            held = set[int]()
            for row in t.rows("changes"):
                assert not row["holdfast_deleted"] or row["id"] in held, "deletes follow a row"
                (held.discard if row["holdfast_deleted"] else held.add)(row["id"])
            for what, rows in tables.items():
                push(what, [(id, None) for id in list(rows)])
            t.finish()
            check()

    def test_a_key_that_both_have_lost_leaves_the_state(self) -> None:
        with TestDriver(both("full")) as t:
            t.push("left", [change(1, ("a", 1))])
            t.push("right", [change(1, ("a", 1))])
            t.checkpoint()
            assert t.state("both", 1) is not None
            t.push("left", [change(1, None)])
            t.push("right", [change(1, None)])
            t.checkpoint()
            assert t.state("both", 1) is None and t.rows("out") == []


class TestRefusals:
    def test_a_join_by_other_columns_than_the_key_of_the_other(self) -> None:
        app, customers = table()
        cities = app.table("cities", never(SCHEMA), key="city", deleted="gone")
        error = refusal(lambda: customers.join("both", cities, on="id"))
        assert "is not the key of the table 'cities'" in error.what

    def test_a_join_with_a_stream(self) -> None:
        app, customers = table()
        stream = app.source("rows", never(SCHEMA))
        assert "is not a table of this app" in refusal(lambda: customers.join("both", stream, on="id")).what

    @pytest.mark.parametrize("aggregate", [hf.distinct("v"), hf.last("v", by="id"), hf.quantile("v", 0.5)])
    def test_aggregates_that_need_all_rows(self, aggregate: Any) -> None:
        _, customers = table()
        error = refusal(lambda: customers.group_by("city").agg("cities", top=aggregate))
        assert "agg 'cities' on table 'customers'" in error.what and "top = " in error.what
        assert "only if all rows of the group are kept" in error.what
        assert "use one of count, sum, mean, min, max, var" in error.next_step and ".to_changes()" in error.next_step

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
