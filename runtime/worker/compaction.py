"""How a worker reads the stored pieces of a subtask's state: to restore, to follow, and to merge them.

A merge reads stored objects alone, so it needs nothing from the operator thread, and its output can be checked against
its input.

Source: DESIGN section 5; PROTOCOL P14, P16; docs/decisions/0007.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from holdfast.checkpoint.bases import Merge, pieces
from holdfast.checkpoint.repository import open_verified, write_object
from holdfast.errors import Damaged
from holdfast.model import NO_EPOCH, Epoch, ObjectRef, SegmentRef, WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.wire.messages import Deploy
from holdfast.runtime.worker.target import StateTarget, cut_of
from holdfast.runtime.worker.topic import Older, older
from holdfast.sinks.contract.changelogs import CompactedMeanwhile
from holdfast.state.changelog import SegmentHeader
from holdfast.state.compact import compact
from holdfast.state.store import Piece, StateStore
from holdfast.state.tables.spec import TableSpec
from holdfast.storage.hashing import ByteSink, Tee

Read: TypeAlias = Callable[[ObjectRef], pa.NativeFile]
"""Opens an object for reads at any place, after verifying all of it."""
Advanced: TypeAlias = Callable[[int, int], object]
"""Receives the bytes of all pieces restored so far, and of all pieces together."""
EVERY_SIZE = 1 << 62
ROUNDS_MAX = 3
"""Attempts at a restore that compactions of the topic interrupt."""


@dataclass
class CompactJob:
    """One merge. `run` may be repeated after an unknown outcome: name and bytes are the same each time."""

    deploy: Deploy
    worker: WorkerId
    merge: Merge
    specs: tuple[TableSpec, ...]
    copied_max: int = 0
    """Bytes of the object up to which `data` holds it."""
    data: bytes | None = None
    """The stored bytes; None if there are more than `copied_max`."""

    def run(self, store: ObjectStore) -> SegmentRef:
        """Read the pieces, store their merge, and return the reference by which a handle names it."""
        deploy, merge = self.deploy, self.merge
        header = SegmentHeader(
            deploy.job_uuid, deploy.generation, deploy.timeline, merge.through, merge.follows, self.worker
        )
        folder = "base" if merge.follows == NO_EPOCH else "merged"
        path = f"{folder}/{deploy.generation:08d}/{merge.through:012d}/{self.worker}.segment"
        key_groups = deploy.handle.key_groups
        merge_pieces = sorted(merge.pieces, key=lambda piece: piece.epoch)

        def merged_into(out: ByteSink) -> None:
            with ExitStack() as stack:
                opened = (stack.enter_context(open_verified(store, piece.object)) for piece in merge_pieces)
                spans = (piece.key_groups or key_groups for piece in merge_pieces)
                copy = Tee(out, self.copied_max)
                compact(header, zip(opened, spans, strict=True), self.specs, copy)
                self.data = copy.data

        ref = write_object(store, path, merged_into, "check the disk and the store; the merge is repeated")
        return SegmentRef(merge.through, merge.follows, ref)


def restore(
    store: StateStore,
    plan: Plan,
    target: StateTarget,
    read: Read,
    advanced: Callable[[int, int], object] = lambda *_: None,
    based: Epoch | None = None,
) -> None:
    """Bring a store to its target: the changelog's topic, then the pieces above; all of them, or those after a base.

    One piece is open at a time, and a bounded number of its rows is in memory.

    Args:
        read: Opens stored objects.
        advanced: Receives the bytes of all pieces restored so far, and of all pieces together; also while a large
            piece is being restored.
        based: The store has the state as of this epoch already, and may be brought to the target from there.
    """
    for attempt in range(ROUNDS_MAX):
        try:
            _restore(store, older(plan, target), read, advanced, based)
            break
        except CompactedMeanwhile:
            if attempt + 1 == ROUNDS_MAX or based is not None:
                raise
    store.completed(cut_of(target))


def _restore(
    store: StateStore,
    past: Older,
    read: Read,
    advanced: Callable[[int, int], object],
    based: Epoch | None,
) -> None:
    target, newer_pieces = past.target, past.newer
    key_groups = target.handle.key_groups
    if based is not None:
        newer_pieces = tuple(piece for piece in newer_pieces if piece.epoch > based)
    piece_bytes = sum(piece.object.size for piece in newer_pieces)
    restored_bytes, total = 0, piece_bytes

    def of_topic(done_bytes: int, all_bytes: int) -> None:
        nonlocal restored_bytes, total
        restored_bytes, total = done_bytes, all_bytes + piece_bytes
        advanced(restored_bytes, total)

    def pieces_of() -> Iterator[Piece]:
        nonlocal restored_bytes, total
        yield from past.pieces(based or NO_EPOCH, newer_pieces, of_topic)
        total = restored_bytes + piece_bytes
        for piece in newer_pieces:
            with read(piece.object) as file:
                yield Piece(file, piece.key_groups or key_groups)
            restored_bytes += piece.object.size
            advanced(restored_bytes, total)

    if based is None:
        store.restore(target.base_epoch, pieces_of(), lambda: advanced(restored_bytes, total))
    elif based < target.base_epoch:
        store.follow(target.base_epoch, pieces_of(), lambda: advanced(restored_bytes, total))


def reaches(plan: Plan, target: StateTarget, epoch: Epoch) -> bool:
    """Return whether a target can be reached from state as of this epoch, by what is stored after it.

    Not over a base, which does not record what was deleted in between; nor if the topic is compacted beyond the epoch.
    """
    past = older(plan, target)
    if any(p.follows == NO_EPOCH and p.writer is None and p.epoch > epoch for p in past.newer):
        return False
    return past.usable(epoch, target.handle.key_groups)


@dataclass(frozen=True)
class CatchUpPieces:
    """The changes from state as of an epoch to a target: records of the topic, then pieces, which are open."""

    records: Iterator[Piece]
    stored: tuple[Piece, ...]

    def __iter__(self) -> Iterator[Piece]:
        yield from self.records
        yield from self.stored


def opened_beyond(
    plan: Plan,
    target: StateTarget,
    epoch: Epoch,
    read: Read,
    held: ExitStack,
    bytes_max: int | None = None,
    advanced: Callable[[int, int], object] = lambda *_: None,
) -> CatchUpPieces | None:
    """Open the pieces that bring state as of this epoch to the target, until `held` closes; None if no pieces do.

    They do not if one is a base: it does not record what was deleted in between; nor if the topic is compacted beyond
    the epoch. Nor if they are larger than `bytes_max` together.
    """
    if (stored := _joining(target, epoch, read, held, bytes_max)) is not None:
        return CatchUpPieces(iter(()), stored)
    past = older(plan, target)
    newer = tuple(piece for piece in past.newer if piece.epoch > epoch)
    large = bytes_max is not None and sum(piece.object.size for piece in newer) > bytes_max
    if large or any(piece.follows == NO_EPOCH and piece.writer is None for piece in newer):
        return None
    if not past.usable(epoch, target.handle.key_groups):
        return None
    return CatchUpPieces(past.pieces(epoch, newer, advanced), _opened(target, newer, read, held))


def _joining(
    target: StateTarget, epoch: Epoch, read: Read, held: ExitStack, bytes_max: int | None
) -> tuple[Piece, ...] | None:
    """Open the newer pieces if they are all that is needed although a topic has others; None if they are not.

    They leave the handle oldest first, so nothing is missing if the oldest of them joins up. Normally this is so for a
    copy that lacks one epoch, and the topic need not be read.
    """
    newer = tuple(piece for piece in pieces(target.handle) if piece.epoch > epoch)
    alone = bool(newer) and all(p.writer == target.handle.subtask and p.key_groups is None for p in newer)
    if not alone or newer[0].follows > epoch or sum(p.object.size for p in newer) > (bytes_max or EVERY_SIZE):
        return None
    try:
        return _opened(target, newer, read, held)
    except Damaged:
        return None  # the topic may have it


def _opened(target: StateTarget, refs: Iterable[SegmentRef], read: Read, held: ExitStack) -> tuple[Piece, ...]:
    owned = target.handle.key_groups
    return tuple(Piece(held.enter_context(read(p.object)), p.key_groups or owned) for p in refs)


def epoch_in(path: str) -> Epoch:
    """Return the epoch in the name of a sealed object."""
    return Epoch(int(path.split("/")[2]))


def reading(store: ObjectStore) -> Read:
    """Return what opens the objects of a root."""
    return partial(open_verified, store)
