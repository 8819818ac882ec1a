"""A fragment with several inputs on the subtasks of one history: routing, barriers, commits, rollbacks and restores.

State is really sealed and read again; rows and time enter where the edges of the fragment do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.operators.contract import KeyGroups
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.worker.fragment import FragmentRuntime
from holdfast.runtime.worker.routing import Router
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.keygroups import range_of
from holdfast.state.store import Identity, StateStore

JOB = JobUuid("job")
Rows = dict[str, list[dict[str, Any]]]
"""Rows by sink."""


class Subtask:
    """A fragment on the key groups of one subtask, with real state."""

    def __init__(
        self, plan: Plan, fragment: int, number: int, parallelism: int, base: int, segments: list[bytes]
    ) -> None:
        self.plan, self._index = plan, fragment
        self.owned = range_of(number, parallelism, plan.key_groups)
        self.identity = Identity(JOB, Generation(1), Timeline(1), WorkerId(f"w{number}"))
        tables = [operator.table for operator in plan.operators]
        self.state = StateStore(self.identity, tables, plan.key_groups, self.owned)
        if base:
            self.state.restore(Epoch(base), segments)
        self.written: Rows = defaultdict(list)
        self.open()

    def open(self) -> None:
        named = {operator.name: self.state.table(operator.id) for operator in self.plan.operators}
        groups = KeyGroups(self.plan.key_groups, *self.owned)
        fragment = self.plan.fragments[self._index]
        self.fragment = FragmentRuntime(fragment, named, self._send, self._write, key_groups=groups)

    def _send(self, edge: int, batch: pa.RecordBatch) -> None:
        raise AssertionError("nothing leaves by an edge")

    def _write(self, sink: str, batch: pa.RecordBatch) -> None:
        batch.validate(full=True)
        self.written[sink].extend(batch.to_pylist())


class Job:
    """Subtasks of one history, with what they wrote as of the last commit."""

    def __init__(self, plan: Plan, fragment: int, parallelism: int) -> None:
        self.plan, self.index, self.parallelism = plan, fragment, parallelism
        self.edges = [plan.edges[index] for index in plan.fragments[fragment].input_edges]
        self.segments, self.epoch, self.base = list[bytes](), 0, 0
        self.rows: Rows = defaultdict(list)
        self.begin()

    def begin(self) -> None:
        given = self.parallelism, self.base, self.segments
        self.subtasks = [Subtask(self.plan, self.index, number, *given) for number in range(self.parallelism)]

    def take(self, port: int, batch: pa.RecordBatch) -> None:
        edge = self.edges[port]
        batch = batch.select(edge.schema.names)
        for receiver, share in Router(edge, self.parallelism, self.plan.key_groups).split(batch):
            self.subtasks[receiver].fragment.on_batch(share, port=port)

    def advance(self, at_us: int) -> None:
        for each in self.subtasks:
            each.fragment.on_watermark(at_us)

    def barrier(self, commits: bool) -> None:
        self.epoch += 1
        for each in self.subtasks:
            each.fragment.on_barrier()
            for operator in self.plan.operators:
                each.state.freeze(operator.id, Epoch(self.epoch), Epoch(self.base))
            if commits:
                header = SegmentHeader(
                    JOB, Generation(1), Timeline(1), Epoch(self.epoch), Epoch(self.base), each.identity.worker
                )
                self.segments.append(seal(header, each.state.deltas(Epoch(self.epoch))))
                each.state.commit(Epoch(self.epoch))
                for sink, rows in each.written.items():
                    self.rows[sink] += rows
                each.written.clear()
        self.base = self.epoch if commits else self.base

    def crash(self, parallelism: int) -> None:
        """Lose what was not committed; roll back in place if the parallelism is 0, else restore with another one."""
        if parallelism:
            self.parallelism = parallelism
            self.begin()
            return
        for each in self.subtasks:
            each.written.clear()
            if not each.state.roll_back(Epoch(self.base)):
                self.begin()
                return
            each.open()

    def progress(self) -> Mapping[str, int]:
        found = [each for subtask in self.subtasks for each in subtask.fragment.progress()]
        names = ("rows_in", "rows_out", "late", "dropped")
        return {name: sum(getattr(each, name) or 0 for each in found) for name in names}
