"""Flips a bit in an object of a checkpoint, and flips it back.

Two faults, each with a defined result. With an object that only older checkpoints name, the job must not notice. With
an object that the newest checkpoint names, damaged while no driver runs, the next driver must refuse it and name it, or
do without it; once the bit is restored the job must resume as if nothing had happened.

Invariants
    - Meanwhile exactly one bit differs, in a file below the root of the run.
    - The fault has fired when a verified read reports the object as damaged.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from holdfast.chaos.live.faults.strikes import seen
from holdfast.checkpoint.manifest import objects
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, HoldfastError
from holdfast.model import ObjectRef
from holdfast.runtime.wire.processes import is_gone
from holdfast.storage.objects import open_objects

NEWEST_SPARED = 3
"""Newest checkpoints besides the last that must not use an unneeded object: one may just be replacing another."""
_BIT = 0x10


class Flip:
    """One bit of an object in the job's folder.

    Args:
        folder: The job's folder.
        rank: Picks the object.
        kill: The driver, which is killed first, for an object of the newest checkpoint. None: an unneeded object.
    """

    def __init__(self, folder: Path, rank: int, kill: psutil.Process | None) -> None:
        self._folder, self._rank, self._kill = folder, rank, kill
        self._repository = Repository(open_objects(str(folder)))
        self._ref: ObjectRef | None = None
        self._at = 0
        self.killed: frozenset[int] = frozenset()
        self.target = "checkpoint"

    def begin(self) -> bool:
        candidates = self._objects()
        if candidates and self._kill is not None:
            driver = self._kill
            try:
                driver.kill()
            except psutil.NoSuchProcess:
                return False
            self.killed = frozenset({driver.pid})
            # Only now is the newest checkpoint settled: no driver appends to the log.
            candidates = self._objects() if seen(lambda: is_gone(driver)) else []
        if not candidates:
            return False
        self._ref = candidates[self._rank % len(candidates)]
        self._at = self._rank * 7919 % self._ref.size
        self.target = self._ref.path
        return self._flip()

    def evidence(self) -> str | None:
        assert self._ref is not None
        try:
            self._repository.read(self._ref)
        except Damaged:
            return f"bit {_BIT:#x} of byte {self._at} of {self._ref.path} is flipped, a verified read refuses it"
        return None

    def heal(self) -> str:
        if self._ref is None or self.evidence() is None or not self._flip():
            return "the object was deleted meanwhile"
        return f"{self._ref.path} is restored"

    def _flip(self) -> bool:
        assert self._ref is not None
        try:
            descriptor = os.open(self._folder / self._ref.path, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            (byte,) = os.pread(descriptor, 1, self._at)
            os.pwrite(descriptor, bytes([byte ^ _BIT]), self._at)
        finally:
            os.close(descriptor)
        return True

    def _objects(self) -> list[ObjectRef]:
        """Return the possible victims; none while the log is being written during the read, which lasts a moment."""
        try:
            return self._unneeded() if self._kill is None else self._newest()
        except HoldfastError:
            return []

    def _newest(self) -> list[ObjectRef]:
        """Return the objects of the newest checkpoint."""
        job = self._repository.read_log()
        if job is None or not job.completed:
            return []
        manifest = job.completed[-1].body.manifest
        return [manifest, *objects(self._repository.load_manifest(manifest))]

    def _unneeded(self) -> list[ObjectRef]:
        """Return the objects that only older checkpoints use."""
        job = self._repository.read_log()
        if job is None:
            return []
        older, newest = job.completed[: -NEWEST_SPARED - 1], job.completed[-NEWEST_SPARED - 1 :]
        live_paths = {
            ref.path for each in newest for ref in objects(self._repository.load_manifest(each.body.manifest))
        }
        refs_by_path: dict[str, ObjectRef] = {}
        for each in older[-2 * NEWEST_SPARED :]:
            manifest = each.body.manifest
            for ref in (manifest, *objects(self._repository.load_manifest(manifest))):
                if ref.path not in live_paths:
                    refs_by_path[ref.path] = ref
        return list(refs_by_path.values())
