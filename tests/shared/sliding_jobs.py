"""Jobs with sliding windows, and what the window before each record holds, in plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import job_player
import polars as pl
from session_jobs import SCHEMA, START, at, row

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver

Result = tuple[Any, ...]


def app_of(size: int = 10, **window: Any) -> hf.App:
    app = hf.App("sliding", key_groups=8)
    generator = hf.Generator(SCHEMA, lambda i: ("a", i, None, at(i)), count=0)
    rows = app.source("rows", generator, event_time="at", idle_after="1h")
    counted = (
        rows.key_by("k")
        .window(hf.sliding(f"{size}s"), **window)
        .agg(
            "before",
            n=hf.count(),
            total=hf.sum("v"),
            top=hf.max("v"),
            mean=hf.mean("v"),
            first=hf.min("word"),
            words=hf.distinct("word"),
            even=hf.count(filter=pl.col("v") % 2 == 0),
        )
    )
    counted.sink("out", MemorySink())
    counted.late.sink("late", MemorySink())
    return app


@dataclass
class Oracle:
    """All records, one after another, and which of them were late; time is what the test last set it to."""

    size: int
    clock: float = -1e9
    taken: list[dict[str, Any]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def take(self, record: dict[str, Any]) -> None:
        if (record["at"] - START).total_seconds() < self.clock:
            self.late.append(record["v"])
        else:
            self.taken.append(record)

    def advance(self, second: float) -> None:
        self.clock = max(self.clock, second)

    def rows(self, through: float | None = None) -> Counter[Result]:
        clock = self.clock if through is None else through
        return Counter(self._result(each) for each in self.taken if (each["at"] - START).total_seconds() < clock)

    def _result(self, record: dict[str, Any]) -> Result:
        ages = [((record["at"] - each["at"]).total_seconds(), each) for each in self.taken if each["k"] == record["k"]]
        rows = [each for age, each in ages if 0 <= age < self.size]
        values = [each["v"] for each in rows]
        words = [each["word"] for each in rows if each["word"] is not None]
        mean, even = sum(values) / len(values), sum(v % 2 == 0 for v in values)
        start = at((record["at"] - START).total_seconds() - self.size)
        numbers = len(rows), sum(values), max(values), mean, min(words, default=None), len(set(words)), even
        return record["k"], start, record["at"], *numbers


def given_rows(t: TestDriver) -> Counter[Result]:
    names = ("k", "window_start", "window_end", "n", "total", "top", "mean", "first", "words", "even")
    return Counter(tuple(each[name] for name in names) for each in t.rows("out"))


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Compare the results with those of the oracle after every step."""

    def check() -> None:
        assert given_rows(t) == oracle.rows()

    own = job_player.timed(t, lambda number, k, second, word: row(k, second, number, word), at, oracle)
    job_player.play(t, steps, own, check)
