"""What manifests alone show: that epochs chain without a gap, and that the rows of every operator are accounted for.

Invariants
    - A checkpoint whose predecessor is not kept is said to be not provable, never passed over.
    - A partition is never forgotten, and one that comes anew begins with its first record.
    - Nothing here reads a source or a target.

Pure. Source: docs/design/0018-audit.md; PROTOCOL P8, P10, P12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.checkpoint.audit import Audit, balance
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH
from holdfast.runtime.audit_report import Line, Verdict

Place = tuple[str, int]
"""Source and partition."""
UNKNOWN = "the checkpoint has no digests: it was made with audit=off, or by an older version"


def chain(manifests: Sequence[Manifest], chosen: Iterable[int]) -> list[Line]:
    """Return per chosen epoch whether it begins, in every partition, where the epoch it follows ended.

    Args:
        manifests: All that are kept of the job's lineage, oldest first.
    """
    known = {int(manifest.epoch): manifest for manifest in manifests}
    stood: dict[int, dict[Place, int]] = {}  # where each partition stands, as the nearest checkpoint says that knows it
    for manifest in manifests:
        stood[manifest.epoch] = stood.get(manifest.follows, {}) | _stands(manifest)
    lines = []
    for epoch in chosen:
        manifest = known[epoch]
        verdict, reason = _linked(manifest, known.get(manifest.follows), stood.get(manifest.follows, {}))
        more = (("timeline", manifest.timeline), ("follows", manifest.follows))
        lines.append(Line("epoch", "", None, epoch, verdict, reason, more=more))
    return lines


def _linked(manifest: Manifest, before: Manifest | None, stood: Mapping[Place, int]) -> tuple[Verdict, str | None]:
    audit = manifest.audited
    if audit is None:
        return "not provable", UNKNOWN
    if len({(each.source, each.partition) for each in audit.sources}) < len(audit.sources):
        return "differs", "records of one partition were taken by two workers"
    if wrong := _ends(manifest, audit):
        return "differs", wrong
    if before is None and manifest.follows != NO_EPOCH:
        return "not provable", f"checkpoint {manifest.follows}, which it follows, is not kept any more"
    missing = set() if before is None else _stands(before).keys() - _stands(manifest).keys()
    for source, partition in sorted(missing):  # no manifest forgets a partition, also not of a source that is gone
        return "differs", f"source {source!r}, partition {partition}: nothing says any more where reading goes on"
    return _begins(manifest, audit, stood)


def _begins(manifest: Manifest, audit: Audit, stood: Mapping[Place, int]) -> tuple[Verdict, str | None]:
    """Compare where every partition began with where it stood; one that is new begins with its first record (P12)."""
    taken = {(each.source, each.partition): each.first for each in audit.sources}
    unknown = None
    for at in sorted(manifest.positions, key=lambda at: (at.source, at.partition)):
        place, where = (at.source, at.partition), f"source {at.source!r}, partition {at.partition}"
        first, begin = taken.get(place, at.offset), stood.get(place)
        if begin is None:
            if first != 0:
                unknown = f"{where}: it begins at offset {first}, and whether that was its first record nothing says"
        elif place not in taken and first != begin:
            return "differs", f"{where}: it moved on, and nothing was taken"
        elif first != begin:
            kind = "again" if first < begin else "not at all"
            between = f"{min(begin, first)} and {max(begin, first)}"
            return "differs", f"{where}: the records between offsets {between} were taken {kind}"
    return ("not provable", unknown) if unknown else ("proven", None)


def _stands(manifest: Manifest) -> dict[Place, int]:
    return {(at.source, at.partition): at.offset for at in manifest.positions}


def _ends(manifest: Manifest, audit: Audit) -> str | None:
    stands = _stands(manifest)
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

