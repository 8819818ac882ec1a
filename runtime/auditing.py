"""What one subtask takes and gives in an epoch, counted and digested where it happens.

The source path digests every batch as the source gave it, before anything looks at it: undecodable records count like
others. Edges count rows on both sides. What is staged is digested where it is sealed (runtime/seal.py), off the
operator thread; what sinks write at once is digested here.

Invariants
    - A fragment's counts are closed by the thread that reads, at its barrier: they are of the epoch of the rows.
    - What is counted here is of this deployment alone; a rollback begins anew (P10).
    - "counts" computes no hash, "off" nothing.

Pure. Source: DESIGN section 13; PROTOCOL P8, P10; docs/design/0018-audit.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pyarrow as pa

from holdfast.checkpoint.audit import OperatorCount, PartAudit, SinkStaged, SourceTaken, counted
from holdfast.model import RowDigest, SourcePosition, Subtask, Writer
from holdfast.runtime.dead_letters import ERROR, REFUSAL
from holdfast.runtime.immediate_plan import is_immediate
from holdfast.runtime.messages import OperatorProgress
from holdfast.runtime.reading import Reading
from holdfast.runtime.steps import Aggregate, Call, Plan, WindowAggregate
from holdfast.storage.digests import NOTHING, added
from holdfast.storage.rowhash import digest_of

OFF, COUNTS, ROWS = "off", "counts", "rows"
"""Values of the setting `audit`."""


def digested(rows: pa.RecordBatch | pa.Table, how: str) -> RowDigest:
    """Return what these rows are known by."""
    return digest_of(rows) if how == ROWS else RowDigest(rows.num_rows)


def records_digested(records: pa.RecordBatch, how: str) -> RowDigest:
    """Return what records of a source are known by; what is said of one that cannot be decoded may change."""
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
        self._sent: defaultdict[int, int] = defaultdict(int)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._at_once = {spec.name: self._nothing for spec in plan.sinks if is_immediate(spec)}
        self._told: dict[tuple[int, str], OperatorProgress] = {}
        keys = {edge.index: f"by {', '.join(edge.key)}" if edge.key else "united" for edge in plan.edges}
        self._names = {index: f"edge {index}, {key}" for index, key in keys.items()}
        self._kinds = {f.index: _kinds(f.index, plan) for f in plan.fragments}

    def took(self, reading: Reading, batch: pa.RecordBatch) -> None:
        """Records were taken from where the partition stands."""
        if self._how != OFF:
            first, known = self._taken.get((reading.source, reading.partition), (reading.offset, self._nothing))
            self._taken[reading.source, reading.partition] = first, added(known, records_digested(batch, self._how))

    def sent(self, edge: int, rows: int) -> None:
        """Rows went into an edge."""
        self._sent[edge] += rows

    def received(self, edge: int, rows: int) -> None:
        """Rows came out of an edge."""
        self._received[edge] += rows

    def written(self, sink: str, batch: pa.RecordBatch) -> None:
        """Rows go to a sink that is written at once."""
        if self._how != OFF:
            self._at_once[sink] = added(self._at_once[sink], digested(batch, self._how))

    def close(
        self, index: int, positions: Iterable[SourcePosition], operators: Iterable[OperatorProgress]
    ) -> PartAudit | None:
        """Return what the fragment did since its last barrier.

        Args:
            positions: Where its source partitions stand now.
            operators: What its operators have counted since the deployment.
        """
        if self._how == OFF:
            return None
        sources = []
        for at in positions:
            first, taken = self._taken.pop((at.source, at.partition), (at.offset, self._nothing))
            sources.append(SourceTaken(at.source, at.partition, first, at.offset, taken))
        at_once = []
        for spec in self._plan.sinks:
            if spec.fragment == index and spec.name in self._at_once:
                at_once.append(SinkStaged(Writer(spec.name, self._subtask), (self._at_once[spec.name],), True))
                self._at_once[spec.name] = self._nothing
        counts = counted([*self._edges(index), *(self._since_told(index, each) for each in operators)])
        return PartAudit(tuple(sources), tuple(at_once), counts)

    def _edges(self, index: int) -> list[OperatorCount]:
        names = self._names
        mine = [edge.index for edge in self._plan.edges if edge.from_fragment == index]
        counts = [OperatorCount(names[edge], "edge", self._sent.pop(edge, 0), 0) for edge in mine]
        came_by = self._plan.fragments[index].input_edges
        return counts + [OperatorCount(names[edge], "edge", 0, self._received.pop(edge, 0)) for edge in came_by]

    def _since_told(self, index: int, now: OperatorProgress) -> OperatorCount:
        before = self._told.get((index, now.name), OperatorProgress(now.name, 0, 0, 0))
        self._told[index, now.name] = now
        kind, edges = self._kinds[index].get(now.name, "source"), self._plan.fragments[index].input_edges
        return OperatorCount(
            now.name, kind,
            now.rows_in - before.rows_in, now.rows_out - before.rows_out,
            _less(now.dropped, before.dropped), _less(now.late, before.late), _less(now.dlq, before.dlq),
            self._names[edges[0]] if kind == "keyed" else None,
        )  # fmt: skip


def _kinds(index: int, plan: Plan) -> dict[str, str]:
    """Return what the operators of a fragment are; the one that is missing is its source."""
    kinds = {}
    for step in plan.fragments[index].steps:
        if isinstance(step.kind, Call):
            kinds[step.kind.operator] = "function" if step.kind.how == "map" else "filter"
        elif isinstance(step.kind, Aggregate | WindowAggregate):
            kinds[step.kind.operator] = "keyed"
    return kinds


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)
