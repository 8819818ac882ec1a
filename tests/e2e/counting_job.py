"""The job that the end-to-end tests break: two parallel keyed aggregates over an embedded log.

Its sinks are of every kind: transactional, a changelog, idempotent at the commit, and (`last`) idempotent and
immediate. In microbatch mode, in which no sink is immediate, the last one is transactional.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import holdfast as hf


@dataclass
class Visit:
    user: str
    page: int
    amount: int
    part: int
    """The partition of the log."""


folder = Path(os.environ["COUNTING_FOLDER"])
store = os.environ.get("COUNTING_STORE", str(folder))
"""Where root and logs are."""
servers, _, topic = os.environ.get("COUNTING_CHANGELOG", "").partition("/")
places: dict[str, Any] = {"": "root", "log": hf.Log(f"{store}/changelog")}
changelog = places[servers] if servers in places else hf.Kafka(servers, topic)
app = hf.App("counting", root=f"{store}/root", checkpoint_every="500ms", changelog=changelog)
visits = app.source("visits", hf.Log(f"{store}/input", Visit), partitioned_by=["part"])
users = visits.key_by("user").agg("users", n=hf.count(), total=hf.sum("amount"), worst=hf.max("amount"))
users.sink("users-out", hf.SQLite(str(folder / "out.db"), table="users", key=["user"]))
users.sink("changes-out", hf.Log(f"{store}/changes", key=["user"]))
gains = visits.filter(pl.col("amount") > 0).key_by("page").agg("pages", n=hf.count(), least=hf.min("amount"))
gains.sink("pages-out", hf.SQLite(str(folder / "out.db"), table="pages", key=["page"], delivery="idempotent"))
last = visits.filter(pl.col("page") < 100).select("part", "page", "user", "amount")
delivery = "transactional" if os.environ.get("HOLDFAST_MODE") == "microbatch" else "idempotent"
last.sink("last-out", hf.SQLite(str(folder / "last.db"), table="last", key=["part", "page"], delivery=delivery))

if __name__ == "__main__":
    app.main()
