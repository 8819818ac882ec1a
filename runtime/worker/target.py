"""The state that a subtask is to have: what `Deploy` and `Follow` name, its identity, and an empty store for it.

Pure.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.model import Cut, Epoch, Generation, JobUuid, SnapshotHandle, Timeline, WorkerId
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.wire.messages import TopicState
from holdfast.sinks.contract.owners import Claim
from holdfast.state.evolution import declaration
from holdfast.state.local.image import Wanted
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.slab import Memory
from holdfast.state.tables.spec import TableSpec


class StateTarget(Protocol):
    """The state of a subtask as of a completed epoch: what `Deploy` and `Follow` name."""

    @property
    def job_uuid(self) -> JobUuid: ...
    @property
    def generation(self) -> Generation: ...
    @property
    def timeline(self) -> Timeline: ...
    @property
    def base_epoch(self) -> Epoch: ...
    @property
    def handle(self) -> SnapshotHandle: ...
    @property
    def lineage(self) -> dict[Epoch, str]: ...
    @property
    def claim(self) -> Claim: ...
    @property
    def topic(self) -> TopicState | None: ...


def identity_of(target: StateTarget, worker: WorkerId) -> Identity:
    """Return the identity of a subtask's state: the job, generation, timeline and worker."""
    return Identity(target.job_uuid, Generation(target.generation), target.timeline, worker)


def cut_of(target: StateTarget) -> Cut:
    """Return the completed epoch of a target, with its manifest."""
    return Cut(target.base_epoch, target.lineage.get(target.base_epoch, ""))


def new_store(plan: Plan, target: StateTarget, worker: WorkerId, memory: Memory) -> StateStore:
    """Return an empty store for a target."""
    specs = [operator.table for operator in plan.operators]
    return StateStore(identity_of(target, worker), specs, plan.key_groups, target.handle.key_groups, memory)


def declared(spec: TableSpec) -> str:
    """Return what decides how the rows of a table lie in memory, absent ones included."""
    return "|".join([declaration(spec), *(repr(column.default) for column in spec.columns)])


def wanted_of(plan: Plan, target: StateTarget, content: str = "") -> Wanted:
    """Return which image has the state of a target, or something on which it builds."""
    found = {operator.id: declared(operator.table) for operator in plan.operators}
    return Wanted(target.job_uuid, target.handle.key_groups, found, cut_of(target), target.lineage, content)


def content_of(target: StateTarget) -> str:
    """Return the hash of the base object on which a target builds; empty if there is none, or several."""
    base, handle = target.handle.base, target.handle
    alone = len(base) == 1 and all(each.epoch > handle.base_epoch for each in handle.segments)
    return base[0].sha256 if alone else ""
