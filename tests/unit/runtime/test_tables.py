"""Tables in complete jobs: look-ups by an oracle in plain Python, what is refused, what a plan says."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import state_sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lookup_jobs import ORDERS, RATES, STEPS, Oracle, app_of, at, never, order, play, rate
from lookup_jobs import given as given_rows

import holdfast as hf
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.runtime.plan.shape import chain_of, shape_of
from holdfast.runtime.plan.shown.report import render
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True


class TestLookUpsOfVersions:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=3, max_size=12), st.integers(0, 2**16))
    def test_every_order_gets_the_rate_of_its_time(self, steps: list[Any], seed: int) -> None:
        with TestDriver(app_of(), 2, seed) as t:
            play(t, steps, Oracle())

    def test_an_order_is_not_emitted_before_the_table_has_reached_its_time(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rates", [rate("at", 0, 20)])
            t.push("orders", [order(1, "at", 5)])
            t.watermark("orders", at(9))
            t.checkpoint()
            assert given_rows(t) == []
            t.push("rates", [rate("at", 4, 10)])
            t.watermark("rates", at(9))
            t.checkpoint()
            assert given_rows(t) == [(1, 10)]

    def test_a_rewind_gives_orders_the_rates_of_their_time_again(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rates", [rate("at", 0, 20)])
            t.push("orders", [order(1, "at", 5)])
            base = t.checkpoint()
            t.push("rates", [rate("at", 6, 10)])
            t.push("orders", [order(2, "at", 6)])
            for source in ("orders", "rates"):
                t.watermark(source, at(100))
            t.checkpoint()
            assert given_rows(t) == [(1, 20), (2, 10)]
            t.rewind(base)
            t.finish()
            assert given_rows(t) == [(1, 20), (2, 10)]


class TestLookUpsInTheTableAsItStands:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=3, max_size=10), st.sampled_from(["inner", "left"]), st.integers(0, 2**16))
    def test_every_order_gets_the_row_that_was_committed_before_it(self, steps: list[Any], how: str, seed: int) -> None:
        expected, table, number = list[tuple[int, int | None]](), dict[str | None, int | None](), 0
        with TestDriver(app_of("latest", how), 2, seed) as t:
            for step in steps:
                match step:
                    case ("orders", partition, rows):
                        for code, second in rows:
                            number += 1
                            t.push("orders", [order(number, code, second)], partition)
                            expected += [(number, table.get(code))] if how == "left" or table.get(code) else []
                    case ("rates", which, changes):
                        code = ("at", "be", "ch")[which]
                        t.push("rates", [rate(code, *each) for each in changes], which)
                        table[code] = changes[-1][1]
                    case ("crash", worker):
                        t.crash(worker)
                        t.recover()
                t.checkpoint()
            t.finish()
            assert given_rows(t) == sorted(expected)
            state_sizes.check(t, {"taxed": sum(percent is not None for percent in table.values())})

    def test_the_time_of_the_table_holds_nothing_back(self) -> None:
        app = hf.App("hours")
        orders = app.source("orders", never(ORDERS), event_time="at", idle_after="1h")
        rates = app.table("rates", never(RATES), key="code", deleted="gone")
        taxed = orders.lookup("taxed", rates, on=[("country", "code")], as_of="latest", how="left")
        taxed.window(hf.tumbling("10s")).agg("n", n=hf.count()).sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("orders", [order(1, "at", 5)])
            t.watermark("orders", at(10))
            t.checkpoint()
            assert [row["n"] for row in t.rows("out")] == [1]


class TestTables:
    def test_a_stream_with_a_key_is_a_table_of_its_last_rows(self) -> None:
        app = hf.App("last")
        orders = app.source("orders", never(ORDERS), event_time="at")
        last = orders.to_table("last", key="country")
        last.sink("out", MemorySink(key=["country"]))
        with TestDriver(app) as t:
            t.push("orders", [order(1, "at", 0), order(2, "be", 0), order(3, "at", 0)])
            t.finish()
            assert {row["country"]: row["n"] for row in t.rows("out")} == {"at": 3, "be": 2}

    def test_an_aggregate_is_a_table_that_rows_are_looked_up_in(self) -> None:
        app = hf.App("again")
        orders = app.source("orders", never(ORDERS))
        counts = orders.key_by("country").agg("counts", orders=hf.count()).to_table("table", key="country")
        seen = orders.lookup("seen", counts, on="country", as_of="latest")
        seen.sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("orders", [order(1, "at", 0), order(2, "at", 0)])
            t.checkpoint()
            t.push("orders", [order(3, "at", 0), order(4, "be", 0)])
            t.checkpoint()
            assert [(row["n"], row["orders"]) for row in t.rows("out")] == [(3, 2)]

    def test_a_filter_deletes_what_no_longer_passes(self) -> None:
        app = hf.App("low")
        rates = app.table("rates", never(RATES), key="code", deleted="gone")
        rates.filter(pl.col("rate") < 15).sink("out", MemorySink(key=["code"]))
        with TestDriver(app) as t:
            t.push("rates", [rate("at", 0, 10), rate("be", 0, 10), rate("ch", 0, 10)])
            t.checkpoint()
            t.push("rates", [rate("at", 1, 20), rate("be", 1, None)])
            t.checkpoint()
            assert [row["code"] for row in t.rows("out")] == ["ch"]

    def test_versions_that_a_filter_deletes_are_deleted_at_their_time(self) -> None:
        app = hf.App("low")
        orders = app.source("orders", never(ORDERS), event_time="at")
        rates = app.table("rates", never(RATES), key="code", event_time="since", deleted="gone")
        low = rates.filter(pl.col("rate") < 15).with_columns(double=pl.col("rate") * 2)
        orders.lookup("taxed", low, on=[("country", "code")], how="left").sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("rates", [rate("at", 0, 10), rate("at", 4, 20), rate("at", 8, 12)])
            t.push("orders", [order(second, "at", second) for second in (2, 5, 9)])
            t.finish()
            assert [row["double"] for row in sorted(t.rows("out"), key=lambda row: row["n"])] == [20, None, 24]

    def test_changes_of_a_table_are_a_table_again(self) -> None:
        app = hf.App("again")
        rates = app.table("rates", never(RATES), key="code", event_time="since", deleted="gone")
        again = rates.to_changes().to_table("again", key="code")
        assert again.schema == rates.schema and again.upsert_key == ("code",)
        rates.to_changes().sink("changes", MemorySink())
        again.sink("out", MemorySink(key=["code"]))
        with TestDriver(app) as t:
            t.push("rates", [rate("at", 0, 10), rate("be", 0, 10), rate("at", 1, None)])
            t.finish()
            assert [row["code"] for row in t.rows("out")] == ["be"]
            changes = {(row["code"], row["holdfast_deleted"], row["since"]) for row in t.rows("changes")}
            assert changes == {("at", False, at(0)), ("be", False, at(0)), ("at", True, at(1))}

    def test_the_shape_of_a_plan_has_the_table_with_its_key(self) -> None:
        app = hf.App("shown")
        rates = app.table("rates", never(RATES), key="code", deleted="gone")
        rates.to_changes().sink("out", MemorySink())
        chain = chain_of(shape_of(app.plan()), "out")
        assert chain is not None and [step["step"] for step in chain] == ["source", "table", "changes"]
        assert (chain[1]["key"], chain[1]["deleted"]) == (["code"], "gone")

    def test_what_a_look_up_keeps_is_described_with_every_checkpoint(self) -> None:
        described = describe_operators(app_of().plan())
        check_against(app_of().plan(), described)
        assert described["taxed"]["identity"]["keeps"].startswith("the versions of a table")
        with pytest.raises(hf.ConfigError, match="taxed"):
            check_against(app_of("latest").plan(), described)

    def test_a_plan_says_what_a_look_up_keeps(self) -> None:
        shown = render(app_of().plan())
        assert "taxed by country, left, as of at: keeps each row until at, and the versions of the table from" in shown
        assert "left, latest: keeps one row per code of the table" in render(app_of("latest").plan())


def streams(**of_table: Any) -> tuple[hf.App, Any, Any]:
    app = hf.App("refused")
    orders = app.source("orders", never(ORDERS), event_time="at")
    return app, orders, app.table("rates", never(RATES), **({"key": "code", "deleted": "gone"} | of_table))


def refusal(call: Any) -> hf.ConfigError:
    with pytest.raises(hf.ConfigError) as refused:
        call()
    return refused.value


class TestRefusals:
    def test_other_columns_than_the_key_of_the_table(self) -> None:
        _, orders, rates = streams(key=["code", "since"])
        error = refusal(lambda: orders.lookup("taxed", rates, on=[("country", "code")], as_of="latest"))
        assert "is not the key of the table 'rates', which is code, since" in error.what
        assert (
            error.not_done == "the job was not planned" and ".join(name, other, on=..., within=...)" in error.next_step
        )

    @pytest.mark.parametrize("on", [[1], [("country", "code", "n")], {"country": "code"}, []])
    def test_what_names_no_columns(self, on: Any) -> None:
        _, orders, rates = streams()
        assert "names no columns" in refusal(lambda: orders.lookup("taxed", rates, on=on, as_of="latest")).what

    def test_a_table_without_event_time_as_of_event_time(self) -> None:
        _, orders, rates = streams()
        error = refusal(lambda: orders.lookup("taxed", rates, on=[("country", "code")]))
        assert "as_of='event_time', and the table 'rates' has no event time" in error.what
        assert 'app.table(..., event_time="at")' in error.next_step and 'as_of="latest"' in error.next_step

    def test_keys_of_another_type(self) -> None:
        _, orders, rates = streams()
        error = refusal(lambda: orders.lookup("taxed", rates, on=[("n", "code")], as_of="latest"))
        assert "'n' is int64 in the stream, and 'code' is string in the table" in error.what

    def test_a_stream_that_is_no_table(self) -> None:
        _, orders, _ = streams()
        error = refusal(lambda: orders.lookup("taxed", orders, on="country"))
        assert "is not a table of this app" in error.what and ".to_table(" in error.next_step

    def test_a_stream_that_replaces_rows(self) -> None:
        _, _, rates = streams()
        error = refusal(lambda: rates.lookup("taxed", rates, on="code", as_of="latest"))
        assert "the stream replaces rows by code" in error.what

    def test_a_table_into_a_sink_that_only_appends(self, tmp_path: Any) -> None:
        _, _, rates = streams()
        error = refusal(lambda: rates.sink("out", hf.SQLite(str(tmp_path / "out.db"), table="rates")))
        assert "sink 'out'" in error.what and "key=['code']" in error.next_step

    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ({"key": "kode"}, "there is no column 'kode'"),
            ({"key": []}, "key=[] names no columns"),
            ({"deleted": "rate"}, "deleted='rate' is decimal128(5, 2)"),
            ({"deleted": 5}, "deleted=5 is not the name of a column"),
            ({"event_time": "rate"}, "the event time 'rate' is decimal128(5, 2)"),
        ],
    )
    def test_columns_that_do_not_fit(self, given: dict[str, Any], what: str) -> None:
        assert what in refusal(lambda: streams(**given)).what

    def test_an_aggregate_as_a_table_by_another_key(self) -> None:
        _, orders, _ = streams()
        counts = orders.key_by("country").agg("counts", n=hf.count())
        assert "replace each other by country, not by n" in refusal(lambda: counts.to_table("table", key="n")).what

    def test_a_column_that_state_cannot_keep(self) -> None:
        app = hf.App("refused")
        orders = app.source("orders", never(ORDERS), event_time="at")
        nested = pa.schema([pa.field("code", pa.string(), False), pa.field("tags", pa.list_(pa.timestamp("ns")))])
        table = app.table("rates", never(nested), key="code")
        error = refusal(lambda: orders.lookup("taxed", table, on=[("country", "code")], as_of="latest"))
        assert "cannot keep 'tags' of the table" in error.what
