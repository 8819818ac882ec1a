"""Reads sources and targets back and compares them with the digests of the kept checkpoints.

Expected digests come from manifests alone; found digests are computed from the rows of the source or target. Staged
output is read only where a delivery consists of several parts, or where rows of one delivery replace each other: the
rows that remain are then computed from the parts, after each part is checked against its own digest.

Invariants
    - Nothing is written.
    - Rows that can no longer be read are not provable; rows that can be read and do not match differ.

Source: docs/decisions/0018-audit.md; PROTOCOL P18 (staged output is kept as long as its manifest), P20, P21.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.checkpoint.audit import Audit, SinkStaged, SourceTaken
from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged
from holdfast.model import NO_EPOCH, Epoch, Pending, RowDigest, Tag
from holdfast.quantities import plural
from holdfast.runtime.audit.checks import UNKNOWN
from holdfast.runtime.audit.report import Line, Verdict, compared
from holdfast.runtime.plan.immediate import is_immediate
from holdfast.runtime.plan.model import SinkSpec, SourceSpec
from holdfast.runtime.plan.source import OpenSource, Source, same_from
from holdfast.runtime.sources.reading import split
from holdfast.runtime.worker.digests import COUNTS, ROWS, records_digested
from holdfast.sinks.contract.audited import AuditQuery, Audits, Delivery, Gone, TargetContents
from holdfast.sinks.contract.sink import Sink
from holdfast.sinks.protocol.staging import audited, decode, last_per_key
from holdfast.storage.digests import NOTHING, added, removed, whole

READ_BYTES_MAX = 4 << 20
AT_ONCE = "rows are written immediately: later rows of a key replace earlier ones, which are not recorded"


def sources(specs: Iterable[SourceSpec], manifests: Sequence[Manifest]) -> list[Line]:
    """Read every range of every source partition again, and compare."""
    by_name = {spec.name: spec.source for spec in specs}
    lines: list[Line] = []
    open_sources: dict[str, OpenSource | str] = {}
    try:
        for manifest in manifests:
            for each in manifest.audited.sources if manifest.audited is not None else ():
                if each.source not in open_sources:
                    open_sources[each.source] = _opened(by_name.get(each.source))
                source = open_sources[each.source]
                if isinstance(source, str):
                    lines.append(_line_of_source(each, manifest.epoch, "not provable", source))
                else:
                    lines.append(_source_line(by_name[each.source], source, each, manifest.epoch))
    finally:
        for source in open_sources.values():
            if not isinstance(source, str):
                source.close()
    return lines


def _opened(source: Source | None) -> OpenSource | str:
    """Return the open source, or why it cannot be opened."""
    if source is None:
        return "the job's code no longer has this source"
    try:
        return source.unpaced().open()
    except ConfigError as error:
        return f"no longer readable: {error.what}"


def _source_line(source: Source, opened: OpenSource, taken: SourceTaken, epoch: Epoch) -> Line:
    lost = taken.lost_ranges
    first = lost[-1][1] if lost else taken.first
    removed_too = bool(lost) and lost[0] != (taken.first, first)  # the records that were read between lost ranges
    if removed_too or (same_from(opened, taken.partition) > first and taken.end > first):
        cause = opened.gone(taken.partition) or "records older than retention, or compacted"
        return _line_of_source(taken, epoch, "not provable", f"no longer readable: {cause}")
    try:
        digest = _read_again(opened, taken, first)
    except Damaged as error:
        return _line_of_source(taken, epoch, "differs", error.what)
    verdict, why = compared(taken.taken, digest)
    return _line_of_source(taken, epoch, verdict, why, digest)


def _line_of_source(
    taken: SourceTaken, epoch: Epoch, verdict: Verdict, reason: str | None, found: RowDigest | None = None
) -> Line:
    rows = None if found is None else found.rows
    if taken.lost_ranges:
        verdict = "differs" if verdict == "differs" else "not provable"
        reason = "; ".join(each for each in (_lost(taken), reason) if each)
    return Line("source", taken.source, taken.partition, epoch, verdict, reason, taken.taken.rows, rows, _range(taken))


def _lost(taken: SourceTaken) -> str:
    ranges = ", ".join(f"{first:,} to {end - 1:,}" for first, end in taken.lost_ranges)
    return f"offsets {ranges} were removed before they were read"


def _range(taken: SourceTaken) -> tuple[tuple[str, Any], ...]:
    """Return the members of the JSON object for the offsets that an epoch passed."""
    lost = [list(each) for each in taken.lost_ranges]
    return (("from_offset", taken.first), ("to_offset", taken.end), *((("lost", lost),) if lost else ()))


def _read_again(source: OpenSource, taken: SourceTaken, first: int) -> RowDigest:
    how = COUNTS if taken.taken.sum is None else ROWS
    digest, offset = NOTHING if how == ROWS else RowDigest(0), first
    while offset < taken.end:
        batch, following = source.read(taken.partition, offset, READ_BYTES_MAX)
        if batch is None:
            break
        records, places = split(batch)
        if places is not None:
            records = records.slice(0, int(np.searchsorted(places, taken.end)))
        elif following > taken.end:
            records = records.slice(0, taken.end - offset)
        digest, offset = added(digest, records_digested(records, how)), following
    return digest


@dataclass(frozen=True)
class Expected:
    """One delivery, as the checkpoints record it."""

    epoch: Epoch
    at: Delivery
    staged: SinkStaged

    @property
    def digest(self) -> RowDigest:
        """Return the digest of all parts together."""
        return whole(self.staged.parts) if self.staged.parts else NOTHING


def sinks(
    repository: Repository, job: Job, specs: Iterable[SinkSpec], manifests: Sequence[Manifest], chosen: set[int]
) -> list[Line]:
    """Read every target back, and compare.

    Args:
        manifests: All kept manifests of the lineage, oldest first.
        chosen: Epochs to report on.
    """
    by_name = {spec.name: spec for spec in specs}
    names = {s.writer.sink for m in manifests if m.audited is not None for s in m.audited.sinks} | by_name.keys()
    lines: list[Line] = []
    for name in sorted(names):
        spec = by_name.get(name)
        if spec is None:
            lines += _all(name, manifests, chosen, "the job's code no longer has this sink")
        elif is_immediate(spec):
            lines += _all(name, manifests, chosen, AT_ONCE)
        elif (audits := spec.sink.audits) is None:
            lines += _all(name, manifests, chosen, "this kind of target cannot be read back")
        elif job.repair_due:
            lines += _all(name, manifests, chosen, "a rewind has begun, and no checkpoint has completed it yet")
        else:
            lines += _SinkAudit(repository, job, spec, manifests, chosen).lines(audits, by_name.values())
    return lines


def _beside(sink: Sink, name: str, specs: Iterable[SinkSpec]) -> tuple[frozenset[str], frozenset[str]]:
    """Return which other sinks of the job write to the same target, and which do not."""
    others = {spec.name: "" if spec.sink.audits is None else spec.sink.where for spec in specs}
    same = frozenset(other for other, where in others.items() if where == sink.where and other != name)
    # SQLite ignores case in table names, and some file systems ignore it in paths.
    return same, frozenset(other for other, where in others.items() if where.casefold() != sink.where.casefold())


def _all(name: str, manifests: Sequence[Manifest], chosen: set[int], reason: str) -> list[Line]:
    return [
        Line("sink", name, each.writer.subtask, manifest.epoch, "not provable", reason, whole(each.parts).rows)
        for manifest in manifests
        if manifest.epoch in chosen and manifest.audited is not None
        for each in manifest.audited.sinks
        if each.writer.sink == name
    ]


class _SinkAudit:
    """The audit of one sink."""

    def __init__(
        self, repository: Repository, job: Job, spec: SinkSpec, manifests: Sequence[Manifest], chosen: set[int]
    ) -> None:
        self._repository, self._job, self._spec = repository, job, spec
        self._manifests, self._chosen = {manifest.epoch: manifest for manifest in manifests}, chosen
        self._newest, self._everything = manifests[-1], len(chosen) == len(manifests)
        self._expected = [
            Expected(m.epoch, (s.writer.subtask, Tag(m.timeline, m.epoch)), s)
            for m in manifests
            if m.audited is not None
            for s in m.audited.sinks
            if s.writer.sink == spec.name
        ]

    def lines(self, audits: Audits, specs: Iterable[SinkSpec]) -> list[Line]:
        """Return a line for every delivery, and for everything else that the target contains.

        Args:
            specs: All sinks of the job.
        """
        spec = self._spec
        oldest = min((each.epoch for each in self._expected if each.epoch in self._chosen), default=self._newest.epoch)
        after, which = Epoch(oldest - 1), _beside(spec.sink, spec.name, specs)
        query = AuditQuery(self._job.uuid, spec.name, spec.schema, spec.upsert_key, after, self._everything, *which)
        try:
            contents = audits.contents(query)
        except Gone as gone:
            return [Line("sink", spec.name, None, None, "differs", str(gone))]
        except Damaged as error:
            return [Line("sink", spec.name, None, None, "differs", error.what)]
        except ConfigError as error:
            return [Line("sink", spec.name, None, None, "not provable", error.what)]
        lines = [self._line(each, contents) for each in self._expected if each.epoch in self._chosen]
        return [*lines, *self._unexpected(contents, oldest), *self._rest(contents)]

    def _line(self, each: Expected, contents: TargetContents) -> Line:
        subtask, tag = each.at
        found = contents.rows.get(each.at)
        verdict, reason = self._verdict(each, contents, found)
        rows = None if found is None else found.rows
        more = (("timeline", tag.timeline),)
        return Line("sink", self._spec.name, subtask, each.epoch, verdict, reason, each.digest.rows, rows, more)

    def _verdict(self, each: Expected, contents: TargetContents, found: RowDigest | None) -> tuple[Verdict, str | None]:
        subtask, tag = each.at
        if each.at in contents.wrong:
            return "differs", contents.wrong[each.at]
        if subtask not in contents.standing or contents.standing[subtask] < tag:
            if self._is_pending(each):
                return "not provable", "not delivered yet"
            return "differs", f"epoch {tag.epoch} was delivered, but its tag is no longer in the target"
        if subtask in contents.lost and tag <= contents.lost[subtask]:
            return "not provable", "the target no longer keeps records of deliveries this old"
        expected, wrong = self._left(each)
        if wrong is not None:
            return "not provable", wrong
        return compared(expected, NOTHING if found is None else found)

    def _is_pending(self, each: Expected) -> bool:
        subtask, tag = each.at
        return any((item.writer.subtask, item.tag) == (subtask, tag) for item in self._pending(self._newest))

    def _pending(self, manifest: Manifest) -> list[Pending]:
        return [item for item in manifest.pending if item.writer.sink == self._spec.name]

    def _left(self, each: Expected) -> tuple[RowDigest, str | None]:
        """Return the rows of a delivery that remain after rows of one key have replaced each other."""
        key, upsert = self._spec.sink.key, self._spec.upsert_key is not None
        if not (upsert or self._spec.sink.traits.keyed) or (upsert and len(each.staged.parts) == 1):
            return each.digest, None
        manifest = self._manifests[each.epoch]
        staged_output = next((i.staged for i in self._pending(manifest) if (i.writer.subtask, i.tag) == each.at), None)
        if staged_output is None:
            return each.digest, "its rows replace each other, and the checkpoint does not name the staged output"
        parts = []
        for ref, digest in zip(staged_output.parts, each.staged.parts, strict=True):
            part = pa.Table.from_batches(decode(self._repository.read(ref)))
            if compared(digest, audited(part, self._spec.upsert_key))[0] != "proven":
                return each.digest, f"{ref.path} does not match its digest in the checkpoint"
            parts.append(part)
        assert key is not None
        rows = last_per_key(pa.concat_tables(parts), key)
        full = audited(rows, self._spec.upsert_key)
        return (RowDigest(full.rows) if each.digest.sum is None else full), None

    def _unexpected(self, contents: TargetContents, oldest: int) -> list[Line]:
        """Find output that no kept checkpoint lists although it is not older than they are."""
        expected_tags = {each.at for each in self._expected}
        spans = [(m.follows, m.epoch) for m in self._manifests.values() if m.audited is not None]
        lines = []
        for (subtask, tag), digest in sorted(contents.rows.items()):
            inside = tag.epoch >= oldest and any(follows < tag.epoch <= epoch for follows, epoch in spans)
            if inside and (subtask, tag) not in expected_tags:
                reason = f"rows of epoch {tag.epoch}, timeline {tag.timeline}, which is not in the job's lineage"
                lines.append(Line("sink", self._spec.name, subtask, tag.epoch, "differs", reason, 0, digest.rows))
        if contents.untagged:
            reason = f"{plural(contents.untagged, 'row')} among the job's without a tag, which belong to no epoch"
            lines.append(Line("sink", self._spec.name, None, None, "differs", reason, 0, contents.untagged))
        return lines

    def _rest(self, contents: TargetContents) -> list[Line]:
        """Compare the rows that no kept checkpoint wrote with the rows that the job staged before the kept ones."""
        audit = self._newest.audited
        if not self._everything:
            return []
        if contents.others is None:
            return self._unseen(contents)
        if audit is None:
            return []
        name, reason = self._spec.name, None
        total = self._total(audit)
        target_digests = [digest for (_, tag), digest in contents.rows.items() if tag.epoch <= self._newest.epoch]
        still = [item for item in self._pending(self._newest) if self._is_open(item, contents)]
        open_ = [e for e in self._expected if any((i.writer.subtask, i.tag) == e.at for i in still)]
        if audit.since != NO_EPOCH:
            reason = f"output staged up to epoch {audit.since} was not counted"
        elif len(open_) < len(still):
            reason = "output of checkpoints that are no longer kept is not delivered yet"
        if reason is not None:
            return [Line("sink", name, None, None, "not provable", f"rows of older checkpoints: {reason}")]
        earlier = reduce(removed, [*target_digests, *(each.digest for each in open_)], total)
        return [_older(name, earlier, contents)]

    def _unseen(self, contents: TargetContents) -> list[Line]:
        """Report rows that no kept checkpoint describes as not provable; nothing if there are none."""
        audit, rows, reason = self._newest.audited, None, "no kept checkpoint describes them"
        if audit is None:
            reason = UNKNOWN
        elif audit.since != NO_EPOCH:
            reason = f"output staged up to epoch {audit.since} was not counted"
        else:
            rows = self._total(audit).rows - sum(each.digest.rows for each in self._expected)
        reason = f"rows of older checkpoints: {reason}"
        if rows == 0 and not contents.unseen:
            return []
        if contents.unseen:
            under = f"{plural(contents.unseen, 'row')} under keys that no kept checkpoint of it wrote"
            reason = under if rows == 0 else f"{reason}; {under}"
        return [Line("sink", self._spec.name, None, None, "not provable", reason, rows, contents.unseen)]

    def _total(self, audit: Audit) -> RowDigest:
        return next((each.staged for each in audit.totals if each.sink == self._spec.name), NOTHING)

    def _is_open(self, item: Pending, contents: TargetContents) -> bool:
        standing = contents.standing.get(item.writer.subtask)
        return standing is None or standing < item.tag


def _older(name: str, earlier: RowDigest, contents: TargetContents) -> Line:
    """Compare the rows of older checkpoints; the rows before them may be older than the job."""
    assert contents.others is not None
    hashes, strangers = contents.others.hashes, len(contents.others.hashes) - earlier.rows
    verdict: Verdict
    if strangers < 0 or strangers > contents.others.older:
        than = "than the job added before the kept checkpoints"
        verdict, reason = "differs", f"{plural(abs(strangers), 'row')} {'more' if strangers > 0 else 'fewer'} {than}"
    else:
        left = hashes[strangers:]
        found = RowDigest(len(left), int(left.sum(dtype=np.uint64)), int(np.bitwise_xor.reduce(left)))
        verdict, why = compared(earlier, found)
        before = f"; {plural(strangers, 'row')} existed before" if strangers else ""
        reason = f"rows of older checkpoints{': ' + why if why else ''}{before}"
    if verdict == "differs" and strangers >= 0 and contents.others.mixed is not None:
        verdict = "not provable"
        reason = f"rows of older checkpoints: {contents.others.mixed} added rows too, and no record of which is kept"
    return Line("sink", name, None, None, verdict, reason, earlier.rows, len(hashes))


def unread(manifests: Sequence[Manifest], reason: str) -> list[Line]:
    """Return lines for sources and sinks that are not read at all."""
    lines: list[Line] = []
    for manifest in manifests:
        for taken in manifest.audited.sources if manifest.audited is not None else ():
            lines.append(_line_of_source(taken, manifest.epoch, "not provable", reason))
        for each in manifest.audited.sinks if manifest.audited is not None else ():
            where_to = each.writer.sink, each.writer.subtask, manifest.epoch
            lines.append(Line("sink", *where_to, "not provable", reason, whole(each.parts).rows))
    return lines
