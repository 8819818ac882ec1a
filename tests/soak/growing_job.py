"""The job of the growth test: keyed totals, and event-time windows that open and close, over a growing log."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import holdfast as hf


@dataclass
class Visit:
    user: int
    page: int
    amount: int
    at: datetime


folder = Path(os.environ["COUNTING_FOLDER"])
app = hf.App("growing", root=str(folder / "root"), checkpoint_every="1s")
visits = app.source("visits", hf.Log(str(folder / "input"), Visit), event_time="at", out_of_orderness="1s")
users = visits.key_by("user").agg("users", n=hf.count(), total=hf.sum("amount"))
users.sink("users-out", hf.SQLite(str(folder / "out.db"), table="users", key=["user"]))
windows = visits.key_by("page").window(hf.tumbling("10s"), allowed_lateness="5s").agg("pages", n=hf.count())
windows.sink("pages-out", hf.SQLite(str(folder / "out.db"), table="pages", key=["page", "window_end"]))

if __name__ == "__main__":
    app.main()
