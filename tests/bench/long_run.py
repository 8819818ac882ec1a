"""A whole job whose time is virtual, turned as a real one is: 50 turns of the driver a second, a status twice a second.

The driver's loop, its machines, the log, manifests and the root are those of production; the workers are too, or only
acknowledge (`acknowledger.py`). What runs on the driver's own thread is timed: each turn with the messages and results
that it takes, by the processor time of the thread, which other processes hardly lengthen.
"""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from acknowledger import Acknowledger

import holdfast as hf
from holdfast.checkpoint.catalogue import Retention
from holdfast.checkpoint.joblog import Job
from holdfast.model import NO_EPOCH, WorkerId
from holdfast.ports import Clock, Lane
from holdfast.runtime.driver.state import Site
from holdfast.runtime.job import status
from holdfast.runtime.job.delays import DelaysOfRun
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.sources.generator import Generator, OpenGenerator
from holdfast.runtime.testing.cluster import HEARTBEAT_S, Cluster
from holdfast.runtime.testing.lanes import InlineLane
from holdfast.runtime.wire import messages as m
from holdfast.storage.objects import MemoryObjects

CHECKPOINT_S = 0.1
TURN_S = 0.02
STATUS_S = 0.5
PARALLELISM, KEYS = 2, 16
ROWS_PER_S = 20
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
SINK = "out"
BEGAN_S = 1_000.0
"""What a new virtual clock shows."""


class PacedByTurns(Generator[object]):
    """Records that appear at a rate of this clock."""

    clock: Clock

    def open(self, clock: Clock | None = None) -> OpenGenerator:
        """See Source.open."""
        return super().open(self.clock)


class HeldLane(InlineLane):
    """A lane whose results wait for the driver's next turn."""

    def __init__(self, results: list[Callable[[], None]]) -> None:
        super().__init__()
        self._results = results

    def step(self) -> None:
        """Do the next piece of work."""
        self._results.append(self.work())


class Root(MemoryObjects):
    """The root, with each of its folders apart, so that a listing reads the names of one folder alone."""

    def __init__(self) -> None:
        super().__init__()
        self.folders = dict[str, MemoryObjects]()

    def _of(self, path: str) -> MemoryObjects:
        return self.folders.setdefault(path.partition("/")[0], MemoryObjects())

    def create(self, path: str, data: bytes) -> None:
        self._of(path).create(path, data)

    def put(self, path: str, data: bytes) -> None:
        self._of(path).put(path, data)

    def get(self, path: str) -> bytes:
        return self._of(path).get(path)

    def list(self, prefix: str) -> list[str]:
        return self._of(prefix).list(prefix)

    def delete(self, path: str) -> None:
        self._of(path).delete(path)


class TurnedCluster(Cluster):
    """A cluster whose driver takes messages and results in its turns, which are timed."""

    def __init__(self, plan: Plan, store: Root, partitions: Mapping[str, tuple[int, ...]], *, real: bool) -> None:
        self._real, self.stand_ins = real, dict[WorkerId, Acknowledger]()
        self.turns = array("d")
        """Processor seconds of each turn."""
        self._results = list[Callable[[], None]]()
        self._held = dict[str, HeldLane]()
        super().__init__(plan, PARALLELISM, 1, store, CHECKPOINT_S, partitions)

    def lane(self, name: str) -> Lane:
        """Return the driver's lane of this name."""
        return self._held.setdefault(name, HeldLane(self._results))

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """Start a worker, or what acknowledges for one."""
        if self._real:
            super().launch(number, avoid)
            return
        worker = WorkerId(f"{number:012x}")
        queue = self._inbox

        def send(message: m.FromWorker) -> None:
            sent = m.FROM_WORKER.decode(msgspec.msgpack.encode(message))
            queue.append(lambda: self.driver.received(sent))

        self.stand_ins[worker] = Acknowledger(worker, SINK, self._store, send)
        send(m.Register(worker, number, "here", number, "boot", ("here", number)))

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """Hand the message to the worker, in its wire form."""
        super().send(worker, message)
        if worker in self.stand_ins:
            self.stand_ins[worker].received(m.FROM_DRIVER.decode(msgspec.msgpack.encode(message)))

    def beat(self) -> None:
        """Let every worker send a heartbeat."""
        for member in self.members.values():
            member.loop.beat()
        for stand_in in self.stand_ins.values():
            stand_in.beat()

    def turn(self) -> None:
        """Let everything happen that can without time passing."""
        took = True
        while took:
            for member in self.members.values():
                while self._member_turn(member) or _stepped(member.ports.lanes.waiting()):
                    pass
            _stepped(self._held.values())
            took = bool(self._inbox or self._results)
            began = time.thread_time()
            results = list(self._results)
            self._results.clear()
            for take in results:
                take()
            while self._inbox:
                self._waiting_message()
            self.driver.turn()
            self.turns.append(time.thread_time() - began)


def _stepped(lanes: Iterable[InlineLane]) -> bool:
    worked = False
    for lane in lanes:
        while lane.jobs:
            lane.step()
            worked = True
    return worked


@dataclass(frozen=True)
class Stretch:
    """What a stretch of epochs cost, and what there was at its end."""

    epochs: int
    """Completed by then."""
    passed_s: float
    """Virtual time."""
    turn_ms: tuple[float, float, float]
    """Processor time of the driver's turns: median, 99th percentile, longest."""
    status_ms: tuple[float, float, float]
    objects: int
    """Tracked by Python's garbage collector, in the driver, the workers and the source together."""
    resident_bytes: int
    files: Mapping[str, int]
    """By folder of the root."""
    root_bytes: int

    def __str__(self) -> str:
        turn, shown = (" / ".join(f"{each:.2f}" for each in times) for times in (self.turn_ms, self.status_ms))
        files = ", ".join(f"{name} {count:,}" for name, count in self.files.items())
        return (
            f"{self.epochs:,} epochs, {self.passed_s / 3_600:.2f} h: turn {turn} ms, status {shown} ms, "
            f"{self.resident_bytes / 1e6:,.0f} MB resident, {self.objects:,} objects of Python, "
            f"root {sum(self.files.values()):,} files of {self.root_bytes / 1e6:.1f} MB ({files})"
        )


class LongRun:
    """A job that counts rows by key, and its root in memory.

    Args:
        table: The SQLite database of its target.
        real: Whether its workers read, count and deliver; else they acknowledge.
    """

    def __init__(self, table: Path, retention: Retention, *, real: bool) -> None:
        self.root, self._table = Root(), table
        source = PacedByTurns(SCHEMA, lambda i: (i % KEYS, i), rate=ROWS_PER_S, partitions=PARALLELISM)
        app = hf.App("long-run", parallelism=PARALLELISM, checkpoint_every="100ms")
        counted = app.source("rows", source).key_by("k").agg("counts", n=hf.count(), total=hf.sum("v"))
        counted.sink(SINK, hf.SQLite(str(table), table="counts", key=["k"]))
        plan = app.plan()
        for spec in plan.sinks:
            spec.sink.prepare(spec.schema, spec.upsert_key)
        partitions = tuple(range(PARALLELISM))
        self.cluster = TurnedCluster(plan, self.root, {"rows": partitions}, real=real)
        source.clock = self._clock = self.cluster.clock
        self.cluster.change_rules(retention=retention)
        self._delays, self._next_status, self._next_beat = DelaysOfRun(NO_EPOCH), 0.0, 0.0
        self._statuses = array("d")
        self.cluster.begin()
        self.cluster.turn()

    @property
    def job(self) -> Job:
        """Return the fold of the job's log."""
        return self.cluster.driver.state.job

    def stretch(self, through: int) -> Stretch:
        """Play until this epoch is completed."""
        while self.job.base_epoch < through:
            assert self.cluster.driver.outcome is None, self.cluster.driver.outcome
            self._clock.now += TURN_S
            if self._clock.now >= self._next_beat:
                self._next_beat = self._clock.now + HEARTBEAT_S
                self.cluster.beat()
            self.cluster.turn()
            if self._clock.now >= self._next_status:
                self._next_status = self._clock.now + STATUS_S
                self._status()
        return self._measured()

    def rows(self) -> tuple[int, int]:
        """Return how many rows were read up to the last checkpoint, and how many the target has counted."""
        running = self.cluster.driver.state.deployed
        assert running is not None and running.last is not None
        with sqlite3.connect(self._table) as table:
            ((counted,),) = table.execute("SELECT sum(n) FROM counts")
        return sum(at.offset for at in running.last.positions), counted

    def _status(self) -> None:
        """Make the status as runtime/execution does."""
        began, state = time.thread_time(), self.cluster.driver.state
        shown = status.of_run(state, "root", "continuous", None)
        self._delays.checkpoints((each.body.epoch, each.body.duration_ms) for each in reversed(state.job.completed))
        json.dumps(msgspec.structs.replace(shown, delays=self._delays.measured()).as_json())
        self._statuses.append(time.thread_time() - began)

    def _measured(self) -> Stretch:
        turns, statuses = _spread(self.cluster.turns), _spread(self._statuses)
        del self.cluster.turns[:], self._statuses[:]
        stored = {name: folder._objects for name, folder in self.root.folders.items()}
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return Stretch(
            self.job.base_epoch,
            self._clock.now - BEGAN_S,
            turns,
            statuses,
            len(gc.get_objects()),
            resident,
            {name: len(objects) for name, objects in sorted(stored.items())},
            sum(len(data) for objects in stored.values() for data in objects.values()),
        )


def _spread(seconds: array[float]) -> tuple[float, float, float]:
    median, high, most = np.percentile(np.frombuffer(seconds) * 1e3, [50, 99, 100])
    return float(median), float(high), float(most)
