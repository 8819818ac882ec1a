"""The benchmark job: a Python function for every row of an embedded log; few rows reach the target."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import polars as pl

import holdfast as hf


@dataclass
class Row:
    k: int
    v: int


def doubled(row: Row) -> Row:
    """Return the row with twice its value."""
    return Row(row.k, 2 * row.v)


folder = Path(os.environ["MAP_FOLDER"])
app = hf.App("mapped", root=str(folder / "root"), checkpoint_every="1s")
rows = app.source("rows", hf.Log(str(folder / "input"), Row)).map(doubled, to=Row)
rows.filter(pl.col("k") == 0).sink("out", hf.SQLite(str(folder / "out.db"), table="kept"))
