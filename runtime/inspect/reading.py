"""Reads the state of an operator as of a checkpoint, also while the job runs.

`at_checkpoint` finds the checkpoint and gathers what the read needs. Until all its objects are held, the checkpoint may
expire; then a read without a chosen epoch starts over on the newest checkpoint, and one with a chosen epoch is refused.

Invariants
    - Rows are given only once every object of the read was verified: an answer is never wrong or partial.
    - An answer is the state of one epoch, and names it and its timeline.

Source: docs/decisions/0037-state-inspection.md; PROTOCOL P2, P16, P25.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.errors import ConfigError, Damaged, Unavailable, Where
from holdfast.model import NO_EPOCH, Epoch, SegmentRef, SnapshotHandle, Timeline
from holdfast.runtime.inspect import keys
from holdfast.runtime.inspect.objects import held
from holdfast.runtime.inspect.stored import LATEST, Stored, checkpoint_of
from holdfast.runtime.inspect.topic import with_topic
from holdfast.runtime.inspect.view import View, view_of
from holdfast.runtime.operators.contract import is_part
from holdfast.state.blocks import BlockReader, StateRows
from holdfast.state.changelog import Block, opened
from holdfast.state.keys.batch import Keys
from holdfast.state.merged import merged
from holdfast.state.tables.spec import TableSpec

EXPIRED_MEANWHILE_MAX = 5
"""How often a read starts over because a running job expired the checkpoint that it was reading."""
BATCH_ROWS = 8_192
T = TypeVar("T")


@dataclass(frozen=True)
class StateCheckpoint:
    """The checkpoint that an answer is the state of."""

    job: str
    epoch: Epoch
    timeline: Timeline
    at: int
    """When it was completed; microseconds since 1970, UTC."""
    abandoned: bool
    """Whether a rewind abandoned it: it is not part of the job's history any longer."""
    names: tuple[str, ...]


@dataclass(frozen=True)
class StatePiece:
    """The rows of one operator in one stored object, for the key groups [first, end)."""

    epoch: Epoch
    is_base: bool
    data: pa.Buffer
    block: Block
    key_groups: tuple[int, int]


@dataclass(frozen=True)
class SubtaskPieces:
    """The pieces of one subtask, oldest first."""

    handle: SnapshotHandle
    pieces: tuple[StatePiece, ...]
    spec: TableSpec
    """Names and types of the values."""

    def rows(self, *, keys_only: bool = False) -> Iterator[StateRows]:
        """Yield the rows, sorted by key group and key."""
        readers = [
            BlockReader(pa.BufferReader(p.data), p.block, p.key_groups, keys_only=keys_only, spec=self.spec)
            for p in self.pieces
        ]
        return merged(readers)


@dataclass(frozen=True)
class StateReading:
    """The state of one operator, with all objects that it needs.

    Args:
        parts: In the order of their key groups.
        key: Give only the rows of this key; None: all.
    """

    at: StateCheckpoint
    view: View
    parts: tuple[SubtaskPieces, ...]
    key: Keys | None = None

    def rows(self) -> Iterator[StateRows]:
        """Yield the rows, sorted by key group and key; never an empty part."""
        for part in self.parts:
            for rows in part.rows():
                found = rows if self.key is None else of_key(rows, self.key)
                if found is not None:
                    yield found

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they are shown."""
        return gathered(map(self.view.table, self.rows()))


def gathered(batches: Iterator[pa.RecordBatch], rows_min: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of at least `rows_min`, except for the last."""
    buffer: list[pa.RecordBatch] = []
    for batch in batches:
        buffer.append(batch)
        if sum(each.num_rows for each in buffer) >= rows_min:
            yield pa.concat_batches(buffer)
            buffer = []
    if buffer:
        yield pa.concat_batches(buffer)


def at_checkpoint(stored: Stored, wanted: str | None, read: Callable[[StateCheckpoint, Manifest], T]) -> T:
    """Gather what a read of a checkpoint needs.

    Args:
        wanted: Epoch, name of a savepoint, or "latest"; None: the newest, whichever that is by the end.
        read: Gathers; raises Damaged if an object is missing or differs.

    Raises:
        ConfigError: there is no such checkpoint, or it expired meanwhile.
        Damaged: an object of a checkpoint that is still kept is missing or differs.
        Unavailable: checkpoints expire faster than they can be read.
    """
    job = stored.job
    for _ in range(EXPIRED_MEANWHILE_MAX):
        checkpoint = checkpoint_of(job, LATEST if wanted is None else wanted)
        try:
            manifest = stored.repository.load_manifest(checkpoint.body.manifest)
            return read(_at(job, checkpoint), manifest)
        except Damaged as error:
            job = stored.repository.read_log() or job
            if checkpoint.body in (each.body for each in job.retained):
                raise _damaged(job, checkpoint, error) from error
            # A chosen epoch is now refused as expired; "latest" names another one.
    raise Unavailable(
        f"job {job.name!r} expired {EXPIRED_MEANWHILE_MAX} checkpoints in a row while they were read",
        not_done="no state was read",
        next_step=f"keep one to read: holdfast savepoint {job.name} NAME, then --epoch NAME; or raise retained_for_ms",
        where=Where(job=job.name),
    )


def reading_of(
    stored: Stored,
    operator: str,
    wanted: str | None = None,
    *,
    key: str | None = None,
    key_groups: tuple[int, int] | None = None,
) -> StateReading:
    """Return the state of an operator, with all objects that it needs.

    Args:
        wanted: As for `at_checkpoint`.
        key: Give only the rows of this key, as a user types it.
        key_groups: Give only the rows of the key groups [first, end).

    Raises:
        ConfigError: there is no such checkpoint or operator, or the key does not fit.
        Damaged: an object differs from what was written.
    """

    def read(at: StateCheckpoint, manifest: Manifest) -> StateReading:
        view = view_of(operator_in(manifest, operator, at))
        parsed_key = None if key is None else keys.parsed(key, view.routed)
        span = key_groups or (0, manifest.key_groups)
        if parsed_key is not None:
            group = int(parsed_key.key_groups(manifest.key_groups)[0])
            span = (group, group + 1)
        holding, whole = with_topic(stored, manifest, span)
        return StateReading(at, view, parts_of(whole, objects_of(holding, whole, span), view.spec, span), parsed_key)

    return at_checkpoint(stored, wanted, read)


def objects_of(stored: Stored, manifest: Manifest, span: tuple[int, int]) -> dict[str, pa.Buffer]:
    """Return the bytes of every object with state of the key groups [first, end). Raises Damaged."""
    return held(stored.store, (ref.object for handle in manifest.state for ref, _ in within(handle, span)))


def parts_of(
    manifest: Manifest, objects: Mapping[str, pa.Buffer], spec: TableSpec, span: tuple[int, int]
) -> tuple[SubtaskPieces, ...]:
    """Return the pieces of an operator that hold rows of the key groups [first, end).

    Args:
        objects: The result of `objects_of` for these key groups.
        spec: The operator's declaration as of the checkpoint.
    """
    parts = []
    for handle in sorted(manifest.state, key=lambda each: each.key_groups):
        handle_pieces = []
        for ref, groups in within(handle, span):
            data = objects[ref.object.path]
            handle_pieces += [
                StatePiece(ref.epoch, ref.follows == NO_EPOCH, data, block, groups)
                for block in opened(data).blocks
                if block.operator == spec.operator
            ]
        parts.append(SubtaskPieces(handle, tuple(handle_pieces), spec))
    return tuple(parts)


def operator_in(manifest: Manifest, name: str, at: StateCheckpoint) -> OperatorState:
    """Return the operator of this name. Raises ConfigError, with the names that exist."""
    named = sorted((each for each in manifest.operators if each.name == name), key=lambda each: each.dropped)
    operator = next(iter(named), None)  # a name whose state was dropped may have state again
    where = Where(job=at.job, operator=name, epoch=at.epoch)
    names = sorted(each.name for each in manifest.operators if not each.dropped and not is_part(each.name))
    advice = f"operators with state at epoch {at.epoch}: {', '.join(names)}" if names else "no operator has state"
    if operator is None:
        what = f"job {at.job!r} has no state of an operator {name!r} at epoch {at.epoch}"
    elif operator.dropped:
        what = f"the state of operator {name!r} of job {at.job!r} was dropped before epoch {at.epoch}"
    else:
        return operator
    raise ConfigError(what, not_done="no state was read", next_step=advice, where=where)


def within(handle: SnapshotHandle, span: tuple[int, int]) -> Iterator[tuple[SegmentRef, tuple[int, int]]]:
    """Yield the pieces of a handle that count for some of these key groups, oldest first, and these."""
    for ref in pieces(handle):
        ranges = (span, handle.key_groups, ref.key_groups or handle.key_groups)
        first, end = max(each[0] for each in ranges), min(each[1] for each in ranges)
        if first < end:
            yield ref, (first, end)


def of_key(rows: StateRows, key: Keys) -> StateRows | None:
    same = rows.same_key(key)
    return rows.take(same) if same.size else None


def _at(job: Job, done: Completed) -> StateCheckpoint:
    epoch, abandoned = done.body.epoch, done.body.epoch in job.abandoned_epochs
    return StateCheckpoint(job.name, epoch, done.timeline, done.at, abandoned, job.names_of(epoch))


def _damaged(job: Job, done: Completed, error: Damaged) -> Damaged:
    epoch = done.body.epoch
    others = [str(each.body.epoch) for each in job.retained if each.body.epoch != epoch]
    other = f"; to read another epoch: --epoch {others[-1]}" if others else ""
    return Damaged(
        f"the checkpoint of epoch {epoch} of job {job.name!r} is damaged: {error.what}",
        not_done="no state was read",
        next_step=f"to see which checkpoints are intact: holdfast checkpoints verify {job.name}{other}",
        where=Where(job=job.name, epoch=epoch),
    )
