"""Random whole jobs that join two streams, by failures, rescales and rewinds, against a loop over all pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import job_player
import pyarrow as pa
import pytest
import state_sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lookup_jobs import never

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

IN_BOTH_MODES = True
pytestmark = pytest.mark.thorough

SIDES = ("left", "right")
HOWS = ("inner", "left", "right", "full")
START = datetime(2026, 1, 1, tzinfo=UTC)
LOWER_S, UPPER_S, WINDOW_S = -4, 6, 5
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("k", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
Numbers = tuple[int | None, int | None]
"""The numbers of the rows of a pair, None for a missing one."""


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def app_of(how: str, bounded: bool) -> hf.App:
    app = hf.App("pairs", key_groups=8)
    time = {"out_of_orderness": "1h", "idle_after": "1h"}  # only the test advances it
    left, right = (app.source(side, never(SCHEMA), event_time="at", **time) for side in SIDES)
    within = hf.between(f"{LOWER_S}s", f"{UPPER_S}s") if bounded else None
    window = None if bounded else hf.tumbling(f"{WINDOW_S}s")
    joined = left.join("pairs", right, on="k", how=how, within=within, window=window)
    joined.sink("out", MemorySink())
    joined.late.sink("late", MemorySink())
    return app


@dataclass(frozen=True)
class Row:
    n: int
    key: str | None
    second: int


@dataclass
class Oracle:
    """All rows of both sides; all of them arrive in time."""

    how: str
    bounded: bool
    clock: int = 0
    rows: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))

    def fits(self, left: Row, right: Row) -> bool:
        if left.key is None or left.key != right.key:
            return False
        if self.bounded:
            return LOWER_S <= right.second - left.second <= UPPER_S
        return left.second // WINDOW_S == right.second // WINDOW_S

    def expected(self) -> list[Numbers]:
        """Return every pair, and the rows that found none where the side keeps them."""
        found: list[Numbers] = [(a.n, b.n) for a in self.rows[0] for b in self.rows[1] if self.fits(a, b)]
        for side, kept in enumerate((self.how in ("left", "full"), self.how in ("right", "full"))):
            matched = {each[side] for each in found}
            alone = [row.n for row in self.rows[side] if kept and row.n not in matched]
            found += [(n, None) if side == 0 else (None, n) for n in alone]
        return sorted(found, key=str)

    def early(self, given: list[Numbers]) -> list[Numbers]:
        """Return the rows that were given without a partner although one may still come."""
        ends = {row.n: self.last(side, row) for side in (0, 1) for row in self.rows[side] if row.key is not None}
        return [
            each for each in given if None in each and max(ends.get(n, -1) for n in each if n is not None) >= self.clock
        ]

    def last(self, side: int, row: Row) -> int:
        """Return the last second at which a partner may come."""
        if not self.bounded:
            return row.second - row.second % WINDOW_S + WINDOW_S - 1
        return row.second + max(0, UPPER_S if side == 0 else -LOWER_S)


def given_pairs(t: TestDriver) -> list[Numbers]:
    return sorted(((row["n"], row["n_right"]) for row in t.rows("out")), key=str)


PUSHES = st.lists(
    st.tuples(st.sampled_from(["a", "a", "b", "a\x00", None]), st.integers(0, 14)), min_size=1, max_size=6
)
STEPS = st.one_of(
    st.tuples(st.just("push"), st.integers(0, 1), st.integers(0, 2), PUSHES),
    st.tuples(st.just("push"), st.integers(0, 1), st.integers(0, 2), PUSHES),
    st.tuples(st.just("watermark"), st.integers(1, 8)),
    *job_player.FAILURES,
    job_player.REWIND,
)


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Times of rows are those of the clock or later, in any order; the clock is that of the test."""

    def push(side: int, partition: int, given: list[tuple[str | None, int]]) -> None:
        first = len(oracle.rows[0]) + len(oracle.rows[1])
        rows = [Row(first + i, key, oracle.clock + after) for i, (key, after) in enumerate(given)]
        oracle.rows[side].extend(rows)
        t.push(SIDES[side], [{"n": row.n, "k": row.key, "at": at(row.second)} for row in rows], partition)

    def watermark(seconds: int) -> None:
        oracle.clock += seconds
        for side in SIDES:
            t.watermark(side, at(oracle.clock))

    def check() -> None:
        found = given_pairs(t)
        assert len(set(found)) == len(found), "a pair was given twice"
        assert oracle.early(found) == []
        assert {each for each in found if None not in each} <= {*oracle.expected()}

    job_player.play(t, steps, {"push": push, "watermark": watermark}, check)


class TestRandomJoins:
    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(STEPS, min_size=4, max_size=14), st.sampled_from(HOWS), st.booleans(), st.integers(0, 2**16))
    def test_every_pair_is_given_once_and_every_row_alone_once(
        self, steps: list[Any], how: str, bounded: bool, seed: int
    ) -> None:
        oracle = Oracle(how, bounded)
        with TestDriver(app_of(how, bounded), 2, seed) as t:
            play(t, steps, oracle)
            t.finish()
            assert given_pairs(t) == oracle.expected()
            assert t.rows("late") == []
            state_sizes.check(t, {})
