"""Shared by the state machines for one worker's state: a cold store that is killed, in memory or on RocksDB."""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from rocksdict import AccessType, Options, Rdict

from holdfast.model import Cut, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.ports import KeyValue
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.evolution import declaration
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.state.local.rocks import RocksKeyValue, RocksMemory
from holdfast.state.marker import read_marker, usable
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.slab import PLAIN, Memory
from holdfast.state.tables.spec import TableSpec

JOB, WORKER, GROUPS = JobUuid("job"), WorkerId("w"), 8


class KilledWorker(RuleBasedStateMachine):
    """A worker over a cold store in memory. A machine starts with `new_cold` and sets `store`."""

    cold: KeyValue | None
    store: StateStore
    tables_memory: Memory = PLAIN
    completed: dict[Epoch, Any]
    """The state that a restore of each completed epoch must return."""

    def new_cold(self) -> KeyValue | None:
        return MemoryKeyValue()

    def killed_cold(self, survived: float) -> KeyValue | None:
        """Return the store after a kill that this share of the unflushed writes survived, from 0 to 1."""
        assert isinstance(self.cold, MemoryKeyValue)
        return self.cold.after_kill(round(survived * self.cold.unflushed))

    @property
    def head(self) -> Epoch:
        return max(self.completed)

    @rule(steps=st.integers(1, 12), keys_max=st.integers(1, 5))
    def apply(self, steps: int, keys_max: int) -> None:
        for _ in range(steps):
            if not self.store.apply(keys_max):
                break


@dataclass(frozen=True)
class Frozen:
    """An epoch that a barrier froze and that is not sealed yet."""

    epoch: Epoch
    follows: Epoch
    state: Any
    """The state as of the barrier."""
    completes: bool
    announced: bool


class RewoundWorker(KilledWorker):
    """A worker that is also rolled back, rewound and restarted, from what its epochs completed.

    Between the barrier of an epoch and its segment, the machine does anything else: records are copied a few at a time,
    and most changes hit records that are not copied yet.

    A machine sets `specs` and says what its model becomes in `continue_from`.
    """

    specs: Sequence[TableSpec]

    def __init__(self, nothing: Any) -> None:
        super().__init__()
        self.timeline, self.newest = Timeline(1), Epoch(0)
        self.lineage: dict[Epoch, str] = {}
        self.completed = {Epoch(0): nothing}
        self.segments: dict[Epoch, bytes] = {}
        self.frozen: Frozen | None = None
        self.continue_from(Epoch(0))

    @abstractmethod
    def continue_from(self, epoch: Epoch) -> None:
        """Take the model of a completed epoch for the present one."""

    def wrap(self, store: StateStore) -> None:
        self.store = store

    @property
    def identity(self) -> Identity:
        return Identity(JOB, Generation(1), self.timeline, WORKER)

    @initialize()
    def start(self) -> None:
        self.cold = self.new_cold()
        self.wrap(StateStore(self.identity, self.specs, GROUPS, (0, GROUPS), self.cold, self.tables_memory))

    @rule()
    def roll_back(self) -> None:
        assert self.store.roll_back(self.head, self.identity)
        self.frozen = None
        self.continue_from(self.head)

    @rule(survived=st.floats(0, 1))
    def kill(self, survived: float) -> None:
        self.cold = self.killed_cold(survived)
        self.restart(self.head)

    @precondition(lambda self: len(self.completed) > 1)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(sorted(self.completed)))
        self.timeline, self.frozen = Timeline(self.timeline + 1), None
        for history in (self.lineage, self.completed, self.segments):
            for epoch in [epoch for epoch in history if epoch > target]:
                del history[epoch]
        if self.store.roll_back(target, self.identity):
            self.continue_from(target)
        else:
            self.cold = self.killed_cold(1.0)
            self.restart(target)

    def restart(self, target: Epoch) -> None:
        self.frozen = None
        marker = None if self.cold is None else read_marker(self.cold)
        declared = {spec.operator: declaration(spec) for spec in self.specs}
        base = usable(marker, JOB, self.lineage, target, (0, GROUPS), declared)
        self.wrap(StateStore(self.identity, self.specs, GROUPS, (0, GROUPS), self.cold, self.tables_memory))
        applied = marker.applied if base is not None and marker is not None else None
        segments = [data for epoch, data in self.segments.items() if applied is None or epoch > applied]
        self.store.restore(target, segments, applied)
        self.store.completed(Cut(target, self.lineage.get(target, "")))
        self.continue_from(target)

    def close(self, epoch: Epoch, state: Any, *, completes: bool, announced: bool) -> None:
        """Freeze an epoch with this state. It completes once it is sealed, or never; the worker may hear of it."""
        self.newest, follows = epoch, self.head
        for spec in self.specs:
            self.store.freeze(spec.operator, epoch, follows)
        self.frozen = Frozen(epoch, follows, state, completes, announced)

    @rule(records=st.integers(1, 5))
    def advance(self, records: int) -> None:
        self.store.advance(records)

    @precondition(lambda self: self.frozen is not None)
    @rule()
    def seal(self) -> None:
        frozen, self.frozen = self.frozen, None
        assert frozen is not None
        epoch = frozen.epoch
        self.store.supersede(epoch)
        deltas = self.store.deltas(epoch)
        assert self.store.uncopied == 0 and all(delta.follows == frozen.follows for delta in deltas)
        header = SegmentHeader(JOB, Generation(1), self.timeline, epoch, frozen.follows, WORKER)
        data = seal(header, deltas)
        if not frozen.completes:
            return
        self.segments[epoch], self.completed[epoch] = data, frozen.state
        self.lineage[epoch] = f"manifest of {epoch} on {self.timeline}"
        if frozen.announced:
            self.store.commit(epoch)
            self.store.completed(Cut(epoch, self.lineage[epoch]))


class OnRocks(KilledWorker):
    """A kill leaves the contents that another reader sees in the files: writes not flushed by RocksDB are lost."""

    memory = RocksMemory()

    def new_cold(self) -> KeyValue | None:
        self.root = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
        self.number = 0
        return RocksKeyValue(self.root / "0", self.memory)

    def killed_cold(self, survived: float) -> KeyValue | None:
        assert isinstance(self.cold, RocksKeyValue)
        if survived > 0.5:
            self.cold.flush()
        files = Rdict(str(self.cold.path), options=Options(raw_mode=True), access_type=AccessType.read_only())
        pairs: list[tuple[Any, Any]] = list(files.items())
        files.close()
        self.cold.close()
        self.number += 1
        left = RocksKeyValue(self.root / str(self.number), self.memory)
        left.write(pairs, [])
        return left

    def teardown(self) -> None:
        if hasattr(self, "store"):
            super().teardown()
            assert isinstance(self.cold, RocksKeyValue)
            self.cold.close()
            shutil.rmtree(self.root)
