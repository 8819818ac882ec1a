"""A job whose results are in Postgres: its rows without a key, totals by key, totals whose rows carry tags."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import holdfast as hf


@dataclass
class Payment:
    n: int
    account: str
    cents: int
    note: str
    part: int
    """The partition of the log."""


def table(name: str, key: Sequence[str] | None = None, delivery: str = "transactional") -> hf.Postgres:
    password = hf.secret("env:PAYMENTS_PASSWORD")
    return hf.Postgres(os.environ["PAYMENTS_DSN"], name, key, delivery, schema="payments", password=password)


folder = Path(os.environ["COUNTING_FOLDER"])
app = hf.App("payments", root=str(folder / "root"), checkpoint_every="500ms")
payments = app.source("payments", hf.Log(str(folder / "input"), Payment), partitioned_by=["part"])
payments.select("n", "account", "cents", "note").sink("copy", table("copied"))
totals = payments.key_by("account").agg("totals", payments=hf.count(), cents=hf.sum("cents"))
totals.sink("totals-out", table("totals", ["account"]))
largest = payments.key_by("account").agg("largest", most=hf.max("cents"))
largest.sink("largest-out", table("largest", ["account"], "idempotent"))

if __name__ == "__main__":
    app.main()
