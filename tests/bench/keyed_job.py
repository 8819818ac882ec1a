"""The benchmark job: running count and sum per key, kept as state, over an embedded log of two int64 columns."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pyarrow as pa

import holdfast as hf

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
ROW_BYTES = 16


def make(folder: Path) -> hf.App:
    """Return the app that reads and writes below this folder."""
    app = hf.App("keyed", root=str(folder / "root"), checkpoint_every="1s")
    rows = app.source("rows", hf.Log(str(folder / "input"), SCHEMA))
    rows.key_by("k").agg("counts", n=hf.count(), total=hf.sum("v"))
    # A job needs a sink; this one takes the single record of its own source, so that the rows above reach no target.
    tick = app.source("tick", hf.Generator(SCHEMA, lambda i: (i, i), count=1))
    tick.filter(pl.col("v") >= 0).sink("ticks", hf.SQLite(str(folder / "out.db"), table="ticks"))
    return app


if "KEYED_FOLDER" in os.environ:
    app = make(Path(os.environ["KEYED_FOLDER"]))
