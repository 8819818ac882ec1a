"""Standing queries in complete jobs: what events find, by an oracle in plain Python; what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from fragment_jobs import Job
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lookup_jobs import never
from search_jobs import EVENTS, QUERIES, STEPS, TERMS, Oracle, app_of, play, query

import holdfast as hf
from holdfast.runtime.api.tables import CLOSED
from holdfast.runtime.operators.tables import search
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.identity import check_against, describe_operators
from holdfast.runtime.plan.shown.report import render
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
FRAGMENT = 4
"""That of the search: behind those of two sources, of the queries as upserts, and of what they replace."""
ANY = ("a", None, None, None, None)
MOVED = [("queries", [(0, ANY), (1, ("b", *ANY[1:]))]), ("events", 0, [("a", "x", 1.0, 1)])]


def event(n: int, shop: str | None, amount: float | None = 1.0) -> dict[str, Any]:
    return {"n": n, "shop": shop, "kind": "x", "amount": amount, "at": 1}


class TestQueries:
    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=3, max_size=10), st.sampled_from(list(CLOSED)), st.integers(0, 2**16))
    @example([*MOVED, ("queries", [(0, ("b", *ANY[1:]))]), ("crash", 0), *MOVED[1:]], "both", 1)
    def test_an_event_finds_the_queries_in_force_that_it_satisfies(
        self, steps: list[Any], closed: str, seed: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "PAIRS_MAX", 3)
            patch.setattr("holdfast.state.collections.rows.ABSENT_MIN", 4)
            with TestDriver(app_of(closed), 2, seed) as t:
                play(t, steps, Oracle(closed))

    def test_a_rewind_finds_the_queries_that_were_in_force(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("queries", [query(0, ANY), query(1, ANY)])
            base = t.checkpoint()
            t.push("events", [event(1, "a")])
            t.checkpoint()
            assert sorted(row["id"] for row in t.rows("out")) == ["q0", "q1"]
            t.rewind(base)
            t.finish()
            assert sorted(row["id"] for row in t.rows("out")) == ["q0", "q1"]

    def test_a_result_has_the_columns_of_the_event_and_of_the_query(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("queries", [query(0, ("a", None, 1.0, None, 3))])
            t.checkpoint()
            t.push("events", [event(7, "a"), event(8, "a", None), event(9, None)])
            t.finish()
            assert t.rows("out") == [{"n": 7, "id": "q0", "kind": "x", "kind_right": None, "before": 3}]

    def test_a_query_that_is_not_a_number_is_satisfied_by_nothing(self) -> None:
        nan = float("nan")
        with TestDriver(app_of()) as t:
            t.push("queries", [query(0, ("a", None, nan, None, None)), query(1, ("a", None, 0.0, None, None))])
            t.checkpoint()
            t.push("events", [event(7, "a"), event(8, "a", nan)])
            t.finish()
            assert [(row["n"], row["id"]) for row in t.rows("out")] == [(7, "q1")]

    def test_queries_and_events_may_have_the_key_of_the_table(self) -> None:
        app = hf.App("one")
        events, queries = app.source("events", never(EVENTS)), app.table("queries", never(QUERIES), key="where")
        events.search("found", queries, on=[("shop", "where")], terms={"amount": ("least", None)}).sink(
            "out", MemorySink()
        )
        with TestDriver(app) as t:
            t.push("queries", [query(0, ("a", None, 1.0, None, None)), query(1, ("b", None, 2.0, None, None))])
            t.checkpoint()
            t.push("events", [event(1, "a"), event(2, "b")])
            t.finish()
            assert [(row["n"], row["id"]) for row in t.rows("out")] == [(1, "q0")]

    def test_a_query_without_a_key_is_dropped_and_counted(self) -> None:
        job = Job(app_of().plan(), FRAGMENT, 2)
        schema = pa.schema([*list(QUERIES)[:-1], pa.field("_weight", pa.int64(), False)])
        rows = [query(0, (None, *ANY[1:])), query(1, ANY)]
        job.take(1, pa.RecordBatch.from_pylist([row | {"_weight": 1} for row in rows], schema))
        job.take(1, pa.RecordBatch.from_pylist([rows[0] | {"_weight": -1}], schema))
        job.take(0, pa.RecordBatch.from_pylist([event(1, "a"), event(2, None), event(3, "b")], EVENTS))
        job.barrier(True)
        assert [(row["n"], row["id"]) for row in job.rows["out"]] == [(1, "q1")]
        assert job.progress() == {"rows_in": 6, "rows_out": 1, "late": 0, "dropped": 1}

    def test_an_event_is_compared_with_the_queries_of_its_value_and_with_those_without_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compared, passed = list[int](), search.Term.passed

        def noted(term: search.Term, values: pa.Array, bounds: pa.Array) -> pa.Array:
            compared.append(len(values) if term.compares == "==" else 0)
            return passed(term, values, bounds)

        monkeypatch.setattr(search.Term, "passed", noted)
        kinds = [None if n % 10 == 0 else f"kind {n}" for n in range(100)]
        rows = [query(n, ("ab"[n % 2], kind, None, None, None)) | {"_weight": 1} for n, kind in enumerate(kinds)]
        events = [event(n, "ab"[n % 2]) | {"kind": None if n > 95 else f"kind {n}"} for n in range(100)]
        job = Job(app_of().plan(), FRAGMENT, 2)
        schema = pa.schema([*list(QUERIES)[:-1], pa.field("_weight", pa.int64(), False)])
        job.take(1, pa.RecordBatch.from_pylist(rows, schema))
        job.take(0, pa.RecordBatch.from_pylist(events, EVENTS))
        job.barrier(True)
        found = sorted((row["n"], row["id"]) for row in job.rows["out"])
        own = [(n, f"q{n}") for n in range(96) if n % 10]
        anything = [(n, f"q{q}") for n in range(0, 100, 2) for q in range(0, 100, 10)]
        assert found == sorted(own + anything) and sum(compared) == len(found)

    def test_to_names_the_columns_of_the_result(self) -> None:
        @dataclass
        class Alert:
            id: str
            n: int

        app = hf.App("named")
        events, queries = app.source("events", never(EVENTS)), app.table("queries", never(QUERIES), key="id")
        found = events.search("found", queries, on=[("shop", "where")], to=Alert)
        assert found.schema.names == ["id", "n"]
        found.map(lambda alert: Alert(alert.id + "!", alert.n), to=Alert).sink("out", MemorySink())
        with TestDriver(app) as t:
            t.push("queries", [query(0, ANY)])
            t.checkpoint()
            t.push("events", [event(1, "a")])
            t.finish()
            assert t.rows("out") == [{"id": "q0!", "n": 1}]


def refused(**changed: Any) -> str:
    """Return the message of a search that cannot be planned."""
    app = hf.App("refused")
    events, queries = app.source("events", never(EVENTS)), app.table("queries", never(QUERIES), key="id")
    with pytest.raises(hf.ConfigError) as error:
        events.search("found", queries, **({"on": [("shop", "where")], "terms": TERMS} | changed))
    return str(error.value)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"on": []}, "compared with every query"),
            ({"on": "shop"}, "where"),
            ({"on": [("amount", "least")]}, "cannot be part of a key"),
            ({"on": [("shop", "before")]}, "is string in the stream"),
            ({"terms": {"amount": "before"}}, "is double in the stream"),
            ({"terms": {"amount": ("least", "none")}}, "none"),
            ({"terms": {"amount": (None, None)}}, "no two bounds"),
            ({"terms": {"kind": "id"}}, "identifies queries"),
            ({"terms": ["kind"]}, "not a mapping"),
            ({"closed": "neither"}, "closed='neither' is unknown"),
        ],
    )
    def test_what_cannot_be_compared_is_refused(self, changed: dict[str, Any], message: str) -> None:
        assert message in refused(**changed)

    def test_a_type_that_cannot_be_compared_is_refused(self) -> None:
        schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("f", pa.float16())])
        app = hf.App("flat")
        rows, queries = app.source("rows", never(schema)), app.table("queries", never(schema), key="k")
        with pytest.raises(hf.ConfigError, match="cannot be compared with >="):
            rows.search("found", queries, on="k", terms={"f": ("f", None)})

    def test_other_keys_of_queries_are_refused_when_the_state_is_read(self) -> None:
        described = describe_operators(app_of().plan())
        check_against(app_of().plan(), described)
        app = hf.App("alerts", key_groups=8)
        events, queries = app.source("events", never(EVENTS)), app.table("queries", never(QUERIES), key="kind")
        terms = {"amount": ("least", "most"), "at": (None, "before")}
        events.search("found", queries, on=[("shop", "where")], terms=terms).sink("out", MemorySink())
        with pytest.raises(hf.ConfigError, match="had the key"):
            check_against(app.plan(), described)

    def test_terms_over_other_columns_are_refused_and_other_terms_over_the_same_apply(self) -> None:
        def plan(closed: str, terms: dict[str, tuple[str | None, str | None]]) -> Plan:
            app = hf.App("alerts")
            events, queries = app.source("events", never(EVENTS)), app.table("queries", never(QUERIES), key="id")
            found = events.search("found", queries, on=[("shop", "where")], terms=terms, closed=closed)
            found.select("n", "id").sink("out", MemorySink())
            return app.plan()

        before = describe_operators(plan("both", {"amount": ("least", "most")}))
        check_against(plan("none", {"amount": ("most", "least")}), before)
        changed: list[dict[str, tuple[str | None, str | None]]]
        changed = [{"amount": ("least", None)}, {"amount": ("least", "most"), "at": (None, "before")}]
        for others in changed:
            with pytest.raises(hf.ConfigError, match=r"'found-queries' (had the state columns|now keeps before too)"):
                check_against(plan("both", others), before)

    def test_a_plan_shows_the_terms(self) -> None:
        assert "search found by shop, kind == kind, amount >= least, amount <= most" in render(app_of().plan())
