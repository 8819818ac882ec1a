"""The benchmark job: two sources, 13 operators and 16 outputs, each a log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import holdfast as hf
from holdfast.runtime.api.stream import Stream

TIME = pa.timestamp("us", tz="UTC")


def _fields(*named: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in named])


ORDERS = _fields(
    ("id", pa.int64()), ("customer", pa.int64()), ("product", pa.string()), ("amount", pa.int64()), ("at", TIME)
)
CLICKS = _fields(
    ("customer", pa.int64()), ("product", pa.string()), ("page", pa.string()), ("took_ms", pa.int64()), ("at", TIME)
)


def make(folder: Path) -> hf.App:
    """Return the app that reads and writes below this folder."""
    app = hf.App("wide", root=str(folder / "root"), checkpoint_every="1s")
    times = {"event_time": "at", "out_of_orderness": "2s"}
    orders = app.source("orders", hf.Log(str(folder / "orders"), ORDERS), **times)
    clicks = app.source("clicks", hf.Log(str(folder / "clicks"), CLICKS), **times)
    for name, stream in _outputs(orders, clicks):
        stream.sink(f"{name}-out", hf.Log(str(folder / "out" / name), key=stream.upsert_key))
    return app


def _outputs(orders: Stream, clicks: Stream) -> Iterator[tuple[str, Stream]]:
    dear = orders.filter(pl.col("amount") > 500).with_columns(cents=pl.col("amount") * 100)
    slow = clicks.filter(pl.col("took_ms") > 200)
    both = orders.select("customer", "product", "at").union(clicks.select("customer", "product", "at"))
    totals: dict[str, Any] = {"n": hf.count(), "total": hf.sum("amount"), "top": hf.max("amount")}
    yield "dear", dear
    yield "slow", slow
    yield "by-customer", orders.key_by("customer").agg("by-customer", **totals)
    yield "by-product", orders.key_by("product").agg("by-product", **totals)
    yield "dear-by-customer", dear.key_by("customer").agg("dear-by-customer", n=hf.count(), total=hf.sum("cents"))
    yield "by-page", clicks.key_by("page").agg("by-page", n=hf.count(), longest=hf.max("took_ms"))
    yield "slow-by-page", slow.key_by("page").agg("slow-by-page", n=hf.count())
    minutes = orders.key_by("product").window(hf.tumbling("1m")).agg("minutes", emit="final", **totals)
    yield "minutes", minutes
    yield "late", minutes.late
    hops = clicks.key_by("customer").window(hf.hopping("1m", every="20s"))
    yield "hops", hops.agg("hops", emit="final", n=hf.count(), longest=hf.max("took_ms"))
    visits = clicks.key_by("customer").window(hf.session("30s"))
    yield "visits", visits.agg("visits", n=hf.count())
    joined = orders.join("bought", clicks, on=["customer", "product"], within=hf.between("-20s", "20s"))
    yield "bought", joined
    yield "once", orders.key_by("id").dedup("once", within="5m")
    yield "active", both.key_by("customer").agg("active", n=hf.count())
    yield "busy", both.key_by("product").window(hf.tumbling("10s")).agg("busy", emit="final", n=hf.count())
    yield "each", orders.key_by("customer").agg("each", emit="each", keep="at", total=hf.sum("amount"))


if "WIDE_FOLDER" in os.environ:
    app = make(Path(os.environ["WIDE_FOLDER"]))
