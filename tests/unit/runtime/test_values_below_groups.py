"""min, max and var over tables whose rows change: numbers of every size, and what the state keeps of them."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import date, time
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
from grouped_jobs import variance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lookup_jobs import never

import holdfast as hf
from holdfast.runtime.operators.tables.counted_values import words_of
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("x", pa.float64()),
        pa.field("n", pa.int64()),
        pa.field("gone", pa.bool_(), nullable=False),
    ]
)
NUMBERS = st.one_of(
    st.none(),
    st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e16, 1e300, -1e300, 5e-324, 1e-200, math.inf, -math.inf, math.nan]),
    st.floats(),
)
WHOLE = st.one_of(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))
CITIES = st.sampled_from(["a", "b", None])
CHANGED = st.tuples(st.integers(0, 4), st.one_of(st.none(), st.tuples(CITIES, NUMBERS, WHOLE)))
STEPS = st.one_of(st.tuples(st.just("changes"), st.lists(CHANGED, min_size=1, max_size=8)), st.tuples(st.just("crash")))


def change(id: int, city: str | None, x: float | None, n: int = 0) -> dict[str, Any]:
    return {"id": id, "city": city, "x": x, "n": n, "gone": False}


def removal(id: int) -> dict[str, Any]:
    return {"id": id, "city": None, "x": None, "n": None, "gone": True}


def app_of(**more: Any) -> hf.App:
    app = hf.App("spreads", key_groups=8)
    table = app.table("rows", never(SCHEMA), key="id", deleted="gone")
    aggregates = {"low": hf.min("x"), "high": hf.max("x"), "spread": hf.var("x"), "of_all": hf.var("n", ddof=0)}
    cities = table.group_by("city").agg("cities", **aggregates, **more)
    cities.to_changes().sink("out", MemorySink())
    return app


def groups(t: TestDriver) -> dict[str | None, tuple[Any, ...]]:
    """Return the last row of every group that was not deleted."""
    found = dict[str | None, tuple[Any, ...]]()
    for row in t.rows("out"):
        found[row["city"]] = tuple(row[name] for name in ("low", "high", "spread", "of_all"))
        if row["holdfast_deleted"]:
            del found[row["city"]]
    return found


def expected(rows: dict[int, tuple[Any, ...]]) -> dict[str | None, tuple[Any, ...]]:
    cities = defaultdict[str | None, list[tuple[float | None, int]]](list)
    for city, x, n in rows.values():
        cities[city].append((x, n))
    return {city: of_group(given) for city, given in cities.items()}


def of_group(given: list[tuple[float | None, int]]) -> tuple[Any, ...]:
    values = [x for x, _ in given if x is not None]
    numbers = [x for x in values if not math.isnan(x)] or values
    ends = min(numbers, default=None), max(numbers, default=None)
    spread = variance(values) if all(map(math.isfinite, values)) else None if len(values) < 2 else math.nan
    return (*ends, spread, variance([n for _, n in given], ddof=0))


def same(found: Any, wanted: Any) -> bool:
    """Return whether two values are equal: to the bit, but for the sign of zero."""
    return found == wanted or (found is not None and wanted is not None and math.isnan(found) and math.isnan(wanted))


class TestNumbers:
    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=2, max_size=7), st.integers(0, 2**16))
    def test_results_are_those_of_the_rows_that_are_left_rounded_once(self, steps: list[Any], seed: int) -> None:
        rows = dict[int, tuple[Any, ...]]()
        with TestDriver(app_of(), 2, seed) as t:
            for what, *given_ in steps:
                if what == "crash":
                    t.crash(0)
                    t.recover()
                for id, row in given_[0] if given_ else []:
                    t.push("rows", [removal(id) if row is None else change(id, *row)], id % 3)
                    rows.pop(id, None)
                    rows |= {} if row is None else {id: row}
                t.checkpoint()
                found, wanted = groups(t), expected(rows)
                assert found.keys() == wanted.keys()
                assert [name for name in wanted if not all(map(same, found[name], wanted[name]))] == [], (found, wanted)

    def test_a_large_number_that_is_taken_back_leaves_no_trace(self) -> None:
        with TestDriver(app_of()) as t:
            t.push("rows", [change(1, "a", 1e300), change(2, "a", 0.1), change(3, "a", 0.3)])
            t.checkpoint()
            t.push("rows", [removal(1)])
            t.checkpoint()
            assert groups(t)["a"][:3] == (0.1, 0.3, variance([0.1, 0.3]))


def kept(t: TestDriver, app: hf.App, table: str, key: tuple[Any, ...]) -> dict[str, Any] | None:
    """Return the committed row of a further table of an operator."""
    spec = next(each for each in app.plan().operators if each.name == table)
    if t.cluster.batches is not None:
        return t.cluster.batches.get_committed(spec.id, key)
    states = [member.loop.state() for member in t.cluster.members.values()]
    found = [None if state is None else state.get_committed(spec.id, key) for state in states]
    return next((each for each in found if each is not None), None)


class TestState:
    def test_rows_below_a_group_leave_with_the_last_value(self) -> None:
        app = app_of()
        with TestDriver(app) as t:
            t.push("rows", [change(id, "a", 1.0) for id in (1, 2)])
            t.checkpoint()
            word = words_of(pa.array([1.0]))[0][0].as_py()
            assert kept(t, app, "cities.low", ("a", word)) == {"rows.sum": 2}
            assert kept(t, app, "cities.spread", ("a", 0)) == {"values.sum": 2, "squares.sum": 2}
            t.push("rows", [removal(1)])
            t.checkpoint()
            assert kept(t, app, "cities.low", ("a", word)) == {"rows.sum": 1}
            t.push("rows", [removal(2)])
            t.checkpoint()
            assert kept(t, app, "cities.low", ("a", word)) is None
            assert kept(t, app, "cities.spread", ("a", 0)) is None

    def test_aggregates_of_one_column_share_their_rows(self) -> None:
        app = app_of(top=hf.max("x", filter=pl.col("n") > 0), again=hf.var("x", ddof=0))
        names = {each.name for each in app.plan().operators}
        assert {name for name in names if name.startswith("cities.")} == {
            "cities.low", "cities.spread", "cities.of_all", "cities.top",
        }  # fmt: skip

    def test_every_type_has_ends_that_are_taken_back(self) -> None:
        kinds = {
            "day": pa.date32(), "who": pa.string(), "hour": pa.time64("us"), "size": pa.uint64(), "small": pa.int8(),
            "share": pa.float32(), "price": pa.decimal128(9, 2),
        }  # fmt: skip
        schema = pa.schema([pa.field("id", pa.int64(), False), *(pa.field(name, kind) for name, kind in kinds.items())])
        app = hf.App("ends")
        table = app.table("rows", never(schema), key="id").with_columns(all=pl.lit(1))
        spread = {"apart": hf.var("size", ddof=0)}
        table.group_by("all").agg("least", **{name: hf.min(name) for name in kinds}, **spread).sink(
            "least-out", MemorySink(key=["all"])
        )
        table.group_by("all").agg("most", **{name: hf.max(name) for name in kinds}, **spread).sink(
            "most-out", MemorySink(key=["all"])
        )

        def row(n: int, who: str) -> dict[str, Any]:
            numbers = {"size": 2**64 - 9 + n, "small": n - 4, "share": n / 4, "price": Decimal(n) / 4}
            return {"day": date(2026, 1, n), "who": who, "hour": time(n)} | numbers

        def apart(*rows: dict[str, Any]) -> dict[str, float | None]:
            return {"all": 1, "apart": variance([row["size"] for row in rows], ddof=0)}

        low, middle, high = row(3, "a"), row(5, "zoe"), row(7, "zoe\0")
        with TestDriver(app) as t:
            t.push("rows", [{"id": n} | each for n, each in enumerate([high, low, middle])])
            t.checkpoint()
            assert (t.rows("least-out"), t.rows("most-out")) == (
                [low | apart(low, middle, high)], [high | apart(low, middle, high)],
            )  # fmt: skip
            t.push("rows", [{"id": 0} | middle, {"id": 1} | middle])
            t.checkpoint()
            assert t.rows("least-out") == t.rows("most-out") == [middle | apart(middle, middle)]
