"""Whether a replay did what production did: digests, row counts and state of an epoch, compared.

The digests of a checkpoint say which records an epoch took and which rows it gave its sinks, as sets: the order within
an epoch is not recorded. State is compared key by key.

Invariants
    - Unknown is never equal: what a checkpoint has no digest of is reported as not compared.
    - Two things are not compared: processing time itself, and the text of dead letters, of which the number counts.
    - One difference is enough for the verdict; every sink and operator is compared nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.checkpoint.audit import Audit
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import read_each
from holdfast.errors import Damaged, Unavailable
from holdfast.model import Epoch, ObjectRef, RowDigest, Subtask
from holdfast.runtime.inspect.comparison import differences
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import Stored
from holdfast.runtime.operators.contract import is_part, operator_of, part_name
from holdfast.runtime.operators.processing_clock import NOW
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.replay.rounding import close, same_rows
from holdfast.runtime.rows.dead_letters import DLQ
from holdfast.sinks.contract.target import DELETE, OP
from holdfast.storage.digests import NOTHING, whole
from holdfast.storage.rowhash import row_hashes

Rows = Callable[[str], list[pa.RecordBatch]]
Kind = Literal["source", "sink", "operator"]


@dataclass(frozen=True)
class Difference:
    """A difference between a replay and production.

    Args:
        name: The source, sink or operator.
        what: The difference, with both values.
        rounding: Whether it is the rounding of floating point numbers alone.
    """

    kind: Kind
    name: str
    what: str
    rounding: bool = False


@dataclass(frozen=True)
class Proof:
    """The comparison of one epoch.

    Args:
        epoch: That of the job.
        rounded: Differences by rounding alone, which are none: the order of additions is not recorded.
        compared: How many sources, sinks and operators were compared.
        unknown: Why some were not; None if all were.
        in_order: Whether the replay took all input in the recorded order, so that it is exact.
        unlike: Why it did not, although that was recorded; None if it did, or it was not recorded.
    """

    epoch: Epoch
    differences: tuple[Difference, ...]
    rounded: tuple[Difference, ...]
    compared: int
    unknown: str | None = None
    in_order: bool = False
    unlike: str | None = None

    @property
    def exact(self) -> bool:
        """Return whether everything was compared, and nothing differs, but for rounding."""
        return not self.differences and self.unknown is None


def proof(
    stored: Stored,
    manifest: Manifest,
    replay: Stored,
    replayed: Sequence[Epoch],
    specs: Sequence[SinkSpec],
    rows: Rows,
    *,
    state: bool = True,
    key_groups: tuple[int, int] | None = None,
    in_order: bool = False,
) -> Proof:
    """Compare an epoch of a job with its replay.

    Args:
        manifest: That of the epoch.
        replay: The job in memory.
        replayed: The numbers of its epochs which, together, are the whole span of the epoch.
        specs: The sinks.
        rows: Returns the rows that the replay gave a sink.
        state: Whether the state is compared, which takes as long as reading it twice.
        key_groups: Compare the state of these [first, end) alone, and no sink; None: all.
        in_order: Whether the replay took its input in the recorded order: then rows have to leave in theirs.
    """
    manifests = [_manifest(replay, epoch) for epoch in replayed]
    again = [each.audited for each in manifests]
    all_differences: list[Difference] = []
    unknown, count = None, 0
    if manifest.audited is None or not all(again):
        unknown = "the checkpoint has no digests of sources and sinks (audit is off)"
    else:
        audits = [manifest.audited], [each for each in again if each is not None]
        all_differences += _sources(*audits)
        if any(_counts_alone(manifest.audited, each) for each in audits[1]):
            unknown = "the checkpoint has counts of records and rows, and no digests of them (audit is counts)"
        count += len({each.source for each in manifest.audited.sources})
        if key_groups is None:
            staged = partial(_is_rounding, stored, manifest, {spec.name: spec for spec in specs}, rows)
            all_differences += _sinks(*audits, staged)
            if in_order:
                others = {each.name for each in all_differences if each.kind == "sink"}
                equal = [spec for spec in specs if spec.name not in others]
                all_differences += _orders(stored, manifest, replay, manifests, equal)
            count += len({each.writer.sink for each in manifest.audited.sinks})
    for each in manifest.operators if state else ():
        if not each.dropped and each.name != part_name(operator_of(each.name), NOW):
            count += 0 if is_part(each.name) else 1
            all_differences += _state((stored, manifest.epoch), (replay, replayed[-1]), each.name, key_groups)
    rounded = tuple(each for each in all_differences if each.rounding)
    real = tuple(each for each in all_differences if not each.rounding)
    return Proof(manifest.epoch, real, rounded, count, unknown, in_order)


def _manifest(replay: Stored, epoch: Epoch) -> Manifest:
    done = replay.job.checkpoint(epoch)
    assert done is not None, "it was played"
    return replay.repository.load_manifest(done.body.manifest)


def _sources(expected: Sequence[Audit], found: Sequence[Audit]) -> Iterator[Difference]:
    before, after = _by_partition(expected), _by_partition(found)
    for source, partition in sorted(before.keys() | after.keys()):
        one, other = before.get((source, partition), NOTHING), after.get((source, partition), NOTHING)
        if _differ(one, other):
            what = f"partition {partition} gave other records: {_shown(one)} then, {_shown(other)} now"
            yield Difference("source", source, what)


def _by_partition(audits: Sequence[Audit]) -> dict[tuple[str, int], RowDigest]:
    parts: dict[tuple[str, int], list[RowDigest]] = {}
    for each in (each for audit in audits for each in audit.sources):
        parts.setdefault((each.source, each.partition), []).append(each.taken)
    return {place: whole(each) for place, each in parts.items()}


def _sinks(
    expected: Sequence[Audit], found: Sequence[Audit], is_rounding: Callable[[str], bool]
) -> Iterator[Difference]:
    before, after = _by_sink(expected), _by_sink(found)
    for sink in sorted(before.keys() | after.keys()):
        one, other = before.get(sink, NOTHING), after.get(sink, NOTHING)
        if sink == DLQ and one.rows == other.rows:  # the text of an error depends on where the code was loaded from
            continue
        if _differ(one, other):
            what = f"other rows: {_shown(one)} then, {_shown(other)} now"
            yield Difference("sink", sink, what, one.rows == other.rows and is_rounding(sink))


def _is_rounding(stored: Stored, manifest: Manifest, specs: Mapping[str, SinkSpec], rows: Rows, sink: str) -> bool:
    """Return whether the rows that were staged are those of the replay, but for rounding."""
    if (spec := specs.get(sink)) is None:
        return False
    pending = [each for each in manifest.pending if each.writer.sink == sink and each.tag.epoch == manifest.epoch]
    parts = [part for each in pending for part in each.staged.parts]
    try:
        staged_batches = [batch for data in read_each(stored.store, parts) for batch in spec.decode(data)]
    except (Damaged, Unavailable):
        return False  # the digests differ, and the rows cannot be looked at
    row_batches = rows(sink)
    return (
        bool(staged_batches)
        and bool(row_batches)
        and same_rows(pa.Table.from_batches(staged_batches), pa.Table.from_batches(row_batches))
    )


def _orders(
    stored: Stored, manifest: Manifest, replay: Stored, again: Sequence[Manifest], specs: Sequence[SinkSpec]
) -> Iterator[Difference]:
    """Compare the order of rows that are equal as sets, as far as the staged output of both can be read."""
    for spec in specs:
        try:
            before, after = _staged(stored, [manifest], spec), _staged(replay, again, spec)
        except (Damaged, Unavailable):
            continue
        if before.size == after.size and (before != after).any():
            place = int((before != after).argmax())
            yield Difference("sink", spec.name, f"the same rows in another order, from row {place + 1:,} on")


def _staged(stored: Stored, manifests: Sequence[Manifest], spec: SinkSpec) -> NDArray[np.uint64]:
    """Return the hashes of the rows that epochs staged for a sink, writer by writer; nothing if they have none."""
    parts: dict[Subtask, list[ObjectRef]] = {}
    for manifest in manifests:
        for each in manifest.pending:
            if each.writer.sink == spec.name and each.tag.epoch == manifest.epoch:
                parts.setdefault(each.writer.subtask, []).extend(each.staged.parts)
    refs = [ref for subtask in sorted(parts) for ref in parts[subtask]]
    hashes = [_hashed(batch, spec) for data in read_each(stored.store, refs) for batch in spec.decode(data)]
    return np.concatenate([each for each in hashes if each is not None] or [np.empty(0, np.uint64)])


def _hashed(batch: pa.RecordBatch, spec: SinkSpec) -> NDArray[np.uint64] | None:
    """Return the hash of every row; of a delete only the key counts."""
    hashes = row_hashes(batch)
    if hashes is None or spec.upsert_key is None:
        return hashes
    deletes = np.asarray(batch.column(OP)) == DELETE
    keys = row_hashes(batch.select([*spec.upsert_key, OP]))
    return hashes if keys is None else np.where(deletes, keys, hashes)


def _by_sink(audits: Sequence[Audit]) -> dict[str, RowDigest]:
    parts: dict[str, list[RowDigest]] = {}
    for each in (each for audit in audits for each in audit.sinks):
        parts.setdefault(each.writer.sink, []).extend(each.parts)
    return {sink: whole(each) for sink, each in parts.items()}


def _state(
    then: tuple[Stored, Epoch], now: tuple[Stored, Epoch], operator: str, key_groups: tuple[int, int] | None
) -> Iterator[Difference]:
    one, other = (reading_of(job, operator, str(epoch), key_groups=key_groups) for job, epoch in (then, now))
    keys, first, rounding = 0, None, True
    for batch in differences(one, other):
        keys += batch.num_rows
        rounding = rounding and close(batch.column("before"), batch.column("after"))
        first = first or batch.slice(0, 1).to_pylist()[0]
    if first is not None:
        more = f" and {keys - 1:,} other keys" if keys > 1 else ""
        what = f"key {first['key']} has other state{more}: {first['before']} then, {first['after']} now"
        yield Difference("operator", operator, what, rounding)


def _differ(one: RowDigest, other: RowDigest) -> bool:
    """Return whether digests are those of other rows, as far as both have more than a count."""
    return one.rows != other.rows or (None not in (one.sum, other.sum) and one != other)


def _counts_alone(audit: Audit, again: Audit) -> bool:
    """Return whether a checkpoint has only counted rows of which the replay has digests."""
    after = {(each.source, each.partition): each.taken for each in again.sources}
    return any(
        each.taken.rows and each.taken.sum is None and after.get((each.source, each.partition), NOTHING).sum is not None
        for each in audit.sources
    )


def _shown(digest: RowDigest) -> str:
    total = "" if digest.sum is None else f" with digest {digest.sum:016x}"
    return f"{digest.rows:,} rows{total}"
