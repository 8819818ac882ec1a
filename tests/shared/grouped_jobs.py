"""Jobs that group a table whose rows change, steps for them, and what every group holds, in plain Python."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import job_player
import polars as pl
import pyarrow as pa
import state_sizes
from hypothesis import strategies as st
from lookup_jobs import never

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("city", pa.string()),
        pa.field("v", pa.int32()),
        pa.field("f", pa.float64()),
        pa.field("d", pa.decimal128(6, 2)),
        pa.field("gone", pa.bool_(), nullable=False),
    ]
)
NAMES = ("n", "some", "total", "mean", "exact", "large", "least", "most", "small", "spread")
Row = tuple[str, int | None]
"""City and value."""


def change(id: int, row: Row | None) -> dict[str, Any]:
    """Return a change of the table; without a row it deletes."""
    if row is None or row[1] is None:
        city = None if row is None else row[0]
        return {"id": id, "city": city, "v": None, "f": None, "d": None, "gone": row is None}
    return {"id": id, "city": row[0], "v": row[1], "f": row[1] / 8, "d": Decimal(row[1]) / 4, "gone": False}


def app_of() -> hf.App:
    app = hf.App("cities", key_groups=8)
    customers = app.table("customers", never(SCHEMA), key="id", deleted="gone")
    sums = {"total": hf.sum("v"), "mean": hf.mean("f"), "exact": hf.sum("d")}
    large = hf.sum("v", filter=pl.col("v") > 50)
    small = hf.max("v", filter=pl.col("v") <= 50)
    ends = {"least": hf.min("f"), "most": hf.max("d"), "small": small, "spread": hf.var("f")}
    cities = customers.group_by("city").agg("cities", n=hf.count(), some=hf.count("v"), **sums, large=large, **ends)
    cities.sink("out", MemorySink(key=["city"]))
    sizes = cities.group_by("n").agg("sizes", cities=hf.count())
    sizes.filter(pl.col("n").is_not_null()).sink("sizes-out", MemorySink(key=["n"]))
    return app


def variance(values: list[float] | list[int], ddof: int = 1) -> float | None:
    """Return the variance of numbers, computed exactly and rounded once."""
    if len(values) <= ddof:
        return None
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    try:
        return float(sum((value - mean) ** 2 for value in exact) / (len(exact) - ddof))
    except OverflowError:
        return math.inf


@dataclass
class Oracle:
    """The table as it stands."""

    rows: dict[int, Row] = field(default_factory=dict)

    def expected(self) -> dict[str, tuple[Any, ...]]:
        cities = defaultdict[str, list[int | None]](list)
        for city, value in self.rows.values():
            cities[city].append(value)
        return {city: self.of(values) for city, values in cities.items()}

    def of(self, given: list[int | None]) -> tuple[Any, ...]:
        values = [value for value in given if value is not None]
        large = [value for value in values if value > 50]
        small = [value for value in values if value <= 50]
        counts = len(given), len(values)
        if not values:
            return (*counts, *[None] * (len(NAMES) - len(counts)))
        mean, exact = math.fsum(value / 8 for value in values) / len(values), Decimal(sum(values)) / 4
        sums = sum(values), mean, exact, sum(large) if large else None
        ends = min(values) / 8, Decimal(max(values)) / 4, max(small, default=None)
        return (*counts, *sums, *ends, variance([value / 8 for value in values]))

    def kept(self) -> dict[str, int]:
        """Return how many rows the state has: the table, its groups, and every value of a group once."""
        cities = self.expected()
        values = {row for row in self.rows.values() if row[1] is not None}
        small = {(city, value) for city, value in values if value is not None and value <= 50}
        parts = dict.fromkeys(("cities.least", "cities.most"), len(values)) | {"cities.small": len(small)}
        tables = {"cities-rows": len(self.rows), "cities": len(cities)}
        return tables | parts | {"sizes-rows": len(cities), "sizes": len(self.sizes())}

    def sizes(self) -> dict[int, int]:
        sizes = defaultdict[int, int](int)
        for each in self.expected().values():
            sizes[each[0]] += 1
        return dict(sizes)


VALUES = st.one_of(st.none(), st.integers(-100, 100))
CHANGED = st.tuples(st.integers(0, 5), st.one_of(st.none(), st.tuples(st.sampled_from("abc"), VALUES)))
STEPS = st.one_of(
    st.tuples(st.just("changes"), st.lists(CHANGED, min_size=1, max_size=6)),
    st.tuples(st.just("changes"), st.lists(CHANGED, min_size=1, max_size=6)),
    *job_player.FAILURES,
    job_player.REWIND,
)


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare what the groups hold at the end; the records of a key are in one partition."""

    def push(changes: list[tuple[int, Row | None]]) -> None:
        for id, row in changes:
            t.push("customers", [change(id, row)], id % 3)
            oracle.rows.pop(id, None)
            oracle.rows |= {} if row is None else {id: row}

    job_player.play(t, steps, {"changes": push})
    t.finish()
    found = {row["city"]: tuple(row[name] for name in NAMES) for row in t.rows("out")}
    assert found == oracle.expected()
    assert {row["n"]: row["cities"] for row in t.rows("sizes-out")} == oracle.sizes()
    digits = "cities.spread"
    state_sizes.check(t, oracle.kept(), besides=digits)
    assert bool(state_sizes.sizes_of(t).rows[digits]) == any(value for _, value in oracle.rows.values())
