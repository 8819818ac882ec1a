"""Audit digests of a checkpoint: the records that each epoch took from its sources, and the output that it staged.

For its part of an epoch, a worker's ack holds: per source partition, the offsets read and the digest of these records;
per sink, the staged output; per operator, row counts. If an epoch does not complete, its digests go into the next ack,
like its state and output (P8). The manifest holds the parts of all workers, and per sink the output staged during the
job's whole life, as far as known.

So "records in = effects out" can be shown later, for every retained checkpoint, from sources and targets alone.

Invariants
    - The records of a partition in a manifest begin at the offset at which reading resumes in the previous manifest.
    - A worker that rolled back, or a job that was rewound, counts again from its base, and from no other epoch.
    - Unknown is None, never 0: manifests without digests can be read, and later ones record since when they count.

Pure: no clock, thread or I/O.
Source: DESIGN section 13 (audit digests); PROTOCOL P8, P10, P18; docs/decisions/0018-audit.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.model import NO_EPOCH, Epoch, RowDigest, Subtask, Writer
from holdfast.storage.digests import added


class SourceTaken(msgspec.Struct, frozen=True):
    """Records of one source partition from `first` to before `end`, except void ones."""

    source: str
    partition: int
    first: int
    end: int
    taken: RowDigest
    lost: tuple[tuple[int, int], ...] | msgspec.UnsetType = msgspec.UNSET
    """Ranges [first, end) of offsets among these that the source had removed before they were read; omitted if there
    are none."""

    @property
    def lost_ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges that were lost; none if none are recorded."""
        return () if self.lost is msgspec.UNSET else self.lost


class SinkStaged(msgspec.Struct, frozen=True):
    """Output of one writer: one digest per staged part, in order; immediate writes count as one part."""

    writer: Writer
    parts: tuple[RowDigest, ...]
    immediate: bool = msgspec.field(default=False, name="at_once")


class OperatorCount(msgspec.Struct, frozen=True):
    """Rows that one operator, source or edge took in, gave out and left out. None: it has no such rows."""

    name: str
    kind: str
    """source, function, filter, keyed, or edge."""
    rows_in: int
    rows_out: int
    dropped: int | None = None
    late: int | None = None
    dlq: int | None = None
    after: str | None = None
    """The edge from which it takes all its rows; only if `kind` is keyed."""


class PartAudit(msgspec.Struct, frozen=True):
    """One worker's part of an epoch."""

    sources: tuple[SourceTaken, ...] = ()
    sinks: tuple[SinkStaged, ...] = ()
    operators: tuple[OperatorCount, ...] = ()


class SinkTotal(msgspec.Struct, frozen=True):
    """Totals of the records that all writers of a sink have staged."""

    sink: str
    staged: RowDigest


class Late(msgspec.Struct, frozen=True):
    """Records that arrived after their windows had closed, by operator, since the job began or a later epoch."""

    since: Epoch
    rows: dict[str, int]


class Audit(msgspec.Struct, frozen=True):
    """The audit part of a manifest: this epoch's digests of all workers, and the running totals."""

    sources: tuple[SourceTaken, ...]
    sinks: tuple[SinkStaged, ...]
    operators: tuple[OperatorCount, ...]
    totals: tuple[SinkTotal, ...]
    since: Epoch
    """The totals count records that were staged after this epoch; 0: since the job began."""
    late: Late | msgspec.UnsetType = msgspec.UNSET
    """Omitted if no record can be late, and by older versions."""


def joined(parts: Iterable[PartAudit]) -> PartAudit:
    """Combine the digests of one worker's epochs, given in order, into the digests of one epoch (P8)."""
    sources: dict[tuple[str, int], SourceTaken] = {}
    sinks: dict[Writer, SinkStaged] = {}
    operators: list[OperatorCount] = []
    for part in parts:
        for new in part.sources:
            predecessor = sources.get((new.source, new.partition))
            if predecessor is not None:
                assert predecessor.end == new.first, "records between two epochs are in neither"
                lost = one_after_another((*predecessor.lost_ranges, *new.lost_ranges)) or msgspec.UNSET
                taken = added(predecessor.taken, new.taken)
                new = SourceTaken(new.source, new.partition, predecessor.first, new.end, taken, lost)
            sources[new.source, new.partition] = new
        for staged in part.sinks:
            before = sinks.get(staged.writer)
            every = staged.parts if before is None else (*before.parts, *staged.parts)
            sinks[staged.writer] = SinkStaged(staged.writer, every, staged.immediate)
        operators += part.operators
    return PartAudit(tuple(sources.values()), tuple(sinks.values()), counted(operators))


def one_after_another(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ranges [first, end), given in order, with those that touch each other as one."""
    runs: list[tuple[int, int]] = []
    for first, end in ranges:
        if runs and runs[-1][1] == first:
            first = runs.pop()[0]
        runs.append((first, end))
    return tuple(runs)


def counted(counts: Iterable[OperatorCount]) -> tuple[OperatorCount, ...]:
    """Return one count per operator: the sum of its counts."""
    sums: dict[tuple[str, str], OperatorCount] = {}
    for each in counts:
        subtotal = sums.get((each.kind, each.name))
        sums[each.kind, each.name] = (
            each
            if subtotal is None
            else OperatorCount(
                each.name,
                each.kind,
                subtotal.rows_in + each.rows_in,
                subtotal.rows_out + each.rows_out,
                _both(subtotal.dropped, each.dropped),
                _both(subtotal.late, each.late),
                _both(subtotal.dlq, each.dlq),
                each.after,
            )
        )
    return tuple(sums[name] for name in sorted(sums))


def manifest_audit(follows: Epoch, before: Audit | None, parts: Sequence[PartAudit | None]) -> Audit | None:
    """Return the audit part of the next manifest; None unless every worker reported its part.

    Args:
        follows: The epoch that the manifest follows; 0 if it is the first.
        before: The audit part of the manifest of that epoch.
    """
    part_audits = [part for part in parts if part is not None]
    if len(part_audits) < len(parts):
        return None
    since = NO_EPOCH if follows == NO_EPOCH else follows if before is None else before.since
    totals = {} if before is None else {total.sink: total.staged for total in before.totals}
    sinks = sorted((s for part in part_audits for s in part.sinks), key=lambda s: (s.writer.sink, s.writer.subtask))
    for staged in sinks:
        for part in staged.parts:
            known = totals.get(staged.writer.sink)
            totals[staged.writer.sink] = part if known is None else added(known, part)
    operators = counted(count for part in part_audits for count in part.operators)
    return Audit(
        sources=tuple(sorted((s for part in part_audits for s in part.sources), key=lambda s: (s.source, s.partition))),
        sinks=tuple(sinks),
        operators=operators,
        totals=tuple(SinkTotal(sink, totals[sink]) for sink in sorted(totals)),
        since=since,
        late=_late_after(follows, before, operators),
    )


def _late_after(follows: Epoch, before: Audit | None, operators: Iterable[OperatorCount]) -> Late | msgspec.UnsetType:
    previous_late = Late(follows, {}) if before is None or before.late is msgspec.UNSET else before.late
    rows = dict(previous_late.rows)
    for each in operators:
        if each.late is not None:
            rows[each.name] = rows.get(each.name, 0) + each.late
    return Late(previous_late.since, rows) if rows else msgspec.UNSET


def balance(count: OperatorCount, edges: Mapping[str, OperatorCount] = MappingProxyType({})) -> int | None:
    """Return how many more rows came in than are accounted for; None if rows in need not equal rows out.

    A keyed operator puts the rows that it takes into its state, and must take all rows of its edge. Filters, and
    functions that return any number of rows, may leave rows out.
    """
    if count.kind == "keyed" and count.after is not None and count.after in edges:
        return edges[count.after].rows_out - count.rows_in
    if count.kind not in ("source", "function", "edge"):
        return None
    return count.rows_in - count.rows_out - (count.dropped or 0) - (count.late or 0) - (count.dlq or 0)


def staged_by(audit: Audit, sink: str) -> dict[Subtask, SinkStaged]:
    """Return the output that each writer of a sink staged."""
    return {staged.writer.subtask: staged for staged in audit.sinks if staged.writer.sink == sink}


def _both(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
