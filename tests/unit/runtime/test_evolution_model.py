"""Random histories of one operator: its code evolves, the job checkpoints, rewinds, rescales and is killed.

The model is a list of the records and, per result, the record from which on it counts. Workers leave images that
outlive them, so state is restored from images, bases and segments of every earlier declaration.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from local_disks import Disk
from planned_source import PlannedSource

import holdfast as hf
from holdfast.chaos.sim.ports.images import SimulatedImages
from holdfast.checkpoint.bases import Thresholds
from holdfast.runtime.worker.loop import Limits
from holdfast.sinks.memory.sink import MemorySink
from holdfast.state.keys.keygroups import range_of
from holdfast.testing import TestDriver

IN_BOTH_MODES = True

GROUPS, KEYS = 8, 6
FUNCTIONS: dict[str, Any] = {
    "count": hf.count(),
    "present": hf.count("w"),
    "sum": hf.sum("v"),
    "low": hf.min("v"),
    "high": hf.max("w"),
    "mean": hf.mean("w"),
}
Record = dict[str, Any]
numbers = itertools.count()


@dataclass(frozen=True)
class Result:
    """One result, for as long as its state lives."""

    function: str
    since: int
    """The first record that it covers."""
    late: bool
    number: int = field(default_factory=lambda: next(numbers))

    def of(self, records: list[Record], key: int) -> Any:
        rows = [row for row in records[self.since :] if row["k"] == key]
        present = [row["w"] for row in rows if row["w"] is not None]
        match self.function:
            case "count":
                return len(rows)
            case "present":
                return len(present)
            case "sum":
                return sum(row["v"] for row in rows)
            case "low":
                return min(row["v"] for row in rows)
            case "high":
                return max(present, default=None)
            case _:
                return pytest.approx(sum(present) / len(present)) if present else None


Code = dict[str, Result]


def app_of(code: Code, wide: bool, former: dict[str, str]) -> hf.App:
    small = pa.int64() if wide else pa.int32()
    names = [pa.field("k", small, nullable=False), pa.field("v", small, nullable=False), pa.field("w", small)]
    app = hf.App("evolving", key_groups=GROUPS, checkpoint_every="5s")
    aggregates = {
        name: FUNCTIONS[result.function].was(former[name]) if name in former else FUNCTIONS[result.function]
        for name, result in code.items()
    }
    stream = app.source("in", PlannedSource(pa.schema(names))).key_by("k").agg("totals", **aggregates)
    stream.sink("out", MemorySink(key=["k"]))
    return app


class Evolving(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.code: Code = {"a": Result("count", 0, False), "b": Result("low", 0, False), "c": Result("high", 0, False)}
        self.wide, self.disk, self.evolved = False, Disk(images=SimulatedImages()), 0
        self.history: list[tuple[int, Code, bool]] = [(0, self.code, False)]
        """The code, whether it was wide, and the epoch after which it ran."""

    @initialize(seed=st.integers(0, 1_000), parallelism=st.integers(1, 3))
    def start(self, seed: int, parallelism: int) -> None:
        self.t = TestDriver(app_of(self.code, self.wide, {}), parallelism, seed)
        self.t.cluster.local = lambda: self.disk
        self.t.cluster.limits = Limits(merging=Thresholds(segments_max=2), image_from=1)
        self.t.__enter__()
        self.push([{"k": 1, "v": 5, "w": None}])
        self.t.checkpoint()

    def push(self, rows: list[Record]) -> None:
        self.records += rows
        self.t.push("in", rows)

    @property
    def base(self) -> tuple[int, int]:
        """The last checkpoint, and how many records it covers."""
        job = self.t.cluster.repository.read_log()
        assert job is not None
        manifest = self.t.cluster.repository.load_manifest(job.completed[-1].body.manifest)
        return manifest.epoch, sum(at.offset for at in manifest.positions)

    def began(self, code: Code) -> None:
        """The code runs from the last checkpoint on; new aggregates cover the records after it."""
        epoch, records = self.base
        self.code = {
            name: replace(each, since=min(each.since, records), number=each.number) for name, each in code.items()
        }
        self.history = [each for each in self.history if each[0] < epoch] + [(epoch, self.code, self.wide)]

    def code_at(self, epoch: int) -> tuple[Code, bool]:
        """The code that completed this checkpoint."""
        return next((code, wide) for after, code, wide in reversed(self.history) if after < epoch)

    @rule(keys=st.lists(st.integers(0, KEYS - 1), max_size=8), data=st.data())
    def take(self, keys: list[int], data: st.DataObject) -> None:
        value = st.integers(-5, 5) | st.sampled_from([-(2**31), 2**31 - 1])
        self.push([{"k": key, "v": data.draw(value), "w": data.draw(st.none() | value)} for key in keys])

    @rule()
    def checkpoint(self) -> None:
        self.t.checkpoint()

    @rule()
    def look(self) -> None:
        """Touch every key, so that every row shows the present code."""
        self.push([{"k": key, "v": 0, "w": None} for key in range(KEYS)])
        self.t.checkpoint()
        found = {row["k"]: row for row in self.t.rows("out")}
        for key in range(KEYS):
            expected = {name: each.of(self.records, key) for name, each in self.code.items()}
            assert {name: found[key].get(name, "missing") for name in self.code} == expected, (key, found[key])

    @rule(data=st.data(), cleanly=st.booleans())
    def evolve(self, data: st.DataObject, cleanly: bool) -> None:
        """Remove, rename, add, reorder and widen; each of it, or nothing."""
        present, was_wide = (self.code, self.wide) if cleanly else self.code_at(self.base[0])
        kept = {name: each for name, each in present.items() if data.draw(st.integers(0, 3))}
        self.evolved += 1
        dropped = [f"totals.{name}#{self.evolved}" for name in present if name not in kept]
        code: Code = {}
        former: dict[str, str] = {}
        for name, each in kept.items():
            new = data.draw(st.sampled_from([name, *"defgh"]))
            new = name if new in present or new in code else new
            code[new] = each
            if new != name:
                former[new] = name
        for name in data.draw(st.lists(st.sampled_from("abcxyz"), max_size=2, unique=True)):
            if name not in code and name not in former.values():
                code[name] = Result(data.draw(st.sampled_from(sorted(FUNCTIONS))), len(self.records), True)
        if not code:
            return
        code = dict(data.draw(st.permutations(list(code.items()))))
        unclear = any(each.function == "low" and each.late and each in kept.values() for each in code.values())
        wide = was_wide or (not unclear and data.draw(st.booleans()))
        app = app_of(code, wide, former)
        if cleanly:
            self.t.upgrade(app, dropped)
        else:
            self.t.cluster.replace_driver(self.t._doubled(app.plan()), dropped)
            self.t.recover()
        self.wide = wide
        self.began(code)

    @rule(parallelism=st.integers(1, 3))
    def killed_and_rescaled(self, parallelism: int) -> None:
        ranges = tuple(range_of(i, parallelism, GROUPS) for i in range(parallelism))
        self.t.cluster.change_rules(key_ranges=ranges)
        self.t.cluster.replace_driver()
        self.t.recover()

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        job = self.t.cluster.driver.state.job
        epoch = data.draw(st.sampled_from([each.body.epoch for each in job.completed]))
        lost = {each.number for each in self.code_at(epoch)[0].values()} - {each.number for each in self.code.values()}
        if lost:
            with pytest.raises(hf.ConfigError, match="has dropped"):
                self.t.rewind(epoch)
            return
        self.t.rewind(epoch)
        self.began(self.code)

    @rule(data=st.data())
    def is_refused(self, data: st.DataObject) -> None:
        """State that would be lost silently: the job continues unchanged."""
        name = data.draw(st.sampled_from(sorted(self.code)))
        other = "sum" if self.code[name].function != "sum" else "count"
        code = {**self.code, "other": Result("count", 0, True)}
        if data.draw(st.booleans()):
            del code[name]
        else:
            code[name] = Result(other, 0, True)
        with pytest.raises(hf.ConfigError, match=r"operator 'totals'"):
            self.t.upgrade(app_of(code, self.wide, {}))

    def teardown(self) -> None:
        if hasattr(self, "t"):
            self.look()
            self.t.__exit__()


TestEvolving = Evolving.TestCase
TestEvolving.settings = settings(
    phases=(Phase.generate,),
    max_examples=20,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
