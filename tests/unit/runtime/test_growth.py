"""A job that runs for long holds no more objects than one that runs briefly: nothing is kept per epoch.

What grows with the log of the job (checkpoints that are retained, pieces of state until they are merged) has limits and
tests of its own and is not counted here.
"""

from __future__ import annotations

import gc
import types
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import Epoch, SnapshotHandle, Tag, Timeline
from holdfast.runtime.testing.driver import TestDriver
from holdfast.sinks.memory.immediate import ImmediateTable
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.log import commits
from holdfast.storage.log.commits import Commits
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.objects import MemoryObjects

EPOCHS = 12
"""Epochs between two measurements: an object kept per epoch is counted this often."""
LIMITED_ELSEWHERE = (joblog.Job, Manifest, SnapshotHandle)
NOT_HELD = (type, types.ModuleType, types.FrameType, types.CodeType, *LIMITED_ELSEWHERE)
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMED = {"auction": pa.int64(), "at": pa.timestamp("us", tz="UTC")}
SCHEMA = pa.schema([pa.field(name, kind, nullable=False) for name, kind in NAMED.items()])


def held(roots: Iterable[object], outside: Iterable[object]) -> Counter[str]:
    """Return how many objects of each type can be reached, and how long the collections are together."""
    seen, found, waiting = {id(each) for each in outside}, Counter[str](), list(roots)
    while waiting:
        this = waiting.pop()
        if id(this) in seen or isinstance(this, NOT_HELD):
            continue
        seen.add(id(this))
        if isinstance(this, types.FunctionType):
            waiting += [*(this.__closure__ or ()), *(this.__defaults__ or ())]
            continue
        found[type(this).__name__] += 1
        if isinstance(this, list | dict | set | frozenset):
            found[f"in {type(this).__name__}"] += len(this)
        waiting += gc.get_referents(this)
    return found


def growth(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """Return what there is at least one more of per epoch; numbers and texts hang on what holds them."""
    plain = ("int", "float", "str", "bytes")
    return {name: n - before[name] for name, n in after.items() if n - before[name] >= EPOCHS and name not in plain}


def app() -> hf.App:
    """Every kind of state and sink that is closed per epoch."""
    made = hf.App("growing", key_groups=8)
    bids = made.source("bids", hf.Log("unused", SCHEMA), event_time="at")
    per_auction = bids.key_by("auction").agg("per_auction", bids=hf.count())
    per_auction.sink("totals", MemorySink(key=["auction"]))
    windows = bids.key_by("auction").window(hf.tumbling("2s")).agg("per_window", emit="final", bids=hf.count())
    windows.sink("windows", MemorySink())
    windows.late.sink("late", MemorySink())
    bids.sink("all", MemorySink())
    return made


def app_written_at_once() -> hf.App:
    """Rows are written before their epoch is committed."""
    made = hf.App("growing", key_groups=8)
    bids = made.source("bids", hf.Log("unused", SCHEMA), event_time="at", partitioned_by=["auction"])
    bids.sink("lasts", ImmediateTable(["auction"]))
    return made


def epochs(t: TestDriver, first: int) -> None:
    """Complete some epochs, each with rows of the next second; some of them may be late."""
    for number in range(first, first + EPOCHS):
        at = START + timedelta(seconds=number)
        for partition in range(4):
            t.push("bids", [{"auction": partition, "at": at - timedelta(seconds=3 * partition)}], partition=partition)
        t.watermark("bids", at - timedelta(seconds=1))
        t.checkpoint()


def look(t: TestDriver) -> Counter[str]:
    """Count the objects that the driver and the workers hold."""
    outside = [t.cluster.repository._store, *t.sources.values(), *t.sinks.values()]
    return held([t.cluster.driver, *(member.loop for member in t.cluster.members.values())], outside)


class TestNothingIsKeptPerEpoch:
    @pytest.mark.parametrize("made", [app, app_written_at_once])
    def test_driver_and_workers_hold_no_more_objects_after_more_epochs(self, made: Callable[[], hf.App]) -> None:
        with TestDriver(made()) as t:
            epochs(t, 0)
            before = look(t)
            epochs(t, EPOCHS)
            assert growth(before, look(t)) == {}

    def test_the_measurement_detects_one_object_per_epoch(self) -> None:
        """Otherwise the test above would prove nothing."""
        kept: list[Any] = []
        with TestDriver(app()) as t:
            epochs(t, 0)
            run = next(iter(t.cluster.members.values())).loop._active
            assert run is not None
            run.run.kept = kept  # type: ignore[attr-defined]
            before = look(t)
            kept += [(Tag(Timeline(1), Epoch(n)),) for n in range(EPOCHS)]
            assert growth(before, look(t))["Tag"] == EPOCHS

    def test_a_log_keeps_a_limited_number_of_commits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commits, "CACHED_COMMITS_MAX", 8)
        store = MemoryObjects()
        meta = create_log(store, pa.schema([pa.field("n", pa.int64(), nullable=False)]), partitions=1)
        writer, follower = LogWriter(store, pause=lambda _: None, wall_us=lambda: 7), Commits(store, meta)
        for n in range(40):
            writer.append({0: pa.table({"n": [n]}, schema=meta.schema)})
            follower.refresh()
        reader = LogReader(store)
        found: list[int] = []
        while (read := reader.read(0, len(found), 1 << 20))[0] is not None:
            found += read[0].column("n").to_pylist()
        assert found == list(range(40))
        assert read_meta(store) == meta
        for each in (writer._commits, follower, reader._commits):
            assert len(each._cached) <= 8
            assert each._hashes.keys() == each._cached.keys()
        assert [follower.find(0, offset)[0] for offset in (0, 39)] == [1, 40]
