"""Counts and digests the rows that one subtask takes and emits in an epoch.

The source path digests every batch as the source returned it, before any other step: undecodable records count like
others. Edges count rows on both sides. Staged output is digested where it is sealed (runtime/worker/seal.py), off the
operator thread; rows that sinks write immediately are digested here.

Invariants
    - The reading thread closes a fragment's counts at its barrier: counts belong to the epoch of their rows.
    - Counts cover this deployment alone; a rollback starts them from zero (P10).
    - "counts" computes no hash, "off" nothing.

Pure. Source: DESIGN section 13; PROTOCOL P8, P10; docs/decisions/0018-audit.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa
from msgspec import UNSET

from holdfast.checkpoint.audit import (
    OperatorCount,
    PartAudit,
    SinkStaged,
    SourceTaken,
    counted,
    one_after_another,
)
from holdfast.model import RowDigest, SourcePosition, Subtask, Writer
from holdfast.runtime.plan.immediate import is_immediate
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.rows.dead_letters import ERROR, REFUSAL
from holdfast.runtime.sources.reading import Reading
from holdfast.runtime.wire.messages import OperatorProgress
from holdfast.storage.digests import NOTHING, added
from holdfast.storage.rowhash import digest_of

OFF, COUNTS, ROWS = "off", "counts", "rows"
"""Values of the setting `audit`."""


def digested(rows: pa.RecordBatch | pa.Table, how: str) -> RowDigest:
    """Return the digest of these rows; with "counts" only their number."""
    return digest_of(rows) if how == ROWS else RowDigest(rows.num_rows)


def records_digested(records: pa.RecordBatch, how: str) -> RowDigest:
    """Return the digest of a source's records, without the columns of a refusal: the text of an error may change."""
    return digested(records.drop_columns(list(REFUSAL)) if ERROR in records.schema.names else records, how)


class Auditing:
    """The counts of one subtask in one deployment.

    Args:
        how: The setting `audit`.
    """

    def __init__(self, plan: Plan, subtask: Subtask, how: str) -> None:
        self._plan, self._subtask, self._how = plan, subtask, how
        self._nothing = NOTHING if how == ROWS else RowDigest(0)
        self._taken: dict[tuple[str, int], tuple[int, RowDigest]] = {}
        self._lost: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._immediate = {spec.name: self._nothing for spec in plan.sinks if is_immediate(spec)}
        self._reported: dict[tuple[int, str], OperatorProgress] = {}
        keys = {edge.index: f"by {', '.join(edge.key)}" if edge.key else "united" for edge in plan.edges}
        self._names = {index: f"edge {index}, {key}" for index, key in keys.items()}
        self._kinds = {f.index: _kinds(f.index, plan) for f in plan.fragments}

    def took(self, reading: Reading, batch: pa.RecordBatch) -> None:
        """Count records that were taken at the partition's current offset."""
        if self._how != OFF:
            first, known = self._taken.get((reading.source, reading.partition), (reading.offset, self._nothing))
            self._taken[reading.source, reading.partition] = first, added(known, records_digested(batch, self._how))

    def passed(self, reading: Reading, following: int, *, lost: bool) -> None:
        """Count offsets without records, from the partition's current offset on, as part of the epoch."""
        if self._how != OFF and following != reading.offset:
            place = reading.source, reading.partition
            self._taken.setdefault(place, (reading.offset, self._nothing))
            if lost:
                self._lost[place].append((reading.offset, following))

    def sent(self, edge: int, rows: int) -> None:
        """Count rows that went into an edge."""
        self._sent[edge] += rows

    def received(self, edge: int, rows: int) -> None:
        """Count rows that came out of an edge."""
        self._received[edge] += rows

    def written(self, sink: str, batch: pa.RecordBatch) -> None:
        """Count rows for a sink that is written immediately."""
        if self._how != OFF:
            self._immediate[sink] = added(self._immediate[sink], digested(batch, self._how))

    def close(
        self, index: int, positions: Iterable[SourcePosition], operators: Iterable[OperatorProgress]
    ) -> PartAudit | None:
        """Return the counts of the fragment since its last barrier, and reset them.

        Args:
            positions: Current offsets of its source partitions.
            operators: Counts of its operators since the deployment.
        """
        if self._how == OFF:
            return None
        sources = []
        for at in positions:
            first, taken = self._taken.pop((at.source, at.partition), (at.offset, self._nothing))
            lost = one_after_another(self._lost.pop((at.source, at.partition), ())) or UNSET
            sources.append(SourceTaken(at.source, at.partition, first, at.offset, taken, lost))
        immediate = []
        for spec in self._plan.sinks:
            if spec.fragment == index and spec.name in self._immediate:
                immediate.append(SinkStaged(Writer(spec.name, self._subtask), (self._immediate[spec.name],), True))
                self._immediate[spec.name] = self._nothing
        counts = counted([*self._edges(index), *(self._since_reported(index, each) for each in operators)])
        return PartAudit(tuple(sources), tuple(immediate), counts)

    def _edges(self, index: int) -> list[OperatorCount]:
        names = self._names
        mine = [edge.index for edge in self._plan.edges if edge.from_fragment == index]
        counts = [OperatorCount(names[edge], "edge", self._sent.pop(edge, 0), 0) for edge in mine]
        came_by = self._plan.fragments[index].input_edges
        return counts + [OperatorCount(names[edge], "edge", 0, self._received.pop(edge, 0)) for edge in came_by]

    def _since_reported(self, index: int, now: OperatorProgress) -> OperatorCount:
        before = self._reported.get((index, now.name), OperatorProgress(now.name, 0, 0, 0))
        self._reported[index, now.name] = now
        kind, edges = self._kinds[index].get(now.name, "source"), self._plan.fragments[index].input_edges
        return OperatorCount(
            now.name,
            kind,
            now.rows_in - before.rows_in,
            now.rows_out - before.rows_out,
            _less(now.dropped, before.dropped),
            _less(now.late, before.late),
            _less(now.dlq, before.dlq),
            self._names[edges[0]] if kind == "keyed" and len(edges) == 1 else None,
        )


def _kinds(index: int, plan: Plan) -> dict[str, str]:
    """Return the kinds of a fragment's operators, by name; its source is not among them."""
    steps = (placed.step for placed in plan.fragments[index].steps)
    return {step.name: step.counted_as for step in steps if step.name is not None}


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)
