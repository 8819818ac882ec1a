"""The job that the benchmark of takeovers kills: eleven aggregates per key, kept as state, over a log."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pyarrow as pa

import holdfast as hf

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])


def make(folder: Path) -> hf.App:
    """Return the app that reads and writes below this folder; its root is there, or at TAKEOVER_ROOT."""
    root = os.environ.get("TAKEOVER_ROOT") or str(folder / "root")
    app = hf.App("takeover", root=root, checkpoint_every="500ms")
    rows = app.source("rows", hf.Log(str(folder / "input"), SCHEMA))
    n, total, least, most = hf.count(), hf.sum("v"), hf.min("v"), hf.max("v")
    again = {"n_2": n, "total_2": total, "least_2": least, "most_2": most, "n_3": n, "total_3": total, "least_3": least}
    rows.key_by("k").agg("wide", emit="changes", keep=(), n=n, total=total, least=least, most=most, **again)
    # A job needs a sink; this one takes the single record of its own source.
    tick = app.source("tick", hf.Generator(SCHEMA, lambda i: (i, i), count=1))
    tick.filter(pl.col("v") >= 0).sink("ticks", hf.SQLite(str(folder / "out.db"), table="ticks"))
    return app


if "COUNTING_FOLDER" in os.environ:
    app = make(Path(os.environ["COUNTING_FOLDER"]))
