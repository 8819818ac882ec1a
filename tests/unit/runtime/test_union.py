"""Streams of several sources united: one fragment after all of them, reached without a shuffle."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from planned_source import PlannedSource

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.plan.shown.report import describe, render
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Order:
    shop: str
    amount: int
    at: datetime


COLUMNS = PlannedSource(hf.Generator(Order, lambda i: Order("", i, START)).schema)


def order(shop: str, amount: int, second: int = 0) -> Order:
    return Order(shop, amount, START + timedelta(seconds=second))


def sources_of(app: hf.App, *names: str) -> list[Any]:
    return [app.source(name, COLUMNS, event_time="at", idle_after="1h") for name in names]


def united() -> hf.App:
    app = hf.App("orders", key_groups=8)
    web, till = sources_of(app, "web", "till")
    both = web.union(till)
    both.sink("all", MemorySink())
    both.key_by("shop").agg("per-shop", n=hf.count(), total=hf.sum("amount")).sink("sums", MemorySink(key=["shop"]))
    hours = both.key_by("shop").window(hf.tumbling("10s")).agg("per-hour", emit="final", total=hf.sum("amount"))
    hours.sink("hours", MemorySink())
    return app


def totals(t: TestDriver, sink: str = "sums") -> dict[str, int]:
    return {row["shop"]: row["total"] for row in t.rows(sink)}


class TestPlan:
    def plan(self) -> Plan:
        return united().plan()

    def test_streams_meet_in_a_separate_fragment(self) -> None:
        plan = self.plan()
        union = plan.fragments[2]
        assert (union.source, union.input_edges) == (None, (0, 1))
        assert [(e.from_fragment, e.to_fragment, e.key) for e in plan.edges[:2]] == [(0, 2, ()), (1, 2, ())]

    def test_rows_of_a_union_stay_in_their_subtask(self) -> None:
        channels = self.plan().edges[0].channels([0, 1, 2])  # type: ignore[list-item]
        assert [(c.sender, c.receiver) for c in channels] == [(0, 0), (1, 1), (2, 2)]

    def test_the_plan_shows_the_union(self) -> None:
        plan = self.plan()
        assert "fragment 2: union of edge 0 from fragment 0, edge 1 from fragment 1" in render(plan)
        assert [fragment["input_edges"] for fragment in describe(plan)["fragments"][:3]] == [[], [], [0, 1]]

    def test_streams_of_one_source_need_no_separate_fragment(self) -> None:
        app = hf.App("orders")
        (web,) = sources_of(app, "web")
        web.filter(pl.col("amount") > 0).union(web).sink("out", MemorySink())
        assert app.plan().edges == ()

    def test_united_sources_are_read_together_and_others_are_not(self) -> None:
        app = hf.App("orders")
        a, b, c, d = sources_of(app, "a", "b", "c", "d")
        b.union(d).filter(pl.col("amount") > 0).union(a).sink("one", MemorySink())
        c.sink("two", MemorySink())
        assert app.plan().read_together() == {0: 0, 1: 0, 2: 2, 3: 0}

    def test_a_union_without_a_common_event_time_has_no_windows(self) -> None:
        app = hf.App("orders")
        (web,), till = sources_of(app, "web"), app.source("till", COLUMNS)
        with pytest.raises(ConfigError, match="event time"):
            web.union(till).key_by("shop").window(hf.tumbling("10s"))

    def test_rows_after_a_union_are_not_written_immediately(self) -> None:
        app = hf.App("orders")
        web, till = [app.source(name, COLUMNS, partitioned_by=["shop"]) for name in ("web", "till")]
        web.union(till).sink("out", hf.SQLite("x.db", table="t", key=["shop"], delivery="idempotent"))
        assert app.plan().sinks[0].path is None


class TestRun:
    def test_rows_of_all_sources_are_counted_once(self) -> None:
        with TestDriver(united(), parallelism=2) as t:
            t.push("web", [order("a", 1), order("b", 2)])
            t.push("till", [order("a", 10)], partition=1)
            t.finish()
            assert totals(t) == {"a": 11, "b": 2}
            assert len(t.rows("all")) == 3

    def test_a_window_waits_for_the_source_with_the_lowest_watermark(self) -> None:
        with TestDriver(united(), parallelism=2) as t:
            t.push("web", [order("a", 1, 1), order("a", 1, 35)])
            t.checkpoint()
            t.watermark("web", START + timedelta(seconds=35))
            t.checkpoint()
            assert t.rows("hours") == []
            t.push("till", [order("a", 10, 2)])
            t.watermark("till", START + timedelta(seconds=20))
            t.checkpoint()
            assert totals(t, "hours") == {"a": 11}

    def test_the_source_with_the_lowest_watermark_is_read_first(self) -> None:
        with TestDriver(united(), parallelism=1) as t:
            t.crash()
            t.push("web", [order("a", 1, 1_000 + i) for i in range(400)])
            t.push("till", [order("a", 1, i) for i in range(400)])
            t.recover()
            t.finish()
            seconds = [(row["at"] - START).seconds for row in t.rows("all")]
            # One batch of the first source may be read before anything is known of the other.
            assert sum(second >= 1_000 for second in seconds[: seconds.index(399)]) <= 64

    @pytest.mark.parametrize("seed", range(4))
    def test_nothing_is_lost_or_duplicated_by_crashes(self, seed: int) -> None:
        with TestDriver(united(), parallelism=2, seed=seed) as t:
            for step in range(6):
                t.push("web", [order("a", 1), order(f"w{step}", 1)], partition=step % 3)
                t.push("till", [order("a", 1), order(f"t{step}", 1)], partition=step % 2)
                if step % 2 == seed % 2:
                    t.checkpoint()
                t.crash(step % 2)
                t.recover()
            t.finish()
            assert totals(t) == {"a": 12} | {f"{s}{step}": 1 for step in range(6) for s in "wt"}
            assert len(t.rows("all")) == 24

    def test_results_of_windows_can_be_united_with_rows_that_were_not_shuffled(self) -> None:
        app = hf.App("orders", key_groups=8)
        web, till = sources_of(app, "web", "till")
        sums = web.key_by("shop").window(hf.tumbling("10s")).agg("hours", emit="final", amount=hf.sum("amount"))
        sums.select("shop", "amount").union(till.select("shop", "amount")).sink("out", MemorySink())
        with TestDriver(app, parallelism=2) as t:
            t.push("web", [order("a", 1), order("a", 2)])
            t.push("till", [order("a", 5)])
            t.crash(0)
            t.recover()
            t.finish()
            assert sorted(row["amount"] for row in t.rows("out")) == [3, 5]

    def test_a_row_on_which_a_function_after_a_union_fails_is_a_dead_letter(self) -> None:
        def positive(row: Order) -> Order:
            if row.amount < 0:
                raise ValueError("negative")
            return row

        app = hf.App("orders", key_groups=8, dlq=MemorySink())
        web, till = sources_of(app, "web", "till")
        web.union(till).map(positive, to=Order, on_error="dlq").sink("out", MemorySink())
        with TestDriver(app, parallelism=2) as t:
            t.push("web", [order("a", -1)])
            t.push("till", [order("b", 1)])
            t.finish()
            (letter,) = t.rows("dlq")
            assert letter["operator"] == "map positive" and letter["source"] is None and "negative" in letter["error"]
            assert [row["shop"] for row in t.rows("out")] == ["b"]

    def test_an_audit_of_the_edges_of_a_union_balances(self) -> None:
        with TestDriver(united(), parallelism=2) as t:
            t.push("web", [order("a", 1), order("b", 2)])
            t.push("till", [order("a", 10)], partition=1)
            t.checkpoint()
            phase = t.cluster.driver.state.phase
            audit = phase.last.audited  # type: ignore[union-attr]
            assert audit is not None
            counts = {each.name: (each.rows_in, each.rows_out) for each in audit.operators if each.kind == "edge"}
            assert counts["edge 0, united"] == (2, 2) and counts["edge 1, united"] == (1, 1)
