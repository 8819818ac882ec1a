"""The job of the growth test: totals per user; windows and a deduplication whose keys come, expire and never return."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

import holdfast as hf

USERS, PARTITIONS = 2_000, 4
EVENT_US = 5
"""Event time between two records."""
START_US = 1_767_225_600_000_000


@dataclass
class Visit:
    user: int
    page: int
    session: int
    amount: int
    at: datetime


def visits_of(numbers: NDArray[np.int64]) -> dict[str, Any]:
    """Return these records; a page and a session are visited for a while and then never again."""
    return {
        "user": numbers * 7_919 % USERS,
        "page": numbers // 50_000 * 50 + numbers % 50,
        "session": numbers // 20,
        "amount": numbers * 31 % 1_000 - 300,
        "at": (START_US + numbers * EVENT_US).view("datetime64[us]"),
    }


folder = Path(os.environ.get("COUNTING_FOLDER", "."))
target = str(folder / "out.db")
app = hf.App("growing", root=os.environ.get("GROWING_ROOT") or str(folder / "root"), checkpoint_every="1s")
generated = hf.Generator(Visit, visits_of, partitions=PARTITIONS, vectorised=True)
visits = app.source("visits", generated, event_time="at", out_of_orderness="1s")
users = visits.key_by("user").agg("users", n=hf.count(), total=hf.sum("amount"))
users.sink("users-out", hf.SQLite(target, table="users", key=["user"]))
windows = visits.key_by("page").window(hf.tumbling("10s"), allowed_lateness="5s").agg("pages", n=hf.count())
windows.sink("pages-out", hf.SQLite(target, table="pages", key=["page", "window_end"]))
first = visits.key_by("session").dedup("sessions", within="10s").filter(pl.col("session") % 5_000 == 0)
first.sink("sessions-out", hf.SQLite(target, table="sessions"))

if __name__ == "__main__":
    app.main()
