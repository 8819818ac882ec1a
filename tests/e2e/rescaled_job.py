"""The job whose parallelism an end-to-end test changes: text in keys and values, open windows, and rows to drop.

Its append sinks show every row that is written twice or not at all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import holdfast as hf


@dataclass
class Visit:
    user: str
    page: int
    note: str | None
    at: datetime


FOLDER = Path(os.environ["COUNTING_FOLDER"])
DB = str(FOLDER / "out.db")

app = hf.App("rescaled", root=str(FOLDER / "root"), checkpoint_every="300ms")
visits = app.source("visits", hf.Log(str(FOLDER / "input"), Visit), event_time="at", out_of_orderness="1h")
users = visits.key_by("user").agg("users", n=hf.count(), first_note=hf.min("note"), last_note=hf.max("note"))
users.sink("users-out", hf.SQLite(DB, table="users", key=["user"]))
hours = visits.key_by("page").window(hf.tumbling("1h")).agg("hours", emit="final", n=hf.count(), last=hf.max("user"))
hours.sink("hours-out", hf.SQLite(DB, table="hours"))
hours.late.sink("late-out", hf.SQLite(DB, table="late"))
once = visits.key_by("page", "at").dedup("once", within="1m").select("page", "at")
once.sink("once-out", hf.SQLite(DB, table="once"))

if __name__ == "__main__":
    app.main()
