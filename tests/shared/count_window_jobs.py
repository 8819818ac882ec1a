"""Jobs with count windows, and what every n records of a key hold, by the oracles of the functions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import job_player
import polars as pl
from aggregate_oracles import CALLS, expected, same
from running_jobs import SCHEMA, pushing

import holdfast as hf
from holdfast.sinks.memory.sink import MemorySink
from holdfast.testing import TestDriver


def app_of(size: int) -> hf.App:
    app = hf.App("counted", key_groups=8)
    rows = app.source("rows", hf.Generator(SCHEMA, lambda i: None, count=0), event_time="at", idle_after="1h")
    functions = {name: call() for name, call in CALLS.items()} | {"rows": hf.count(), "begins": hf.min("id")}
    functions["even"] = hf.sum("v", filter=pl.col("by") % 2 == 0)
    counted = rows.key_by("k").window(hf.all_time(hf.count_of(size))).agg("counted", **functions)
    counted.sink("out", MemorySink())
    return app


@dataclass
class Oracle:
    """All records of each key, in order."""

    size: int
    records: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def windows(self) -> dict[tuple[str, Any], list[dict[str, Any]]]:
        """Return the records of every complete window, by key and time of the last one."""
        found = {}
        for key, rows in self.records.items():
            for end in range(self.size, len(rows) + 1, self.size):
                found[key, rows[end - 1]["at"]] = rows[end - self.size : end]
        return found


def check(t: TestDriver, oracle: Oracle) -> None:
    """Compare the results with the complete windows, and the state with the records that are in none."""
    found, windows = {(each["k"], each["at"]): each for each in t.rows("out")}, oracle.windows()
    assert len(found) == len(t.rows("out")), "a window has two rows"
    assert found.keys() == windows.keys()
    for at, rows in windows.items():
        given = [(each["v"], each["by"]) for each in rows if each["v"] is not None]
        assert (found[at]["rows"], found[at]["begins"]) == (oracle.size, rows[0]["id"])
        assert found[at]["even"] == expected("sum", [(v, by) for v, by in given if by % 2 == 0])
        for name in CALLS:
            assert same(name, found[at][name], expected(name, given)), (name, rows)
    for key, rows in oracle.records.items():
        state = t.state("counted", key)
        assert (0 if state is None else state["rows.count"]) == len(rows) % oracle.size


def play(t: TestDriver, steps: list[Any], oracle: Oracle) -> None:
    """Carry out steps; the records of several pushes are in one epoch, of which nothing is checked before its end."""
    own = {"push": pushing(t, oracle.records)}
    job_player.play(t, steps, own, lambda: check(t, oracle), ends_epoch=lambda name: name != "push")
