"""The benchmark job: copies an embedded log to SQLite and to another log, ten epochs a second."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

import holdfast as hf

SCHEMA = pa.schema([pa.field("sent_us", pa.int64(), nullable=False)])


def make(folder: Path) -> hf.App:
    """Return the app that reads and writes below this folder."""
    app = hf.App("latency", root=str(folder / "root"), checkpoint_every="100ms")
    rows = app.source("rows", hf.Log(str(folder / "input"), SCHEMA))
    rows.sink("database", hf.SQLite(str(folder / "out.db"), table="passed"))
    rows.sink("log", hf.Log(str(folder / "out")))
    return app


if "LATENCY_FOLDER" in os.environ:
    app = make(Path(os.environ["LATENCY_FOLDER"]))
