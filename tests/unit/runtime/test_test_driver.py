"""The test driver: a whole job in one thread, and what it must show of crashes, recovery and delivery."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import ConfigError, JobFailed
from holdfast.testing import TestDriver


@dataclass
class Bid:
    auction: int
    price: float


def hot() -> hf.App:
    app = hf.App("hot", key_groups=16)
    bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i, 1.0), count=1))
    counted = bids.filter(pl.col("price") > 0).key_by("auction").agg("hot", bids=hf.count(), top=hf.max("price"))
    counted.sink("out", hf.SQLite("unused.db", table="hot", key=["auction"]))
    bids.filter(pl.col("price") <= 0).sink("refused", hf.SQLite("unused.db", table="refused"))
    return app


def by_auction(driver: TestDriver) -> dict[int, tuple[int, float]]:
    return {row["auction"]: (row["bids"], row["top"]) for row in driver.rows("out")}


class TestOneJob:
    def test_rows_are_delivered_when_their_epoch_is_completed_and_not_before(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1, 2.0), Bid(2, 3.0), Bid(1, 4.0)])
            assert t.rows("out") == []
            t.checkpoint()
            assert by_auction(t) == {1: (2, 4.0), 2: (1, 3.0)}

    def test_committed_state_can_be_read(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [{"auction": 7, "price": 5.0}])
            assert t.state("hot", 7) is None
            t.checkpoint()
            assert t.state("hot", 7) == {"bids.count": 1, "top.max": 5.0}

    def test_a_crash_before_the_first_epoch_loses_nothing(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1, 2.0)])
            t.crash(0)
            t.crash(1)
            t.recover()
            t.checkpoint()
            assert by_auction(t) == {1: (1, 2.0)}

    def test_survivors_roll_back_in_place_and_the_lost_subtask_is_restored(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(auction, 1.0) for auction in range(50)])
            t.checkpoint()
            t.push("bids", [Bid(auction, 9.0) for auction in range(50)], partition=3)
            t.crash(1)
            t.recover()
            assert t.how() == {0: "rolled back", 1: "restored"}
            assert [(restart.generation, restart.rewind) for restart in t.restarts] == [(2, False)]
            t.finish()
            assert by_auction(t) == dict.fromkeys(range(50), (2, 9.0))

    def test_a_finished_job_has_delivered_everything(self) -> None:
        with TestDriver(hot(), parallelism=3) as t:
            t.push("bids", [Bid(1, -1.0), Bid(1, 2.0)])
            t.finish()
            assert by_auction(t) == {1: (1, 2.0)}
            assert t.rows("refused") == [{"auction": 1, "price": -1.0}]

    def test_a_row_that_does_not_fit_is_refused_with_its_column(self) -> None:
        with TestDriver(hot()) as t, pytest.raises(ConfigError, match="price"):
            t.push("bids", [{"auction": 1, "price": "much"}])

    def test_an_expression_that_raises_ends_the_job_with_its_cause(self) -> None:
        app = hf.App("strict")
        source = app.source("bids", hf.Generator(Bid, lambda i: Bid(i, 1.0), count=1))
        source.with_columns(half=pl.col("price").cast(pl.Int8)).sink("out", hf.SQLite("unused.db", table="t"))
        with TestDriver(app) as t, pytest.raises(JobFailed, match="half|i8|conversion"):
            t.push("bids", [Bid(1, 1e9)])


Action = tuple[str, int, int]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 3), st.integers(1, 30)),
            st.tuples(st.just("crash"), st.integers(0, 1), st.just(0)),
            st.tuples(st.just("driver"), st.just(0), st.just(0)),
            st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
            st.tuples(st.just("advance"), st.integers(1, 3), st.just(0)),
        ),
        max_size=12,
    ),
    st.integers(0, 1_000),
)
def test_whatever_crashes_when_the_output_is_that_of_all_input_once(actions: list[Action], seed: int) -> None:
    counts: Counter[int] = Counter()
    with TestDriver(hot(), seed=seed) as t:
        for number, (kind, where, size) in enumerate(actions):
            match kind:
                case "push":
                    rows = [Bid((number + i) % 11, 1.0 + i) for i in range(size)]
                    counts.update(row.auction for row in rows)
                    t.push("bids", rows, partition=where)
                case "crash":
                    t.crash(where)
                    t.recover()
                case "driver":
                    t.cluster.replace_driver()
                    t.recover()
                case "checkpoint":
                    t.checkpoint()
                case _:
                    t.advance(f"{where}s")
        t.finish()
        assert {auction: bids for auction, (bids, _) in by_auction(t).items()} == counts
