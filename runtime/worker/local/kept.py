"""A worker's local copy of one store: an image of the tables, and copies of segments sealed after it.

A restart reads the image, then the segments after it: those of which there is a copy from there, others from the root.
Both are used only if they have the content that the checkpoint names (P14), and neither is needed.

An image is made from the one before, which is copied, and the segments after that: so the one before is there until
another is whole, and tables that map it never see a change.

Source: docs/decisions/0122-local-images.md; PROTOCOL P14, P15.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol

import pyarrow as pa

from holdfast.checkpoint.repository import open_verified
from holdfast.errors import LocalDamaged, Unavailable
from holdfast.model import ObjectRef, WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.worker.compaction import Advanced, epoch_in, reaches, restore
from holdfast.runtime.worker.local.images import HeldImage, Images, M, P
from holdfast.runtime.worker.target import StateTarget, content_of, new_store, wanted_of
from holdfast.sinks.contract.changelogs import CompactedMeanwhile
from holdfast.state.local.copies import Copies
from holdfast.state.local.image import Wanted
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import Memory

_log = logging.getLogger("holdfast.worker")
READ_BYTES_MAX = 256 << 20
"""A larger image is mapped, so that the first record need not wait until all of it was read; a smaller one is read:
what lies in ordinary memory is faster."""


class ClaimedFolder(Protocol):
    """A folder of copies that this process holds."""

    @property
    def copies(self) -> Copies: ...

    def close(self) -> None:
        """Release it."""

    def discard(self) -> None:
        """Release it and remove all its files."""


@dataclass(frozen=True)
class Subtask:
    """The properties that all images of a store share."""

    plan: Plan
    worker: WorkerId
    root: ObjectStore


class LocalCopies(Generic[M, P]):
    """The image and the copies of one store. Calls come from one thread at a time.

    Args:
        images: Those of the machine.
        claim: Opens a folder of copies.
    """

    def __init__(self, subtask: Subtask, images: Images[M, P], claim: Callable[[], ClaimedFolder]) -> None:
        self._subtask, self._images, self._claim = subtask, images, claim
        self._copies = claim()
        self._image: HeldImage[M, P] | None = None
        self._unverified: HeldImage[M, P] | None = None
        """The image that the tables map, until it was verified."""

    def open(self, target: StateTarget, memory: Memory, advanced: Advanced) -> StateStore:
        """Return a store at the target: from an image, copies and the root.

        Raises:
            HoldfastError: it cannot be restored.
        """
        if (image := self._find(target)) is not None:
            try:
                return self._from_image(image, target, memory, advanced)
            except (LocalDamaged, OSError, MemoryError, CompactedMeanwhile) as error:
                _log.warning("the state is restored from the checkpoint, as its image cannot be used: %s", error)
                self._image = self._unverified = None
                image.remove()
        store = new_store(self._subtask.plan, target, self._subtask.worker, memory)
        restore(store, self._subtask.plan, target, self._read, advanced)
        return store

    @property
    def nbytes(self) -> int:
        """Bytes of the image; 0 if there is none."""
        return 0 if self._image is None or self._image.head is None else self._image.head.nbytes

    def copy(self, path: str, data: bytes, without: Collection[str] = ()) -> None:
        """Keep a copy of an object that was sealed, which replaces others.

        Raises:
            Unavailable: the disk refuses it.
            LocalDamaged: there are no copies any more; an empty folder takes later ones.
        """
        try:
            self._copies.copies.put(path, data)
            self._copies.copies.remove(lambda path: path in without)
        except LocalDamaged:
            with suppress(OSError):
                self._copies.discard()
            self._copies = self._claim()
            raise

    def renew(self, target: StateTarget, content: str) -> None:
        """Make an image as of a target, and remove the copies of what is in it.

        Args:
            content: As in Wanted.

        Raises:
            HoldfastError, OSError: there is none; the one before is kept.
        """
        wanted_state = wanted_of(self._subtask.plan, target, content)
        try:
            if self._images.possible:
                self._replace(self._images.create(wanted_state), target, wanted_state)
        finally:
            self._copies.copies.remove(lambda path: epoch_in(path) <= wanted_state.base.epoch)

    def verify(self) -> None:
        """Compare an image that the tables map with its hashes; later calls do nothing.

        Raises:
            LocalDamaged: they differ; it is removed.
        """
        image, self._unverified = self._unverified, None
        if image is not None:
            try:
                image.verify()
            except LocalDamaged:
                image.remove()
                self._image = None
                raise

    def close(self) -> None:
        """Release both; they remain, for later restores."""
        if self._image is not None:
            self._image.release()
        self._copies.close()

    def discard(self) -> None:
        """Remove both: no run will need them again."""
        if self._image is not None:
            self._image.remove()
        with suppress(OSError):
            self._copies.discard()

    def _read(self, ref: ObjectRef) -> pa.NativeFile:
        """Open an object: its copy, else that of the root."""
        try:
            data = self._copies.copies.get(ref)
        except (LocalDamaged, Unavailable):
            data = None  # a damaged folder is marked: no process takes it over
        return open_verified(self._subtask.root, ref) if data is None else pa.BufferReader(data)

    def _find(self, target: StateTarget) -> HeldImage[M, P] | None:
        plan = self._subtask.plan
        if not plan.operators or not self._images.possible:
            return None
        try:
            image, _ = self._images.find(wanted_of(plan, target, content_of(target)))
        except OSError as error:
            _log.warning("the state is restored from the checkpoint, as images cannot be read: %s", error)
            return None
        if image is not None and image.head is not None and not reaches(plan, target, image.head.cut.epoch):
            image.remove()
            return None
        return image

    def _from_image(
        self, image: HeldImage[M, P], target: StateTarget, memory: Memory, advanced: Advanced
    ) -> StateStore:
        assert image.head is not None
        self._image, plan, worker = image, self._subtask.plan, self._subtask.worker
        if image.head.nbytes <= READ_BYTES_MAX:
            store = new_store(plan, target, worker, memory)
            image.read(store, memory)
        else:
            private = image.private()
            store = new_store(plan, target, worker, private)
            image.load(store, private)
            self._unverified = image
        restore(store, plan, target, self._read, advanced, image.head.cut.epoch)
        return store

    def _replace(self, image: HeldImage[M, P], target: StateTarget, wanted: Wanted) -> None:
        try:
            self._bring(image, target, wanted)
        except BaseException:
            image.release()  # it is not whole, so it is removed
            raise
        before, self._image = self._image, image
        if before is not None:
            before.remove()  # tables that map it keep its files

    def _bring(self, image: HeldImage[M, P], target: StateTarget, wanted: Wanted) -> None:
        """Bring a new image to a target: from the one before, if it is on the way, else from all pieces."""
        plan, worker, before = self._subtask.plan, self._subtask.worker, self._image
        base_epoch = None if before is None or before.head is None else before.head.cut.epoch
        if base_epoch is not None and not reaches(plan, target, base_epoch):
            base_epoch = None
        if base_epoch is not None and before is not None:
            image.copy(before)
        files = image.begin()
        try:
            store = new_store(plan, target, worker, files)
            if base_epoch is not None:
                image.load(store, files)
            restore(store, plan, target, self._read, based=base_epoch)
            store.drop_vacant()
            image.finish(store, files, wanted, hashed=True)
        finally:
            files.close()
