"""The test driver: a complete job in one thread, with crashes, recovery and delivery."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

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
    def test_rows_are_delivered_only_when_their_epoch_is_completed(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1, 2.0), Bid(2, 3.0), Bid(1, 4.0)])
            assert t.rows("out") == []
            t.checkpoint()
            assert by_auction(t) == {1: (2, 4.0), 2: (1, 3.0)}

    @pytest.mark.parametrize("waited", ["10s", "10250ms"])
    def test_a_checkpoint_holds_what_was_pushed_just_before_it(self, waited: str) -> None:
        for seed in range(2):
            with TestDriver(hot(), seed=seed, mode="microbatch") as t:
                for count in (1, 2):
                    t.advance(waited)
                    t.push("bids", [Bid(1, 2.0)], partition=count)
                    t.checkpoint()
                    assert by_auction(t) == {1: (count, 2.0)}

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
def test_the_output_equals_that_of_all_input_once_under_any_crashes(actions: list[Action], seed: int) -> None:
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


@dataclass
class Timed:
    """A row with an event time."""

    word: str
    at: datetime


def hourly() -> hf.App:
    app = hf.App("hourly", key_groups=16)
    rows = app.source("rows", hf.Generator(Timed, lambda i: Timed("a", NOON), count=1), event_time="at")
    hours = rows.key_by("word").window(hf.tumbling("1h")).agg("hours", n=hf.count())
    hours.sink("out", hf.SQLite("unused.db", table="hours"))
    return app


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def windowed(**given: Any) -> hf.App:
    app = hf.App("windowed", key_groups=8)
    rows = app.source("rows", hf.Log("unused", Timed), event_time="at", **given)
    counted = rows.key_by("word").window(hf.tumbling("10s")).agg("counted", rows=hf.count())
    counted.sink("out", hf.Log("unused-out"))
    counted.late.sink("late", hf.Log("unused-late"))
    return app


def timed(second: float) -> Timed:
    return Timed("a", datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second))


@pytest.mark.parametrize("mode", ["continuous", "microbatch"])
class TestPartitionsThatWereNeverPushedTo:
    def test_do_not_keep_a_window_open(self, mode: str) -> None:
        with TestDriver(windowed(), 2, mode=mode) as t:
            t.push("rows", [timed(1), timed(12)])
            t.checkpoint()
            assert [row["rows"] for row in t.rows("out")] == [1]

    def test_wait_for_the_disorder_that_the_source_allows(self, mode: str) -> None:
        with TestDriver(windowed(out_of_orderness="5s"), 2, mode=mode) as t:
            t.push("rows", [timed(1), timed(14.9)])
            t.checkpoint()
            assert t.rows("out") == []
            t.push("rows", [timed(15)])
            t.checkpoint()
            assert [row["rows"] for row in t.rows("out")] == [1]

    def test_follow_the_lowest_of_the_others(self, mode: str) -> None:
        with TestDriver(windowed(), 2, mode=mode) as t:
            t.push("rows", [timed(30)], partition=2)
            t.push("rows", [timed(1), timed(12)])
            t.checkpoint()
            assert ([row["rows"] for row in t.rows("out")], t.rows("late")) == ([1], [])

    def test_hold_the_time_that_the_test_told_of_them(self, mode: str) -> None:
        with TestDriver(windowed(), 2, mode=mode) as t:
            t.watermark("rows", timed(5).at)
            t.push("rows", [timed(6), timed(12)])
            t.checkpoint()
            assert t.rows("out") == []
            t.watermark("rows", timed(10).at)
            t.checkpoint()
            assert [row["rows"] for row in t.rows("out")] == [1]

    def test_are_read_when_they_get_records(self, mode: str) -> None:
        with TestDriver(windowed(), 2, mode=mode) as t:
            t.push("rows", [timed(1), timed(12)])
            t.checkpoint()
            t.push("rows", [timed(2), timed(13)], partition=1)
            t.finish()
            assert sorted(row["rows"] for row in t.rows("out")) == [1, 2]
            assert [row["at"] for row in t.rows("late")] == [timed(2).at]


class TestWrongUse:
    """Refused by one sentence, as a source or the command line would."""

    @pytest.mark.parametrize(
        ("rows", "says"),
        [
            ([Timed("a", datetime(2026, 1, 1))], "row 0 pushed to 'rows' does not fit its schema: column 'at' is a"),
            ([{"word": "a", "at": NOON}, {"word": "a", "at": datetime(2026, 1, 1)}], "row 1 pushed to 'rows'"),
            ([{"word": 1, "at": NOON}], "column 'word' takes string, not int 1"),
            ([{"word": "a", "at": NOON, "n": 1}], "column 'n' is not in the schema"),
            ("rows.csv", "'rows.csv' is not a list of rows"),
            ({"word": "a", "at": NOON}, "is not a list of rows"),
            (["rows.csv"], "str is not a row"),
            (7, "7 is not a list of rows"),
        ],
    )
    def test_objects_that_are_no_rows_are_refused(self, rows: Any, says: str) -> None:
        with TestDriver(hourly()) as t:
            with pytest.raises(ConfigError) as refused:
                t.push("rows", rows)
            assert says in refused.value.what and refused.value.not_done == "none of these rows was pushed"
            t.push("rows", [Timed("a", NOON)])

    def test_a_null_in_a_column_that_forbids_it_makes_an_undecodable_record(self) -> None:
        with TestDriver(hourly()) as t, pytest.raises(JobFailed, match="'word' is null|null"):
            t.push("rows", [{"word": None, "at": NOON}])

    @pytest.mark.parametrize(
        ("key", "says"),
        [
            ("a", "keeps its state by window_end, word, but 'a' is not such a key: the key has 2 columns, not 1"),
            ((NOON, 7), "column 'word' takes string, not int 7"),
            ((datetime(2026, 1, 1, 13), "a"), "is a datetime without a time zone"),
            ((None, "a"), "column 'window_end' is null"),
        ],
    )
    def test_a_key_with_other_columns_is_refused(self, key: Any, says: str) -> None:
        with TestDriver(hourly()) as t:
            t.push("rows", [Timed("a", NOON)])
            t.checkpoint()
            with pytest.raises(ConfigError) as refused:
                t.state("hours", key)
            assert says in refused.value.what and "(window_end, word) as a tuple" in refused.value.next_step
            state = t.state("hours", (NOON + timedelta(hours=1), "a"))
            assert state is not None and state["n.count"] == 1

    def test_the_clock_of_windows_is_refused_as_an_operator(self) -> None:
        with TestDriver(hourly()) as t, pytest.raises(ConfigError, match="no operator") as refused:
            t.state("hours.clock", 1)
        assert refused.value.next_step == "use one of ['hours']"

    @pytest.mark.parametrize("app", ["jobs/hot.py", Path("jobs/hot.py")])
    def test_a_file_in_place_of_the_app_is_refused(self, app: Any) -> None:
        with pytest.raises(ConfigError, match="TestDriver takes an hf.App") as refused:
            TestDriver(app)
        assert refused.value.next_step == "import the app from its file: from hot import app"

    @pytest.mark.parametrize("parallelism", [0, 17, "2", None])
    def test_an_invalid_parallelism_is_refused(self, parallelism: Any) -> None:
        with pytest.raises(ConfigError, match="TestDriver has parallelism="):
            TestDriver(hourly(), parallelism=parallelism)

    @pytest.mark.parametrize("at", [datetime(2026, 1, 1), "2026-01-01", None])
    def test_a_watermark_that_is_not_a_time_is_refused(self, at: Any) -> None:
        with TestDriver(hourly()) as t, pytest.raises(ConfigError, match="source 'rows' has no use for"):
            t.watermark("rows", at)

    @pytest.mark.parametrize("call", [TestDriver.checkpoint, TestDriver.finish], ids=["checkpoint", "finish"])
    @pytest.mark.timeout(20)  # it used to wait for the missing worker, in virtual time and without end
    def test_the_end_of_an_epoch_that_a_crashed_worker_never_reaches_is_refused(self, call: Any) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1, 1.0)])
            t.crash()
            with pytest.raises(
                ConfigError, match="worker of subtask 0 has crashed, so no epoch can complete"
            ) as refused:
                call(t)
            assert refused.value.next_step == "start its replacement first: t.recover()"
            t.recover()
            t.finish()
            assert by_auction(t) == {1: (1, 1.0)}

    @pytest.mark.parametrize(
        "call",
        [
            lambda t: t.push("bids", [Bid(1, 1.0)]),
            lambda t: t.checkpoint(),
            lambda t: t.crash(),
            lambda t: t.recover(),
            lambda t: t.rewind(1),
        ],
        ids=["push", "checkpoint", "crash", "recover", "rewind"],
    )
    @pytest.mark.timeout(20)
    def test_a_call_after_the_end_of_the_job_is_refused(self, call: Any) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1, 1.0)])
            t.finish()
            with pytest.raises(ConfigError, match="job 'hot' has finished") as refused:
                call(t)
            assert refused.value.not_done == "nothing was changed"
            assert by_auction(t) == {1: (1, 1.0)}

    @pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
    def test_a_call_outside_the_with_statement_is_refused(self, before: bool) -> None:
        t = TestDriver(hot())
        if not before:
            with t:
                t.push("bids", [Bid(1, 1.0)])
        for call in (lambda: t.push("bids", [Bid(1, 1.0)]), t.checkpoint, t.finish, lambda: t.advance("1s")):
            with pytest.raises(ConfigError, match="runs its job only inside a with statement") as refused:
                call()
            assert refused.value.next_step == "write: with TestDriver(app) as t:"

    @pytest.mark.timeout(20)
    def test_a_rewind_is_possible_while_a_worker_is_crashed(self) -> None:
        with TestDriver(hot()) as t:
            t.push("bids", [Bid(1, 1.0)])
            epoch = t.checkpoint()
            t.push("bids", [Bid(1, 2.0)])
            t.checkpoint()
            t.crash()
            t.rewind(epoch)
            assert by_auction(t) == {1: (1, 1.0)}
