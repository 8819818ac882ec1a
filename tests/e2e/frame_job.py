"""A job over a DataFrame; it notes every computation of a partition, and waits in one if it is told to."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf

ROWS, KEYS, PARTS = 200_000, 101, 5
HOLD_LIMIT_S = 120.0
folder = Path(os.environ.get("COUNTING_FOLDER", "."))


def noted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition."""
    with (folder / "computed").open("a") as file:
        file.write("x")
    end, pause = time.monotonic() + HOLD_LIMIT_S, threading.Event()
    while (folder / "hold").exists() and time.monotonic() < end:
        pause.wait(0.05)
    for batch in batches:
        keys = pa.array([number % KEYS for number in batch.column("id").to_pylist()], pa.int64())
        yield pa.record_batch([keys, batch.column("id")], ["k", "v"])


def make() -> hf.App:
    """Return the app."""
    spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.range(0, ROWS, 1, PARTS).mapInArrow(noted, "k long, v long")
    app = hf.App("frames", root=str(folder / "root"), checkpoint_every="200ms")
    rows = app.source("rows", hf.SparkFrame(frame))
    totals = rows.key_by("k").agg("totals", n=hf.count(), total=hf.sum("v"))
    totals.sink("out", hf.SQLite(str(folder / "out.db"), table="totals", key=["k"]))
    return app


if "COUNTING_FOLDER" in os.environ:
    app = make()
