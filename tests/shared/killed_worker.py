"""Shared by the state machines for one worker's state: it is killed, rolled back and rewound."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.slab import PLAIN, Memory
from holdfast.state.tables.spec import TableSpec

JOB, WORKER, GROUPS = JobUuid("job"), WorkerId("w"), 8


@dataclass(frozen=True)
class Frozen:
    """An epoch that a barrier froze and that is not sealed yet."""

    epoch: Epoch
    follows: Epoch
    state: Any
    """The state as of the barrier."""
    completes: bool
    announced: bool


class RewoundWorker(RuleBasedStateMachine):
    """A worker that is rolled back, rewound and restarted, from what its epochs completed.

    Between the barrier of an epoch and its segment, the machine does anything else: records are copied a few at a time,
    and most changes hit records that are not copied yet.

    A machine sets `specs` and says what its model becomes in `continue_from`.
    """

    specs: Sequence[TableSpec]
    tables_memory: Memory = PLAIN

    def __init__(self, nothing: Any) -> None:
        super().__init__()
        self.timeline, self.newest = Timeline(1), Epoch(0)
        self.completed: dict[Epoch, Any] = {Epoch(0): nothing}
        """The state that a restore of each completed epoch must return."""
        self.segments: dict[Epoch, bytes] = {}
        self.frozen: Frozen | None = None
        self.continue_from(Epoch(0))

    @abstractmethod
    def continue_from(self, epoch: Epoch) -> None:
        """Take the model of a completed epoch for the present one."""

    def wrap(self, store: StateStore) -> None:
        self.store = store

    @property
    def head(self) -> Epoch:
        return max(self.completed)

    @property
    def identity(self) -> Identity:
        return Identity(JOB, Generation(1), self.timeline, WORKER)

    def new_store(self, owned: tuple[int, int] = (0, GROUPS)) -> StateStore:
        return StateStore(self.identity, self.specs, GROUPS, owned, self.tables_memory)

    @initialize()
    def start(self) -> None:
        self.wrap(self.new_store())

    @rule()
    def roll_back(self) -> None:
        assert self.store.roll_back(self.head, self.identity)
        self.frozen = None
        self.continue_from(self.head)

    @rule(share=st.floats(0, 1))
    def kill(self, share: float) -> None:
        """Restart from tables as of a completed epoch, this share of the epochs back, and the segments after it."""
        epochs = sorted(self.completed)
        self.restart(self.head, epochs[round(share * (len(epochs) - 1))])

    @precondition(lambda self: len(self.completed) > 1)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(sorted(self.completed)))
        self.timeline, self.frozen = Timeline(self.timeline + 1), None
        for history in (self.completed, self.segments):
            for epoch in [epoch for epoch in history if epoch > target]:
                del history[epoch]
        if self.store.roll_back(target, self.identity):
            self.continue_from(target)
        else:
            self.restart(target, target)

    def restart(self, target: Epoch, base: Epoch) -> None:
        self.frozen = None
        older, store = self.new_store(), self.new_store()
        older.restore(base, [data for epoch, data in self.segments.items() if epoch <= base])
        store.adopt(older.stored(), {spec.operator: {} for spec in self.specs}, base)
        if base < target:
            store.follow(target, [data for epoch, data in self.segments.items() if base < epoch <= target])
        self.wrap(store)
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
        data = seal(SegmentHeader(JOB, Generation(1), self.timeline, epoch, frozen.follows, WORKER), deltas)
        if not frozen.completes:
            return
        self.segments[epoch], self.completed[epoch] = data, frozen.state
        if frozen.announced:
            self.store.commit(epoch)
