"""The state of a task, from the image of it that an earlier task has left on this machine.

Invariants
    - What a task writes to its state is in no image.
    - An image holds what the job's segments say, as of a completed epoch: a task brings it to its own base, by them.

Source: docs/design/0049-state-images.md; PROTOCOL P14, P26.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.repository import open_verified
from holdfast.model import NO_EPOCH, Cut, WorkerId
from holdfast.ports import Clock, ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.wire.messages import Deploy
from holdfast.runtime.wire.presence import boot_id, machine_id
from holdfast.runtime.worker.compaction import restore
from holdfast.runtime.worker.local import MemoryState, Opened, identity_of, local_root, make_folder
from holdfast.state.evolution import declaration
from holdfast.state.image import Head, Image, Wanted, create, find
from holdfast.state.store import Piece, StateStore
from holdfast.state.tables.slab import Memory

_log = logging.getLogger("holdfast.worker")


class ImageMemory(Memory, Protocol):
    """The memory of tables in an image."""

    def close(self) -> None:
        """Release what it holds; arrays stay valid."""


M = TypeVar("M", bound=ImageMemory)
FOLDER = "images"
WAIT_S = 1.0
"""How long a task waits for a process that holds its image: a twin brings it up to date, a zombie may never leave."""
_LOOK_S = 0.01


class HeldImage(Protocol[M]):
    """An image that this process holds; see state.image.Image."""

    head: Head | None
    alone: bool

    def begin(self) -> M:
        """Begin to change it; return its memory."""

    def private(self) -> M:
        """Return memory in which it can be loaded without being changed."""

    def load(self, store: StateStore, memory: M) -> None:
        """Give a store, whose tables have this memory, the tables of the image."""

    def finish(self, store: StateStore, memory: M, wanted: Wanted) -> None:
        """Keep the tables of a store that has the image's memory, as of the base."""

    def share(self) -> bool:
        """Let others use it too; return whether it is still what it was."""

    def release(self) -> None:
        """Let others change it."""

    def remove(self) -> None:
        """Remove it, unless others hold it too, and release it."""


class Images(Protocol[M]):
    """The images of one machine."""

    def find(self, wanted: Wanted) -> tuple[HeldImage[M] | None, bool]:
        """Return the best image, held, and whether another process holds one that may do; see state.image.find."""

    def create(self, wanted: Wanted) -> HeldImage[M]:
        """Return a new image, held alone."""


class LocalImages:
    """The images of this machine.

    Args:
        root: Parent of all folders; default: below the system's temporary directory.
        machine: The identity of this machine.
        boot: Its boot id; if it is empty, there can be no images.
    """

    def __init__(self, root: Path | None = None, machine: str | None = None, boot: str | None = None) -> None:
        self._root = root or local_root()
        self._machine = machine_id() if machine is None else machine
        self._boot = boot_id() if boot is None else boot

    def find(self, wanted: Wanted) -> tuple[Image | None, bool]:
        """See Images.find.

        Raises:
            OSError: there is no folder for images, and none can be created.
            ConfigError: others can write into it.
        """
        return find(self._folder(wanted), wanted)

    def create(self, wanted: Wanted) -> Image:
        """See Images.create."""
        return create(self._folder(wanted), wanted)

    def _folder(self, wanted: Wanted) -> Path:
        if not self._boot:
            raise OSError("this machine has no boot id")
        folder = self._root / self._machine / self._boot / wanted.job_uuid / FOLDER
        make_folder(self._root, self._machine, self._boot, folder)
        return folder


class WarmState(Generic[M]):
    """Opens the state of tasks from images; see worker.local.LocalState.

    Args:
        store: The job's root.
        clock: Limits the wait for an image.
        pause: Waits for so many seconds.
        images: Those of the machine.
    """

    def __init__(self, store: ObjectStore, clock: Clock, pause: Callable[[float], None], images: Images[M]) -> None:
        self._store, self._clock, self._pause, self._images = store, clock, pause, images

    def open(self, plan: Plan, deploy: Deploy, worker: WorkerId) -> Opened:
        """Return a store at the deployment's base, or an empty one where there can be no image.

        Raises:
            ConfigError: others can write into the folder of images.
        """
        declared = {operator.id: declaration(operator.table) for operator in plan.operators}
        base = Cut(deploy.base_epoch, deploy.lineage.get(deploy.base_epoch, ""))
        if not (declared and base.manifest):
            return MemoryState().open(plan, deploy, worker)
        wanted = Wanted(deploy.job_uuid, deploy.handle.key_groups, declared, base, deploy.lineage)
        try:
            return self._open(_Task(self._store, plan, deploy, worker, wanted))
        except OSError as error:
            _log.warning("the state of a task is restored from the root, as there is no image of it: %s", error)
            return MemoryState().open(plan, deploy, worker)

    def _open(self, task: _Task) -> Opened:
        with ExitStack() as held:
            image = self._image(task)
            held.callback(image.release)
            store = task.mapped(image)
            held.pop_all()
        return Opened(store, None, None, image.release, ready=True, discard=image.remove)

    def _image(self, task: _Task) -> HeldImage[M]:
        """Return an image as of the base, which this process shares."""
        until = self._clock.monotonic() + WAIT_S
        while True:
            image, busy = self._images.find(task.wanted)
            if image is None:
                if busy and self._clock.monotonic() < until:
                    self._pause(_LOOK_S)
                    continue
                image = self._images.create(task.wanted)
            with ExitStack() as held:
                held.callback(image.release)
                if image.alone:
                    task.bring_up(image)
                if image.share():
                    held.pop_all()
                    return image


class _Task:
    """What a task needs, and how an image gets there."""

    def __init__(self, objects: ObjectStore, plan: Plan, deploy: Deploy, worker: WorkerId, wanted: Wanted) -> None:
        self._objects, self._plan, self._deploy, self.wanted = objects, plan, deploy, wanted
        self._identity = identity_of(deploy, worker)

    def mapped(self, image: HeldImage[M]) -> StateStore:
        """Return a store with the tables of an image, whose changes are not in the image."""
        memory = image.private()
        store = self._store(memory)
        image.load(store, memory)
        store.completed(self.wanted.base)
        return store

    def bring_up(self, image: HeldImage[M]) -> None:
        """Make an image that this process holds alone that of the base."""
        owned, found, head = self.wanted.key_groups, pieces(self._deploy.handle), image.head
        with ExitStack() as opened:
            # A base of later than the image does not say what was deleted in between.
            if head is None or any(p.follows == NO_EPOCH and p.epoch > head.cut.epoch for p in found):
                memory = self._begin(image, opened)
                store = self._store(memory)
                restore(Opened(store, None, None, lambda: None), self._deploy, self._objects)
            else:
                new = [
                    Piece(opened.enter_context(open_verified(self._objects, p.object)), p.key_groups or owned)
                    for p in found
                    if p.epoch > head.cut.epoch
                ]
                memory = self._begin(image, opened)  # after everything was read that may be missing
                store = self._store(memory)
                image.load(store, memory)
                store.follow(self.wanted.base.epoch, new)
            store.drop_vacant()
            image.finish(store, memory, self.wanted)

    def _store(self, memory: Memory) -> StateStore:
        specs = [operator.table for operator in self._plan.operators]
        return StateStore(self._identity, specs, self._plan.key_groups, self.wanted.key_groups, None, memory)

    def _begin(self, image: HeldImage[M], held: ExitStack) -> M:
        memory = image.begin()
        held.callback(memory.close)
        return memory
