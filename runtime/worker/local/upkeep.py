"""Keeps what the local disk has of a store near its committed epochs, on a lane, and says how long the disk refuses.

Committed values are in memory and in the root; what is on disk only shortens the next restore. So a disk that refuses
writes stops nothing: the worker continues, and reports the refusal.

A new image takes the place of one when the root gets a new base, of which it has the rows: between two bases, segments
of half its size are sealed. Where a topic has the changelog there are no bases, and the segments are counted here.

Invariants
    - The operator thread writes nothing to disk.
    - Copies that wait have at most WAITING_BYTES_MAX; more is left out, and counted as lag.
    - A refusal is reported from TOLD_AFTER_S after the first one until a write succeeds; a short stall is not. The last
      refused write is tried again every RETRY_AFTER_S, for nothing else may be written for long.

Source: docs/decisions/0122-local-images.md; DESIGN section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.checkpoint.bases import Merge
from holdfast.errors import HoldfastError
from holdfast.model import NO_EPOCH, ObjectRef, SegmentRef, SnapshotHandle
from holdfast.ports import Clock, Lane
from holdfast.runtime.wire.messages import Deploy, LocalRefusal
from holdfast.runtime.worker.local.kept import LocalCopies
from holdfast.runtime.worker.local.opened import OpenStore
from holdfast.runtime.worker.target import StateTarget

WAITING_BYTES_MAX = 64 << 20
TOPIC_EPOCHS = 256
"""Without bases in the root, an image is renewed after so many epochs at the latest: the driver knows the manifests of
twice as many."""
IMAGE_FROM_BYTES = 8 << 20
"""A smaller base is copied: to read its rows takes less than to make an image of them."""
COPIED_BYTES_MAX = 64 << 20
"""A larger segment is not copied."""
TOLD_AFTER_S = 5.0
"""RocksDB refuses briefly while it compacts; a longer refusal comes from the disk."""
RETRY_AFTER_S = 1.0


class Upkeep:
    """The local copy of one store.

    Args:
        lane: Runs what takes long, in order.
        image_from: Bytes of a base from which an image is made of it.
    """

    def __init__(self, lane: Lane, clock: Clock, opened: OpenStore, image_from: int = IMAGE_FROM_BYTES) -> None:
        self._image_from = image_from
        self._lane, self._clock, self._opened, self._kept = lane, clock, opened, opened.kept
        self._waiting = self._waiting_bytes = 0
        self._gathered = self._epochs = 0
        """Bytes that were sealed, and epochs, since an image was last begun."""
        self._lag = (0, 0)
        self._refused_since: float | None = None
        self._refused_with = ""
        self._again: Callable[[], None] = lambda: None
        self._retry_at = 0.0

    @property
    def copied_max(self) -> int:
        """Bytes of a segment up to which it is copied."""
        return 0 if self._kept is None else COPIED_BYTES_MAX

    def sealed(self, segment: SegmentRef, data: bytes | None) -> None:
        """Keep a copy of a segment."""
        if (local_copies := self._kept) is None:
            return
        size = segment.object.size
        self._gathered += size
        if data is None or self._waiting_bytes + size > WAITING_BYTES_MAX:
            self._fell_behind(size)
            return
        self._submit(size, lambda: local_copies.copy(segment.object.path, data, ()))

    def merged(self, deploy: Deploy, merge: Merge, ref: ObjectRef, data: bytes | None) -> None:
        """Keep what is in a merge in the place of its pieces: a large base as an image, anything else as a copy."""
        if (local_copies := self._kept) is None:
            return
        if merge.follows == NO_EPOCH and ref.size >= self._image_from:
            own = deploy.handle
            handle = SnapshotHandle(own.subtask, own.key_groups, (), NO_EPOCH, merge.pieces)
            self._renew(local_copies, replace(deploy, base_epoch=merge.through, handle=handle), ref.sha256)
        elif data is not None:
            replaced = {piece.object.path for piece in merge.pieces}
            self._submit(0, lambda: local_copies.copy(ref.path, data, replaced))

    def committed(self, target: Callable[[], StateTarget]) -> None:
        """Make an image as of an epoch that was just completed, if it is time for one and no base will be made."""
        self._epochs += 1
        if (local_copies := self._kept) is None or self._waiting or not self._gathered:
            return
        enough = self._gathered >= max(self._image_from, local_copies.nbytes // 2)
        if enough or (local_copies.nbytes and self._epochs >= TOPIC_EPOCHS):
            self._renew(local_copies, target(), "")

    def _renew(self, kept: LocalCopies[Any, Any], target: StateTarget, content: str) -> None:
        self._gathered, self._epochs = 0, 0
        self._submit(0, lambda: kept.renew(target, content))

    def close(self) -> None:
        """Release the folders, once nothing uses them."""
        if self._waiting:
            self._lane.submit(self._opened.close, lambda _: None)
        else:
            self._opened.close()

    def refusal(self) -> LocalRefusal | None:
        """Return the refusal of the local disk if it has lasted long enough to be reported; try again if it is time."""
        if self._refused_since is None:
            return None
        now = self._clock.monotonic()
        if not self._waiting and now >= self._retry_at:
            self._submit(0, self._again)
        if (for_s := now - self._refused_since) < TOLD_AFTER_S:
            return None
        return LocalRefusal(self._refused_with, round(for_s * 1000), *self._lag)

    def _submit(self, size: int, work: Callable[[], None]) -> None:
        def ended(result: object) -> None:
            self._waiting, self._waiting_bytes = self._waiting - 1, self._waiting_bytes - size
            if result is None:
                self._refused_since, self._lag = None, (0, 0)
            elif isinstance(result, HoldfastError | OSError):
                self._refused(result, size, work)
            elif isinstance(result, BaseException):
                raise result

        self._waiting, self._waiting_bytes = self._waiting + 1, self._waiting_bytes + size
        self._lane.submit(work, ended)

    def _refused(self, error: HoldfastError | OSError, size: int, work: Callable[[], None]) -> None:
        self._fell_behind(size)
        now = self._clock.monotonic()
        self._again, self._retry_at = work, now + RETRY_AFTER_S
        if self._refused_since is None:
            self._refused_since = now
            self._refused_with = error.what if isinstance(error, HoldfastError) else str(error)

    def _fell_behind(self, size: int) -> None:
        self._lag = self._lag[0] + (size > 0), self._lag[1] + size
