"""The queries of the comparison with other engines, as jobs of Holdfast, and what their answers must be.

The topics are those of the peers: bids and auctions as JSON, times in milliseconds, bids up to two seconds out of
order. Results go to an hf.Log, which is on disk, where those of the peers are discarded; q_pass writes to a topic, as
theirs does. The answers are computed from the same rows by Polars.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

import holdfast as hf
from holdfast.runtime.sources.kafka.connector import Delivery

BID = {"auction": pl.Int64, "bidder": pl.Int64, "price": pl.Int64, "channel": pl.String, "dateTime": pl.Int64}
AUCTION = {"id": pl.Int64, "seller": pl.Int64, "category": pl.Int64, "dateTime": pl.Int64, "expires": pl.Int64}
EURO = 0.908
LATE_MS, SIZE_MS, EVERY_MS, JOINED_MS = 2_000, 10_000, 2_000, 10_000


@dataclass
class Bid:
    auction: int
    bidder: int
    price: int
    channel: str
    dateTime: datetime


@dataclass
class Auction:
    id: int
    seller: int
    category: int
    dateTime: datetime
    expires: int


@dataclass
class Passed:
    auction: int
    bidder: int
    price: float | None  # what an expression computes may be null
    dateTime: datetime


@dataclass
class Total:
    bidder: int
    n: int
    s: int


@dataclass(frozen=True)
class Places:
    """Where a job reads and writes.

    Args:
        bids: The topic of the bids; `auctions` that of the auctions, `passed` the one that q_pass writes to.
        delivery: How q_pass writes.
        folder: Holds the job's root and the results.
    """

    servers: str
    folder: Path
    bids: str = "bids"
    auctions: str = "auctions"
    passed: str = "out_holdfast"
    delivery: Delivery = "transactional"

    @property
    def results(self) -> Path:
        """The log that holds the results of all queries but q_pass."""
        return self.folder / "out"

    def environment(self, query: str, every: str) -> dict[str, str]:
        """Return the variables from which this file makes the job."""
        topics = f"{self.bids},{self.auctions},{self.passed}"
        return {
            "PEER_QUERY": query,
            "PEER_EVERY": every,
            "PEER_SERVERS": self.servers,
            "PEER_TOPICS": topics,
            "PEER_DELIVERY": self.delivery,
            "PEER_FOLDER": str(self.folder),
        }

    @classmethod
    def of_environment(cls) -> Places:
        """Return the places that `environment` describes."""
        given: Any = (*os.environ["PEER_TOPICS"].split(","), os.environ["PEER_DELIVERY"])
        return cls(os.environ["PEER_SERVERS"], Path(os.environ["PEER_FOLDER"]), *given)


class Counting(hf.KeyedProcess[Bid, Total]):
    """q_count in Python: a method that is called with every bid, and emits a row for every bid."""

    n = hf.Value(int)
    s = hf.Value(int)

    def on_record(self, ctx: hf.Context, r: Bid) -> None:
        n, s = self.n.get(0) + 1, self.s.get(0) + r.price
        self.n.set(n)
        self.s.set(s)
        ctx.emit(Total(r.bidder, n, s))


def make(query: str, places: Places, every: str = "5s") -> hf.App:
    """Return the job of a query: q_pass, q_count, q_python, q_hop or q_join.

    Args:
        every: The time between two checkpoints.
    """
    app = hf.App(query, root=str(places.folder / "root"), checkpoint_every=every)
    topic = hf.Kafka(places.servers, places.bids, hf.JSON(Bid, time="ms"))
    if query in ("q_hop", "q_join"):
        bids = app.source("bids", topic, event_time="dateTime", out_of_orderness=f"{LATE_MS}ms")
    else:
        bids = app.source("bids", topic)
    if query == "q_pass":
        passed = bids.filter(pl.col("price") > 100)
        cheaper = passed.select("auction", "bidder", "dateTime", price=pl.col("price") * EURO)
        form = hf.JSON(Passed, time="ms")
        cheaper.sink("out", hf.Kafka(places.servers, places.passed, form, delivery=places.delivery))
        return app
    result: hf.Stream[hf.Row] | hf.Stream[Total]
    if query == "q_count":
        result = bids.key_by("bidder").agg("counts", n=hf.count(), s=hf.sum("price"))
    elif query == "q_python":
        result = bids.key_by("bidder").process("counts", Counting(), to=Total)
    elif query == "q_hop":
        windows = bids.key_by("auction").window(hf.hopping(f"{SIZE_MS}ms", every=f"{EVERY_MS}ms"))
        result = windows.agg("counts", n=hf.count())
    else:
        assert query == "q_join", query
        opened = hf.Kafka(places.servers, places.auctions, hf.JSON(Auction, time="ms"))
        auctions = app.source("auctions", opened, event_time="dateTime", out_of_orderness=f"{LATE_MS}ms")
        named = auctions.select("seller", "category", "dateTime", auction="id")
        within = hf.between("0s", f"{JOINED_MS}ms")
        result = named.join("joined", bids, on="auction", within=within).select(*JOINED)
    result.sink("out", hf.Log(str(places.results), key=result.upsert_key))
    return app


JOINED = ("auction", "bidder", "price", "seller", "category")
COLUMNS = {
    "q_pass": ("auction", "bidder", "price"),
    "q_count": ("bidder", "n", "s"),
    "q_python": ("bidder", "n", "s"),
    "q_hop": ("auction", "window_start", "n"),
    "q_join": JOINED,
}


def answer(query: str, bids: pl.DataFrame, auctions: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that a query must give, sorted."""
    if query == "q_pass":
        rows = bids.filter(pl.col("price") > 100).with_columns(price=pl.col("price") * EURO)
    elif query in ("q_count", "q_python"):
        rows = bids.group_by("bidder").agg(n=pl.len().cast(pl.Int64), s=pl.col("price").sum())
    elif query == "q_hop":
        newest = pl.col("dateTime") // EVERY_MS * EVERY_MS
        starts = [bids.select("auction", window_start=newest - back) for back in range(0, SIZE_MS, EVERY_MS)]
        rows = pl.concat(starts).group_by("auction", "window_start").agg(n=pl.len().cast(pl.Int64))
        rows = rows.with_columns((pl.col("window_start") * 1_000).cast(pl.Datetime("us", "UTC")))
    else:
        pairs = bids.join(auctions, left_on="auction", right_on="id", suffix="_opened")
        rows = pairs.filter((pl.col("dateTime") - pl.col("dateTime_opened")).is_between(0, JOINED_MS))
    return in_order(query, rows)


def in_order(query: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the compared columns of a query's rows, sorted; of a row per record, the last one of each key."""
    if query == "q_python":
        rows = rows.group_by("bidder").agg(pl.col("n").max(), pl.col("s").max())
    columns = COLUMNS[query]
    return rows.select(columns).sort(columns)


if "PEER_QUERY" in os.environ:
    app = make(os.environ["PEER_QUERY"], Places.of_environment(), os.environ["PEER_EVERY"])
