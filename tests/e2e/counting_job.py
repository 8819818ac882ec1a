"""The job that the end-to-end tests break: two keyed aggregates side by side, of an embedded log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import polars as pl

import holdfast as hf


@dataclass
class Visit:
    user: str
    page: int
    amount: int


folder = Path(os.environ["COUNTING_FOLDER"])
app = hf.App("counting", root=str(folder / "root"), checkpoint_every="500ms")
visits = app.source("visits", hf.Log(str(folder / "input"), Visit))
users = visits.key_by("user").agg("users", n=hf.count(), total=hf.sum("amount"), worst=hf.max("amount"))
users.sink("users-out", hf.SQLite(str(folder / "out.db"), table="users", key=["user"]))
gains = visits.filter(pl.col("amount") > 0).key_by("page").agg("pages", n=hf.count(), least=hf.min("amount"))
gains.sink("pages-out", hf.SQLite(str(folder / "out.db"), table="pages", key=["page"]))

if __name__ == "__main__":
    app.main()
