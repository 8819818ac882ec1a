"""What manifests alone show: that epochs chain without a gap, and that the rows of every operator are accounted for.

Invariants
    - A checkpoint whose predecessor is not kept is said to be not provable, never passed over.
    - Nothing here reads a source or a target.

Pure. Source: docs/design/0018-audit.md; PROTOCOL P8, P10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.checkpoint.audit import Audit, balance
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH
from holdfast.runtime.audit_report import Line, Verdict

UNKNOWN = "the checkpoint has no digests: it was made with audit=off, or by an older version"


def chain(manifests: Sequence[Manifest], chosen: Iterable[int]) -> list[Line]:
    """Return per chosen epoch whether it begins, in every partition, where the epoch it follows ended.

    Args:
        manifests: All that are kept of the job's lineage, oldest first.
    """
    known = {int(manifest.epoch): manifest for manifest in manifests}
    lines = []
    for epoch in chosen:
        manifest = known[epoch]
        verdict, reason = _linked(manifest, known.get(manifest.follows))
        more = (("timeline", manifest.timeline), ("follows", manifest.follows))
        lines.append(Line("epoch", "", None, epoch, verdict, reason, more=more))
    return lines


def _linked(manifest: Manifest, before: Manifest | None) -> tuple[Verdict, str | None]:
    audit = manifest.audited
    if audit is None:
        return "not provable", UNKNOWN
    if before is None and manifest.follows != NO_EPOCH:
        if wrong := _ends(manifest, audit):
            return "differs", wrong
        return "not provable", f"checkpoint {manifest.follows}, which it follows, is not kept any more"
    stood = {} if before is None else {(at.source, at.partition): at.offset for at in before.positions}
    taken = {(each.source, each.partition): each for each in audit.sources}
    if len(taken) < len(audit.sources):
        return "differs", "records of one partition were taken by two workers"
    for (source, partition), each in sorted(taken.items()):
        begin = stood.get((source, partition), -1)
        if begin >= 0 and each.first != begin:
            kind = "again" if each.first < begin else "not at all"
            return "differs", (
                f"source {source!r}, partition {partition}: the records between offsets {min(begin, each.first)} and "
                f"{max(begin, each.first)} were taken {kind}"
            )
    for at in manifest.positions:
        if (at.source, at.partition) not in taken and at.offset != stood.get((at.source, at.partition), at.offset):
            return "differs", f"source {at.source!r}, partition {at.partition}: it moved on, and nothing was taken"
    wrong = _ends(manifest, audit)
    return ("differs", wrong) if wrong else ("proven", None)


def _ends(manifest: Manifest, audit: Audit) -> str | None:
    stands = {(at.source, at.partition): at.offset for at in manifest.positions}
    for each in audit.sources:
        if (at := stands.get((each.source, each.partition))) != each.end:
            return (
                f"source {each.source!r}, partition {each.partition}: records were taken up to offset {each.end}, "
                f"reading goes on at {at}"
            )
    return None


def balances(manifest: Manifest) -> list[Line]:
    """Return per operator of an epoch whether rows in = out + late + dropped + dead letters."""
    audit = manifest.audited
    if audit is None:
        return []
    taken: dict[str, int] = {}
    for each in audit.sources:
        taken[each.source] = taken.get(each.source, 0) + each.taken.rows
    edges = {count.name: count for count in audit.operators if count.kind == "edge"}
    lines = []
    for count in audit.operators:
        left, verdict, reason = balance(count, edges), "proven", None
        if left:
            verdict, reason = "differs", f"{abs(left):,} rows of {count.rows_in:,} are not accounted for"
        elif count.kind == "source" and count.rows_in != taken.get(count.name, 0):
            verdict, reason = "differs", f"{taken.get(count.name, 0):,} records were taken, {count.rows_in:,} came in"
        elif left is None:
            verdict, reason = "not provable", "what it gives need not be as many rows as it takes"
        more = (
            ("kind", count.kind), ("rows_in", count.rows_in), ("rows_out", count.rows_out), ("late", count.late),
            ("dropped", count.dropped), ("dlq", count.dlq), ("pending", 0 if left is not None else None),
            ("balance", left),
        )  # fmt: skip
        found: Verdict = verdict  # type: ignore[assignment]
        lines.append(Line("operator", count.name, None, manifest.epoch, found, reason, count.rows_in, more=more))
    return lines

