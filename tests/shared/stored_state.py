"""A job with state of every kind, run in memory, and its history as readers find it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

import holdfast as hf
from holdfast.checkpoint.repository import Repository
from holdfast.ports import ObjectStore
from holdfast.runtime.inspect.stored import Stored
from holdfast.storage.local import LocalObjects
from holdfast.storage.objects import MemoryObjects
from holdfast.testing import TestDriver

START = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Bid:
    auction: int
    place: str | None
    price: float | None
    at: datetime


def bid(auction: int, place: str | None, price: float | None, second: int = 0) -> Bid:
    return Bid(auction, place, price, START + timedelta(seconds=second))


def app() -> hf.App:
    """Aggregates per key, windows that stay for a minute, and repetitions."""
    built = hf.App("hot", checkpoint_every="1m")
    bids = built.source("bids", hf.Log("bids", Bid), event_time="at")
    one = hf.Log("unused")
    reported = pl.col("place").is_not_null()
    keyed, windowed = (
        bids.key_by("place"),
        bids.key_by("auction", "place").window(hf.tumbling("10s"), allowed_lateness="1m"),
    )
    numbers: dict[str, Any] = {"n": hf.count(), "avg": hf.mean("price"), "last": hf.max("at")}
    keyed.agg("places", **numbers).filter(reported).sink("a", hf.SQLite("o.db", table="a", key=["place"]))
    key = ["auction", "place", "window_end"]
    windowed.agg("hot", **numbers).filter(reported).sink("b", hf.SQLite("o.db", table="b", key=key))
    bids.key_by("auction").dedup("firsts", within="1h").sink("c", one)
    return built


def labels() -> hf.App:
    """Text as a result: the least and the greatest place of every auction, and of its windows."""
    built = hf.App("hot", checkpoint_every="1m")
    bids = built.source("bids", hf.Log("bids", Bid), event_time="at")
    text: dict[str, Any] = {"low": hf.min("place"), "top": hf.max("place"), "n": hf.count()}
    keyed = bids.key_by("auction")
    keyed.agg("labels", **text).sink("a", hf.SQLite("o.db", table="a", key=["auction"]))
    windows = keyed.window(hf.tumbling("10s"), allowed_lateness="1m").agg("by_window", **text)
    windows.sink("b", hf.SQLite("o.db", table="b", key=["auction", "window_end"]))
    return built


def store_of(driver: TestDriver) -> MemoryObjects:
    """Return the store of a job in memory."""
    store = driver.cluster._store
    assert isinstance(store, MemoryObjects)
    return store


def stored(store: ObjectStore, folder: str = "memory") -> Stored:
    """Return the job as a reader opens it now."""
    repository = Repository(store)
    job = repository.read_log()
    assert job is not None
    return Stored(job.name, folder, store, repository, job)


def written_to(root: Path, driver: TestDriver) -> None:
    """Write the history of a job in memory below a root."""
    from_, to = store_of(driver), LocalObjects(root / "hot")
    for path in from_.list(""):
        to.put(path, from_.get(path))
