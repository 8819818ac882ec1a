"""The job that the benchmark of recovery on a cluster kills: count, sum and maximum per user, in a table.

Unlike the counting job of the end-to-end tests, it has no sink that is written immediately, so it runs in both modes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf


@dataclass
class Visit:
    user: str
    page: int
    amount: int
    part: int


folder = Path(os.environ["COUNTING_FOLDER"])
app = hf.App("recovery", root=str(folder / "root"), checkpoint_every="1s")
visits = app.source("visits", hf.Log(str(folder / "input"), Visit))
users = visits.key_by("user").agg("users", n=hf.count(), total=hf.sum("amount"), worst=hf.max("amount"))
users.sink("users-out", hf.SQLite(str(folder / "out.db"), table="users", key=["user"]))

if __name__ == "__main__":
    app.main()
