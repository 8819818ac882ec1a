"""The targets of jobs that write rows of (key, n) to every.db as they are, and count and sum per key to sums.db."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path


def differences(folder: Path, rows: Sequence[tuple[str, int]]) -> list[str]:
    """Compare the targets with the rows that the job was given."""
    with closing(sqlite3.connect(folder / "every.db")) as db:
        every = sorted(db.execute("SELECT key, n FROM every"))
    with closing(sqlite3.connect(folder / "sums.db")) as db:
        sums = {key: (count, total) for key, count, total in db.execute("SELECT key, rows, total FROM sums")}
    wanted: dict[str, tuple[int, int]] = {}
    for key, n in rows:
        count, total = wanted.get(key, (0, 0))
        wanted[key] = count + 1, total + n
    wrong = [] if every == sorted(rows) else [f"{len(every)} rows, {len(rows)} were appended"]
    return wrong + ([] if sums == wanted else [f"sums are {sums}, expected {wanted}"])
