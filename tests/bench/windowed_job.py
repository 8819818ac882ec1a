"""The benchmark job: count, sum and maximum per key and tumbling window of an embedded log, written to a log."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

import holdfast as hf

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
ROW_BYTES = 24


def make(folder: Path, every: str | None = None) -> hf.App:
    """Return the app that reads and writes below this folder.

    Args:
        every: How often a window starts; None: they do not overlap.
    """
    app = hf.App("windowed", root=str(folder / "root"), checkpoint_every="1s")
    rows = app.source("rows", hf.Log(str(folder / "input"), SCHEMA), event_time="at", out_of_orderness="1s")
    windows = rows.key_by("k").window(hf.tumbling("10s") if every is None else hf.hopping("10s", every=every))
    counted = windows.agg("counts", emit="final", n=hf.count(), total=hf.sum("v"), top=hf.max("v"))
    counted.sink("out", hf.Log(str(folder / "out")))
    counted.late.sink("late", hf.Log(str(folder / "late")))
    return app


if "WINDOWED_FOLDER" in os.environ:
    app = make(Path(os.environ["WINDOWED_FOLDER"]))
