"""Flips a bit in an object of a checkpoint, and flips it back.

Two faults, each with a defined result. An object that only older checkpoints name: the job is not to notice. An object
that the newest one names, while no driver runs: the next driver is to refuse it loudly or to do without it, and once
the bit is right again to go on as if nothing had been.

Invariants
    - Exactly one bit differs meanwhile, in a file below the root of the run.
    - It has fired when a verified read says that the object is damaged.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from holdfast.chaos.strikes import seen
from holdfast.checkpoint.manifest import objects
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, HoldfastError
from holdfast.model import ObjectRef
from holdfast.runtime.processes import is_gone
from holdfast.storage.objects import open_objects

NEWEST_SPARED = 3
"""Checkpoints beside the newest one that an unneeded object must not be part of: one may just be replacing another."""
_BIT = 0x10


class Flip:
    """A bit of an object that the job's folder holds.

    Args:
        folder: Of the job.
        rank: Picks the object.
        kill: The driver, for an object of the newest checkpoint: it is killed first. None: an unneeded object.
    """

    def __init__(self, folder: Path, rank: int, kill: psutil.Process | None) -> None:
        self._folder, self._rank, self._kill = folder, rank, kill
        self._repository = Repository(open_objects(str(folder)))
        self._ref: ObjectRef | None = None
        self._at = 0
        self.killed: frozenset[int] = frozenset()
        self.target = "checkpoint"

    def begin(self) -> bool:
        found = self._objects()
        if found and self._kill is not None:
            driver = self._kill
            try:
                driver.kill()
            except psutil.NoSuchProcess:
                return False
            self.killed = frozenset({driver.pid})
            # What is the newest checkpoint stands only now: nobody else adds to the log.
            found = self._objects() if seen(lambda: is_gone(driver)) else []
        if not found:
            return False
        self._ref = found[self._rank % len(found)]
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
        return f"{self._ref.path} is as it was"

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
        """Return what may be struck; nothing if the log is written while it is read, which is over in a moment."""
        try:
            return self._unneeded() if self._kill is None else self._newest()
        except HoldfastError:
            return []

    def _newest(self) -> list[ObjectRef]:
        """Return what the newest checkpoint consists of."""
        job = self._repository.read_log()
        if job is None or not job.completed:
            return []
        manifest = job.completed[-1].body.manifest
        return [manifest, *objects(self._repository.load_manifest(manifest))]

    def _unneeded(self) -> list[ObjectRef]:
        """Return what only older checkpoints consist of."""
        job = self._repository.read_log()
        if job is None:
            return []
        older, newest = job.completed[: -NEWEST_SPARED - 1], job.completed[-NEWEST_SPARED - 1 :]
        needed = {ref.path for each in newest for ref in objects(self._repository.load_manifest(each.body.manifest))}
        found: dict[str, ObjectRef] = {}
        for each in older[-2 * NEWEST_SPARED :]:
            manifest = each.body.manifest
            for ref in (manifest, *objects(self._repository.load_manifest(manifest))):
                if ref.path not in needed:
                    found[ref.path] = ref
        return list(found.values())
