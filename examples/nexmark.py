"""The queries of the Nexmark benchmark, one function each: streams of persons, auctions and bids in, a stream out.

    NEXMARK_QUERY=q5 python examples/nexmark.py     or: NEXMARK_QUERY=q5 holdfast run examples/nexmark.py

The first use writes the events into logs. The result is a log, which `hf.log("nexmark-out/q5")` reads; if the rows of
a query replace each other, `hf.log("nexmark-out/q15", as_table=True)` gives the present ones. NEXMARK_EVENTS,
NEXMARK_LOGS and NEXMARK_OUT are the number of events, the folder of their logs and that of the results.

docs/nexmark.md explains each query, its differences from the one in SQL, and its speed.

Source: github.com/nexmark/nexmark.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, TypeVar

import polars as pl

import holdfast as hf
from holdfast.examples import nexmark_data
from holdfast.examples.nexmark_data import Auction, Bid, Events, Person

Row = TypeVar("Row")

EURO = Decimal("0.908")
DAY = pl.col("at").dt.to_string("%Y-%m-%d")
RANKS = {
    "rank1": pl.col("price") < 10_000,
    "rank2": (pl.col("price") >= 10_000) & (pl.col("price") < 1_000_000),
    "rank3": pl.col("price") >= 1_000_000,
}
SIDE_INPUT = {key: str(key) for key in range(10_000)}
"""The bounded side input of q13."""


@dataclass(frozen=True)
class Site:
    """The streams of a web site; each becomes a source of the job when a query first uses it."""

    app: hf.App
    logs: str
    events: Events

    @cached_property
    def persons(self) -> hf.Stream[Person]:
        return self._stream("persons", Person)

    @cached_property
    def auctions(self) -> hf.Stream[Auction]:
        return self._stream("auctions", Auction)

    @cached_property
    def bids(self) -> hf.Stream[Bid]:
        return self._stream("bids", Bid)

    def _stream(self, kind: str, row: type[Row]) -> hf.Stream[Row]:
        log, out_of_orderness = hf.Log(f"{self.logs}/{kind}", row), self.events.out_of_orderness
        return self.app.source(kind, log, event_time="at", out_of_orderness=out_of_orderness)


def q0(site: Site) -> hf.Stream[Any]:
    """Pass through."""
    return site.bids.select("auction", "bidder", "price", "at", "extra")


def q1(site: Site) -> hf.Stream[Any]:
    """Convert prices into euros."""
    return site.bids.select("auction", "bidder", "at", "extra", price=pl.col("price") * EURO)


def q2(site: Site) -> hf.Stream[Any]:
    """Select the bids on every 123rd auction."""
    return site.bids.filter(pl.col("auction") % 123 == 0).select("auction", "price")


def q3(site: Site) -> hf.Stream[Any]:
    """Find who sells what of category 10 in three states."""
    local = site.persons.filter(pl.col("state").is_in(["OR", "ID", "CA"]))
    sellers = local.select("name", "city", "state", "at", seller="id")
    within = hf.between(f"-{site.events.longest_activity}", site.events.longest_activity)
    sold = site.auctions.filter(pl.col("category") == 10).join("sold", sellers, on="seller", within=within)
    return sold.select("name", "city", "state", "id")


def offers(site: Site) -> hf.Stream[Any]:
    """Return the bids on each auction while it was open, at the time of the auction; a part of q4, q6 and q9."""
    bids = site.bids.select("bidder", "price", "at", "extra", id="auction")
    pairs = site.auctions.join("offers", bids, on="id", within=hf.between("0s", site.events.longest_auction))
    return pairs.filter(pl.col("at_right") <= pl.col("expires"))


def q4(site: Site) -> hf.Stream[Any]:
    """Average the winning bids of the auctions of each category."""
    auctions = offers(site).key_by("id", "category").window(hf.tumbling("1s"))
    won = auctions.agg("won", price=hf.max("price"))
    return won.key_by("category").agg("categories", final=hf.mean("price"))


def q5(site: Site) -> hf.Stream[Any]:
    """Find the auctions with the most bids in the last ten seconds, every two seconds."""
    counts = site.bids.key_by("auction").window(hf.hopping("10s", every="2s")).agg("counts", num=hf.count())
    most = counts.window(hf.tumbling("2s")).agg("most", num=hf.max("num")).select("num", at="window_start")
    hot = counts.join("hot", most, on="num", within=hf.between("0s", "0s"))
    return hot.select("auction", "num", "window_end")


def q6(site: Site) -> hf.Stream[Any]:
    """Average the winning bids of the last ten auctions of each seller."""
    auctions = offers(site).key_by("id", "seller", "expires").window(hf.tumbling("1s"))
    won = auctions.agg("won", price=hf.max("price"))
    latest = won.key_by("seller").agg("sellers", prices=hf.top("price", 10, by="expires"))
    return latest.select("seller", avg_price=pl.col("prices").list.mean())


def q7(site: Site) -> hf.Stream[Any]:
    """Find the highest bids of every ten seconds."""
    highest = site.bids.window(hf.tumbling("10s")).agg("highest", price=hf.max("price"))
    prices = highest.select("price", start="window_start")
    bids = site.bids.join("high", prices, on="price", window=hf.tumbling("10s"))
    return bids.select("auction", "bidder", "price", "at", "extra")


def q8(site: Site) -> hf.Stream[Any]:
    """Find the persons who opened an auction in the ten seconds in which they came."""
    sellers = site.auctions.select("at", id="seller").key_by("id").window(hf.tumbling("10s"))
    active = sellers.agg("active", auctions=hf.count()).select("id", start="window_start")
    new = site.persons.select("id", "name", "at")
    return new.join("new", active, on="id", window=hf.tumbling("10s")).select("id", "name", "window_start")


@dataclass
class Offer:
    """An auction with one of its bids."""

    id: int
    item: str
    description: str
    initial_bid: int
    reserve: int
    at: datetime
    expires: datetime
    seller: int
    category: int
    extra: str
    bidder: int
    price: int
    at_right: datetime
    extra_right: str


class Closing(hf.KeyedProcess[Offer, Offer]):
    """Emits the winning bid of an auction when it ends: the highest one, of equal ones the first."""

    best = hf.Value(Offer)
    due = hf.Timer("event")

    def on_record(self, ctx: hf.Context, r: Offer) -> None:
        best = self.best.get()
        if best is None or (-r.price, r.at_right) < (-best.price, best.at_right):
            self.best.set(r)
        self.due.set(r.expires)

    @due.fires
    def close(self, ctx: hf.Context) -> None:
        ctx.emit(self.best.get())
        self.best.clear()


def q9(site: Site) -> hf.Stream[Any]:
    """Find the winning bid of every auction."""
    return offers(site).as_(Offer).key_by("id").process("winners", Closing(), to=Offer)


def q10(site: Site) -> hf.Stream[Any]:
    """Write all bids, with the day and the minute."""
    bids = site.bids.select("auction", "bidder", "price", "at", "extra")
    return bids.with_columns(dt=DAY, hm=pl.col("at").dt.to_string("%H:%M"))


def q11(site: Site) -> hf.Stream[Any]:
    """Count the bids of a bidder in each session, which ends after ten seconds without a bid."""
    return site.bids.key_by("bidder").window(hf.session("10s")).agg("sessions", bid_count=hf.count())


@dataclass
class Seen:
    """A bid of a bidder, in the ten seconds of the worker's clock in which it was read."""

    bidder: int
    start: datetime


class Clock(hf.KeyedProcess[Bid, Seen]):
    """Emits when each bid is read."""

    def on_record(self, ctx: hf.Context, r: Bid) -> None:
        now = ctx.now()
        ctx.emit(Seen(r.bidder, now - timedelta(seconds=now.second % 10, microseconds=now.microsecond)))


def q12(site: Site) -> hf.Stream[Any]:
    """Count the bids of a bidder in every ten seconds of the clock."""
    seen = site.bids.key_by("bidder").process("clock", Clock(), to=Seen)
    return seen.key_by("bidder", "start").agg("seen", bid_count=hf.count())


def q13(site: Site) -> hf.Stream[Any]:
    """Add a value of a bounded side input."""
    bids = site.bids.select("auction", "bidder", "price", "at", key=pl.col("auction") % 10_000)
    known = bids.filter(pl.col("key").is_in(list(SIDE_INPUT)))
    return known.select("auction", "bidder", "price", "at", value=pl.col("key").replace_strict(SIDE_INPUT))


def q14(site: Site) -> hf.Stream[Any]:
    """Find bids of certain prices, with the kind of the hour and the number of letters c in a text."""
    hour = pl.col("at").dt.hour()
    day, night = hour.is_between(8, 18), (hour <= 6) | (hour >= 20)
    return (
        site.bids.with_columns(price=pl.col("price") * EURO)
        .filter((pl.col("price") > 1_000_000) & (pl.col("price") < 50_000_000))
        .select(
            *("auction", "bidder", "price", "at", "extra"),
            time_type=pl.when(day)
            .then(pl.lit("dayTime"))
            .when(night)
            .then(pl.lit("nightTime"))
            .otherwise(pl.lit("otherTime")),
            c_counts=pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64),
        )
    )


def ranked(name: str, aggregate: Callable[..., Any]) -> dict[str, Any]:
    """Return an aggregate of all bids and one for each rank of prices; a part of q15, q16 and q17."""
    return {f"total_{name}": aggregate()} | {f"{rank}_{name}": aggregate(filter=RANKS[rank]) for rank in RANKS}


def q15(site: Site) -> hf.Stream[Any]:
    """Count bids, different bidders and different auctions of every day, by ranks of prices."""
    bids = site.bids.select("auction", "bidder", "price", day=DAY)
    bidders, auctions = partial(hf.distinct, "bidder"), partial(hf.distinct, "auction")
    counts = ranked("bids", hf.count) | ranked("bidders", bidders) | ranked("auctions", auctions)
    return bids.key_by("day").agg("days", **counts)


def q16(site: Site) -> hf.Stream[Any]:
    """Count the same for every channel and day, with the last minute."""
    minute = pl.col("at").dt.to_string("%H:%M")
    bids = site.bids.select("auction", "bidder", "price", "channel", day=DAY, minute=minute)
    bidders, auctions = partial(hf.distinct, "bidder"), partial(hf.distinct, "auction")
    counts = ranked("bids", hf.count) | ranked("bidders", bidders) | ranked("auctions", auctions)
    return bids.key_by("channel", "day").agg("channels", minute=hf.max("minute"), **counts)


def q17(site: Site) -> hf.Stream[Any]:
    """Summarize the bids on every auction and day."""
    prices: dict[str, Any] = {
        "min_price": hf.min("price"),
        "max_price": hf.max("price"),
        "avg_price": hf.mean("price"),
        "sum_price": hf.sum("price"),
    }
    bids = site.bids.select("auction", "price", day=DAY)
    return bids.key_by("auction", "day").agg("prices", **ranked("bids", hf.count), **prices)


def q18(site: Site) -> hf.Stream[Any]:
    """Find the last bid of every bidder on every auction."""
    last: dict[str, Any] = {name: hf.last(name) for name in ("price", "channel", "url", "at", "extra")}
    return site.bids.key_by("bidder", "auction").agg("last", **last)


def q19(site: Site) -> hf.Stream[Any]:
    """Find the ten highest bids on every auction."""
    top: dict[str, Any] = {
        f"{name}s": hf.top(name, 10, by="price") for name in ("price", "bidder", "channel", "url", "at", "extra")
    }
    return site.bids.key_by("auction").agg("top", **top)


def q20(site: Site) -> hf.Stream[Any]:
    """Add the auction to every bid on an auction of category 10."""
    auctions = site.auctions.with_columns(auction="id").filter(pl.col("category") == 10)
    within = hf.between(f"-{site.events.longest_auction}", site.events.longest_auction)
    return site.bids.join("expanded", auctions, on="auction", within=within)


def q21(site: Site) -> hf.Stream[Any]:
    """Add the id of the channel: known for four, else from the address."""
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    in_url = pl.col("url").str.extract("(&|^)channel_id=([^&]*)", 2)
    channel_id = pl.col("channel").str.to_lowercase().replace_strict(known, default=in_url)
    bids = site.bids.select("auction", "bidder", "price", "channel", channel_id=channel_id)
    return bids.filter(pl.col("channel_id").is_not_null())


def q22(site: Site) -> hf.Stream[Any]:
    """Split the path of the address."""
    parts = pl.col("url").str.split("/")
    folders = {f"dir{n}": parts.list.get(2 + n, null_on_oob=True) for n in (1, 2, 3)}
    return site.bids.select("auction", "bidder", "price", "channel", **folders)


QUERIES = {query.__name__: query for query in (
    q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22
)}  # fmt: skip


def make(query: str, events: Events, logs: str, out: str) -> hf.App:
    """Return the job of a query, which reads from the logs in one folder and writes to a log in another."""
    app = hf.App(f"nexmark-{query}")
    result = QUERIES[query](Site(app, logs, events))
    result.sink("out", hf.Log(f"{out}/{query}", key=result.upsert_key))
    return app


if "NEXMARK_QUERY" in os.environ:
    EVENTS = Events(int(os.environ.get("NEXMARK_EVENTS", "1_000_000")), group=1_000)
    LOGS = nexmark_data.written(os.environ.get("NEXMARK_LOGS", "nexmark-data"), EVENTS)
    app = make(os.environ["NEXMARK_QUERY"], EVENTS, LOGS, os.environ.get("NEXMARK_OUT", "nexmark-out"))

if __name__ == "__main__":
    app.main()
