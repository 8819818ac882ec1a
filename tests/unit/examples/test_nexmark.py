"""Every query of Nexmark gives the rows that DuckDB finds in SQL, in both modes, with a crash in the middle.

Events are out of order, in the partitions of the sources by turns. The queries over days and hours get events of 27
hours, the others of 50 seconds: several windows of each kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from nexmark_oracle import counted, expected

from holdfast.errors import ConfigError
from holdfast.examples import nexmark
from holdfast.examples.nexmark_data import ROWS, Events, written
from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.inspect.logframe import log
from holdfast.runtime.testing.driver import PARTITIONS, TestDriver

SECONDS = Events(2_000, every_us=25_000, group=100)
DAYS = Events(2_000, every_us=50_000_000, group=100)
OVER_DAYS = ("q10", "q14", "q15", "q16", "q17")
ALL = [query for query in nexmark.QUERIES if query != "q12"]


@cache
def tables(events: Events) -> Mapping[str, pa.Table]:
    return {kind: pa.Table.from_batches(list(events.batches(kind))) for kind in ROWS}


def rows(query: str, events: Events, mode: str, advance: str = "0s") -> list[dict[str, Any]]:
    """Return what a query gives; a worker dies after half of the events."""
    given = {kind: table.to_pylist() for kind, table in tables(events).items()}
    with TestDriver(nexmark.make(query, events, "unused", "unused"), mode=mode) as t:
        for first in (True, False):
            for source in t.sources:
                half = len(given[source]) // 2
                part = given[source][:half] if first else given[source][half:]
                for partition in range(PARTITIONS):
                    t.push(source, part[partition::PARTITIONS], partition)
            if first:
                t.checkpoint()
                t.crash()
                t.recover()
                t.advance(advance)
        t.finish()
        return t.rows("out")


def check(query: str, mode: str) -> None:
    events = DAYS if query in OVER_DAYS else SECONDS
    want, have = expected(query, tables(events)), rows(query, events, mode)
    assert want, "an empty result proves nothing"
    names = list(want[0])
    assert counted(have, names) == counted(want, names)


def longest(durations: pl.Series) -> timedelta:
    found = durations.max()
    assert isinstance(found, timedelta)
    return found


def duration(text: str) -> timedelta:
    return timedelta(milliseconds=int(text.removesuffix("ms")))


class TestQueries:
    @pytest.mark.parametrize("query", ALL)
    def test_it_gives_what_duckdb_finds(self, query: str) -> None:
        check(query, CONTINUOUS)

    def test_q12_counts_every_bid_once_in_some_ten_seconds_of_the_clock(self) -> None:
        have = rows("q12", SECONDS, CONTINUOUS, advance="25s")
        bids = Counter[int]()
        for row in have:
            bids[row["bidder"]] += row["bid_count"]
            assert row["start"].second % 10 == row["start"].microsecond == 0
        assert bids == {row["bidder"]: row["bid_count"] for row in expected("q12", tables(SECONDS))}
        starts = {row["start"] for row in have}
        assert max(starts) - min(starts) >= timedelta(seconds=20)


OF_EVERY_KIND = ("q1", "q4", "q7", "q8", "q18", "q20")
"""A map, aggregates of two levels, windows, a join of windows, the last row of a key, and a join."""


class TestQueriesInMicrobatches:
    @pytest.mark.parametrize(
        "query", [pytest.param(each, marks=[] if each in OF_EVERY_KIND else [pytest.mark.slow]) for each in ALL]
    )
    def test_it_gives_what_duckdb_finds(self, query: str) -> None:
        check(query, MICROBATCH)


class TestEvents:
    def test_a_round_has_a_person_three_auctions_and_46_bids(self) -> None:
        assert [Events(100).rows(kind) for kind in ROWS] == [2, 6, 92]
        assert [Events(53).rows(kind) for kind in ROWS] == [2, 5, 46]
        assert sum(Events(977).rows(kind) for kind in ROWS) == 977

    @pytest.mark.parametrize("kind", ROWS)
    def test_a_row_depends_on_its_number_only(self, kind: str) -> None:
        events = Events(5_000, group=100)
        whole = pl.DataFrame(events.columns(kind, np.arange(events.rows(kind))))
        some = np.array([7, 3, 99])
        assert pl.DataFrame(events.columns(kind, some)).equals(whole[some.tolist()])

    @pytest.mark.parametrize("kind", ROWS)
    def test_a_group_is_out_of_order_and_no_event_is_lost(self, kind: str) -> None:
        events, ordered = Events(5_030, group=1_000), Events(5_030)
        have, want = (pl.DataFrame(each.columns(kind, np.arange(each.rows(kind)))) for each in (events, ordered))
        assert want["at"].is_sorted() and not have["at"].is_sorted()
        assert have.sort("at").equals(want)
        assert have["at"].n_unique() == have.height
        behind = longest(have["at"].cum_max() - have["at"])
        assert timedelta(milliseconds=50) < behind <= timedelta(milliseconds=100)
        assert events.out_of_orderness == "100ms"

    def test_what_belongs_together_is_no_further_apart_than_documented(self) -> None:
        events = Events(200_000)
        persons, auctions, bids = (pl.DataFrame(events.columns(kind, np.arange(events.rows(kind)))) for kind in ROWS)
        offers = auctions.join(bids, left_on="id", right_on="auction")
        for first, last in ((auctions["at"], auctions["expires"]), (offers["at"], offers["at_right"])):
            assert longest((last - first).abs()) <= duration(events.longest_auction)
        sold = persons.join(auctions, left_on="id", right_on="seller")
        assert sold.height > 0.99 * auctions.height
        assert longest((sold["at_right"] - sold["at"]).abs()) <= duration(events.longest_activity)

    def test_the_logs_hold_every_event_once(self, tmp_path: Path) -> None:
        events = Events(1_007, group=100)
        folder = written(str(tmp_path / "logs"), events)
        for kind, table in tables(events).items():
            assert log(f"{folder}/{kind}").collect().sort("at").equals(pl.DataFrame(table).sort("at"))
        assert written(folder, Events(5)) == folder

    def test_a_folder_with_other_files_is_not_changed(self, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("kept")
        with pytest.raises(ConfigError, match="does not hold the logs"):
            written(str(tmp_path), Events(50))
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]
