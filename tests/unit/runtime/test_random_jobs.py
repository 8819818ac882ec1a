"""Random jobs against an oracle: any input, any split, any failure and any rescaling give the same answer.

A record carries one bit, so a sum of bits names the very records that a result holds. The oracle is plain Python over
the list of what was pushed; the runtime decides which records are late, within the freedom of the rules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
import state_sizes
from aggregate_oracles import expected
from hypothesis import given, settings
from hypothesis import strategies as st
from job_player import rescale
from planned_source import PlannedSource

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

pytestmark = pytest.mark.thorough

START = datetime(2026, 1, 1, tzinfo=UTC)
SOURCES = ("readings", "more", "most")
SIZE_S, OUT_OF_ORDERNESS_S, KEY_GROUPS, RECORDS_MAX = 10, 2, 8, 60


@dataclass(frozen=True)
class Reading:
    bit: int
    city: str | None
    floor: int | None
    level: int | None
    heat: float | None
    at: datetime


COLUMNS = PlannedSource(hf.Generator(Reading, lambda i: Reading(i, None, None, None, None, START)).schema)


def refuses(reading: Reading) -> bool:
    return reading.level == 13


def unless_refused(reading: Any) -> Any:
    if reading.level == 13:
        raise ValueError("thirteen")
    return reading


def app_of(emit: str, lateness_s: int, sources: int = 1) -> hf.App:
    app = hf.App("random", key_groups=KEY_GROUPS)
    late_by = f"{OUT_OF_ORDERNESS_S}s"
    source, *others = [
        app.source(name, COLUMNS, event_time="at", out_of_orderness=late_by, idle_after="1h")
        for name in SOURCES[:sources]
    ]
    if others:
        source = source.union(*others)
    readings = source.map(unless_refused, to=Reading, on_error="drop").with_columns(twice=pl.col("bit") * 2)
    readings.sink("kept", MemorySink())
    aggregates: dict[str, Any] = {
        "n": hf.count(),
        "bits": hf.sum("bit"),
        "levels": hf.count("level"),
        "total": hf.sum("level"),
        "low": hf.min("level"),
        "high": hf.max("twice"),
        "average": hf.mean("level"),
        "coldest": hf.min("heat"),
        "hottest": hf.max("heat"),
        "warmth": hf.sum("heat"),
        "warm": hf.sum("bit", filter=pl.col("heat") > 0),
        "newest": hf.last("bit"),
        "lowest": hf.first("bit", by="level"),
        "highest": hf.top("bit", 2, by="level"),
        "kept": hf.collect("bit"),
        "different": hf.distinct("level"),
        "about": hf.approx_distinct("level"),
    }
    totals = readings.key_by("city", "floor").agg("per_floor", **aggregates)
    # A key of a target is never null; keys of the state may be, and are looked up there.
    named = totals.filter(pl.col("city").is_not_null() & pl.col("floor").is_not_null())
    named.sink("totals", MemorySink(key=named.upsert_key))
    window = readings.key_by("city", "floor").window(hf.tumbling(f"{SIZE_S}s"), allowed_lateness=f"{lateness_s}s")
    hot = window.agg("hot", emit=emit, **aggregates)
    hot.sink("windows", MemorySink(key=hot.upsert_key))
    hot.late.sink("late", MemorySink())
    return app


def end_s(reading: Reading) -> int:
    return int((reading.at - START).total_seconds() // SIZE_S + 1) * SIZE_S


def least(values: list[Any]) -> Any:
    numbers = [value for value in values if not math.isnan(value)]
    return min(numbers) if numbers else (math.nan if values else None)


def most(values: list[Any]) -> Any:
    numbers = [value for value in values if not math.isnan(value)]
    return max(numbers) if numbers else (math.nan if values else None)


def row_of(readings: list[Reading]) -> dict[str, Any]:
    """Return the aggregates as SQL has them: nulls are left out, and without any value the answer is null."""
    levels = [r.level for r in readings if r.level is not None]
    heats = [r.heat for r in readings if r.heat is not None]
    by_level = [(r.bit, r.level) for r in readings if r.level is not None]
    return {
        "n": len(readings),
        "bits": sum(r.bit for r in readings),
        "levels": len(levels),
        "total": sum(levels) if levels else None,
        "low": min(levels) if levels else None,
        "high": 2 * max(r.bit for r in readings),
        "average": sum(levels) / len(levels) if levels else None,
        "coldest": least(heats),
        "hottest": most(heats),
        "warmth": sum(heats) if heats else None,
        "warm": sum(warm) if (warm := [r.bit for r in readings if r.heat is not None and not r.heat <= 0]) else None,
        "newest": expected("last", [(r.bit, r.at) for r in readings]),
        "lowest": expected("first", by_level),
        "highest": expected("top", by_level, k=2),
        "kept": expected("collect", [(r.bit, None) for r in readings]),
        "different": len(set(levels)),
        "about": len(set(levels)),
    }


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Make NaN equal to itself."""
    return {name: "nan" if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


@dataclass
class Pushed:
    """Everything a test pushed, and the results that the rules determine."""

    lateness_s: int
    upserts: bool
    """Windows are corrected, so their keys are those of a target, which are never null."""
    all: list[Reading] = field(default_factory=list)
    never_late: int = 0
    always_late: int = 0
    newest: dict[int, float] = field(default_factory=dict)
    mark: float = -math.inf
    closed: float = -math.inf
    """Event time that a completed checkpoint has reached for certain."""

    def take(self, readings: Iterable[Reading], partition: int) -> None:
        for each in readings:
            second, over = (each.at - START).total_seconds(), end_s(each) + self.lateness_s
            before = self.newest.get(partition, -math.inf)
            self.all.append(each)
            if over > max(before - OUT_OF_ORDERNESS_S, self.mark):
                self.never_late |= each.bit
            if over <= self.closed:
                self.always_late |= each.bit
            self.newest[partition] = max(before, second)  # time comes from the source, before any function

    def kept(self) -> list[Reading]:
        return [each for each in self.all if not refuses(each)]

    def totals(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        groups: dict[tuple[Any, ...], list[Reading]] = defaultdict(list)
        for each in self.kept():
            groups[each.city, each.floor].append(each)
        return {key: shown(row_of(readings)) for key, readings in groups.items()}

    def windows(self, late: int) -> dict[tuple[Any, ...], dict[str, Any]]:
        groups: dict[tuple[Any, ...], list[Reading]] = defaultdict(list)
        for each in self.kept():
            if not each.bit & late:
                groups[START + timedelta(seconds=end_s(each)), each.city, each.floor].append(each)
        return {key: shown(row_of(readings)) for key, readings in groups.items()}


RECORDS = st.tuples(
    st.sampled_from(["a", "b", "", None]),
    st.sampled_from([0, 1, None]),
    st.sampled_from([None, 13, 0, -7, 5, 2**40]),
    st.sampled_from([None, math.nan, -1.5, 0.25, 3.0]),
    st.integers(-25, 60),
)
INTERRUPTED = st.integers(0, 120)
"""After how many steps of the schedule, once an epoch is due, the failure strikes: before its barriers, or after."""
STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 3), st.lists(RECORDS, min_size=1, max_size=8)),
    st.tuples(st.just("push"), st.integers(0, 3), st.lists(RECORDS, min_size=1, max_size=8)),
    st.tuples(st.just("watermark"), st.integers(-10, 60)),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("crash"), st.sets(st.integers(0, 2), min_size=1), INTERRUPTED),
    st.tuples(st.just("driver"), st.integers(1, 4), INTERRUPTED),
)


def reading(bit: int, values: tuple[Any, ...], keyed: bool) -> Reading:
    city, floor, level, heat, second = values
    if keyed:
        city, floor = city or "-", floor or 0
    return Reading(bit, city, floor, level, heat, START + timedelta(seconds=second))


def play(t: TestDriver, step: tuple[Any, ...], pushed: Pushed, sources: int = 1) -> None:
    match step:
        case ("push", partition, rows):
            room = RECORDS_MAX - len(pushed.all)
            readings = [
                reading(1 << (len(pushed.all) + n), values, pushed.upserts) for n, values in enumerate(rows[:room])
            ]
            pushed.take(readings, partition)
            t.push(SOURCES[partition % sources], readings, partition // sources)
        case ("watermark", second):
            for source in SOURCES[:sources]:
                t.watermark(source, START + timedelta(seconds=second))
            pushed.mark = max(pushed.mark, second)
        case ("checkpoint",):
            t.checkpoint()
            pushed.closed = pushed.mark
        case ("crash", chosen, steps):
            interrupt(t, steps)
            t.cluster.held_launches = []
            for worker in [w for n, w in enumerate(t.cluster.members) if n in chosen]:
                t.cluster.crash(worker)
            t.recover()
        case ("driver", parallelism, steps):
            interrupt(t, steps)
            rescale(t, parallelism)
            t.advance("1s")


def interrupt(t: TestDriver, steps: int) -> None:
    """Let an epoch be due, and stop somewhere on the way to its end."""
    t.cluster.clock.now += 1.1
    for _ in range(steps):
        t.cluster.step()


def late_bits(t: TestDriver) -> int:
    bits = [row["bit"] for row in t.rows("late")]
    assert len(set(bits)) == len(bits), "a record is late twice"
    return sum(bits)


def rows_by(t: TestDriver, sink: str, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in t.rows(sink):
        row.pop("window_start", None)
        place = tuple(row.pop(name) for name in key)
        assert place not in found, "a result was given twice"
        found[place] = shown(row)
    return found


def account(t: TestDriver, pushed: Pushed, emit: str) -> None:
    """Every record is in a result, late, left out by name, or pending in the state, and in one of them only."""
    late, out = late_bits(t), rows_by(t, "windows", "window_end", "city", "floor")
    accounted = late + sum(each.bit for each in pushed.all if refuses(each))
    for place in pushed.windows(late=0):
        pending, given = t.state("hot", place), out.get(place)
        if pending is not None:
            assert given is None or emit == "close" and given["bits"] == pending["bits.sum"]
            accounted += pending["bits.sum"]
        elif given is not None:
            accounted += given["bits"]
    assert accounted == sum(each.bit for each in pushed.all)


class TestRandomJobs:
    @settings(max_examples=16)
    @given(
        st.lists(STEPS, min_size=4, max_size=12),
        st.sampled_from(["close", "final"]),
        st.sampled_from([0, 5, 12]),
        st.integers(1, 3),
        st.integers(0, 2**16),
        st.integers(1, 3),
    )
    def test_results_equal_the_oracle_and_every_record_is_accounted_for(
        self, steps: list[Any], emit: str, lateness_s: int, parallelism: int, seed: int, sources: int
    ) -> None:
        pushed = Pushed(lateness_s, upserts=emit == "close" and lateness_s > 0)
        with TestDriver(app_of(emit, lateness_s, sources), parallelism, seed) as t:
            for source in SOURCES[:sources]:  # partitions without records hold time, as in the oracle
                t.watermark(source, START - timedelta(days=9))
            for step in steps:
                play(t, step, pushed, sources)
            t.checkpoint()
            account(t, pushed, emit)
            t.finish()
            late = late_bits(t)
            assert rows_by(t, "windows", "window_end", "city", "floor") == pushed.windows(late)
            totals = pushed.totals()
            assert rows_by(t, "totals", "city", "floor") == {key: row for key, row in totals.items() if None not in key}
            for key, row in totals.items():
                kept = t.state("per_floor", key)
                assert kept is not None and (kept["n.count"], kept["bits.sum"]) == (row["n"], row["bits"])
            assert sorted(row["bit"] for row in t.rows("kept")) == sorted(each.bit for each in pushed.kept())
            assert not late & pushed.never_late
            assert not pushed.always_late & ~late & ~sum(each.bit for each in pushed.all if refuses(each))
            state_sizes.check(t, {"per_floor": len(totals)})

    @settings(max_examples=6)
    @given(
        st.lists(st.tuples(st.integers(0, 3), st.lists(RECORDS, min_size=1, max_size=8)), min_size=1, max_size=6),
        st.integers(1, 4),
        st.integers(0, 2**16),
    )
    def test_without_late_records_windows_do_not_depend_on_batches_or_parallelism(
        self, pushes: list[tuple[int, list[Any]]], parallelism: int, seed: int
    ) -> None:
        pushed, lateness_s = Pushed(100, upserts=False), 100
        with TestDriver(app_of("final", lateness_s), parallelism, seed) as t:
            for partition, rows in pushes:
                play(t, ("push", partition, rows), pushed)
            t.finish()
            assert rows_by(t, "windows", "window_end", "city", "floor") == pushed.windows(late=0)


class TestTheOracle:
    def test_nulls_are_ignored_as_in_sql(self) -> None:
        two = [Reading(1, None, 1, None, math.nan, START), Reading(2, None, 1, 4, None, START)]
        assert shown(row_of(two)) == {
            "n": 2,
            "bits": 3,
            "levels": 1,
            "total": 4,
            "low": 4,
            "high": 4,
            "average": 4.0,
            "coldest": "nan",
            "hottest": "nan",
            "warmth": "nan",
            "warm": 1,
            "newest": 2,
            "lowest": 2,
            "highest": [2],
            "kept": [1, 2],
            "different": 1,
            "about": 1,
        }
        assert asdict(two[0])["level"] is None
