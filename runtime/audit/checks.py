"""The checks that need manifests alone: epochs chain without a gap, and every operator accounts for its rows.

Invariants
    - A checkpoint whose predecessor is not kept is reported as not provable, never skipped.
    - A partition is never forgotten, and a new one begins with its first record.
    - Nothing here reads a source or a target.

Pure. Source: docs/decisions/0018-audit.md; PROTOCOL P8, P10, P12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from holdfast.checkpoint.audit import Audit, balance
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import NO_EPOCH
from holdfast.quantities import plural
from holdfast.runtime.audit.report import Line, Verdict

Place = tuple[str, int]
"""Source and partition."""
UNKNOWN = "the checkpoint has no digests: it was made with audit=off, or by an older version"


def chain(manifests: Sequence[Manifest], chosen: Iterable[int]) -> list[Line]:
    """Return for every chosen epoch whether it begins, in every partition, where its predecessor ended.

    Args:
        manifests: All kept manifests of the job's lineage, oldest first.
    """
    manifests_by_epoch = {int(manifest.epoch): manifest for manifest in manifests}
    stood: dict[int, dict[Place, int]] = {}  # last known position of every partition
    for manifest in manifests:
        stood[manifest.epoch] = stood.get(manifest.follows, {}) | _stands(manifest)
    lines = []
    for epoch in chosen:
        manifest = manifests_by_epoch[epoch]
        verdict, reason = _linked(manifest, manifests_by_epoch.get(manifest.follows), stood.get(manifest.follows, {}))
        more = (("timeline", manifest.timeline), ("follows", manifest.follows))
        lines.append(Line("epoch", "", None, epoch, verdict, reason, more=more))
    return lines


def _linked(manifest: Manifest, before: Manifest | None, stood: Mapping[Place, int]) -> tuple[Verdict, str | None]:
    audit = manifest.audited
    if audit is None:
        return "not provable", UNKNOWN
    if len({(each.source, each.partition) for each in audit.sources}) < len(audit.sources):
        return "differs", "two workers took records of one partition"
    if wrong := _ends(manifest, audit):
        return "differs", wrong
    if before is None and manifest.follows != NO_EPOCH:
        return "not provable", f"its predecessor, checkpoint {manifest.follows}, is no longer kept"
    missing = set() if before is None else _stands(before).keys() - _stands(manifest).keys()
    for source, partition in sorted(missing):  # a manifest keeps every partition, even of a removed source
        return "differs", f"source {source!r}, partition {partition}: the offset at which reading resumes is missing"
    return _begins(manifest, audit, stood)


def _begins(manifest: Manifest, audit: Audit, stood: Mapping[Place, int]) -> tuple[Verdict, str | None]:
    """Compare where every partition began with its last offset; a new one begins with its first record (P12)."""
    first_offsets = {(each.source, each.partition): each.first for each in audit.sources}
    unknown = None
    for at in sorted(manifest.positions, key=lambda at: (at.source, at.partition)):
        place, where = (at.source, at.partition), f"source {at.source!r}, partition {at.partition}"
        first, begin = first_offsets.get(place, at.offset), stood.get(place)
        if begin is None:
            if first != 0:
                unknown = f"{where}: it begins at offset {first}, which cannot be shown to be its first record"
        elif place not in first_offsets and first != begin:
            return "differs", f"{where}: its offset moved, but no records were taken"
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
                f"reading resumes at {at}"
            )
    return None


def balances(manifest: Manifest) -> list[Line]:
    """Return for every operator of an epoch whether rows in = out + late + dropped + dead letters."""
    audit = manifest.audited
    if audit is None:
        return []
    rows_by_source: dict[str, int] = {}
    for each in audit.sources:
        rows_by_source[each.source] = rows_by_source.get(each.source, 0) + each.taken.rows
    edges = {count.name: count for count in audit.operators if count.kind == "edge"}
    lines = []
    for count in audit.operators:
        left, verdict, reason = balance(count, edges), "proven", None
        if left:
            verdict, reason = "differs", f"not accounted for: {plural(abs(left), 'row')} of {count.rows_in:,}"
        elif count.kind == "source" and count.rows_in != rows_by_source.get(count.name, 0):
            records = plural(rows_by_source.get(count.name, 0), "record")
            verdict, reason = "differs", f"{records} taken, {count.rows_in:,} came in"
        elif left is None:
            verdict, reason = "not provable", "it may emit more or fewer rows than it takes"
        more = (
            ("kind", count.kind),
            ("rows_in", count.rows_in),
            ("rows_out", count.rows_out),
            ("late", count.late),
            ("dropped", count.dropped),
            ("dlq", count.dlq),
            ("pending", 0 if left is not None else None),
            ("balance", left),
        )
        found: Verdict = verdict  # type: ignore[assignment]
        lines.append(Line("operator", count.name, None, manifest.epoch, found, reason, count.rows_in, more=more))
    return lines
