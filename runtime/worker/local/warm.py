"""The state of a task, from the image of it that an earlier task has left on this machine.

Invariants
    - No image holds a task's own writes to its state.
    - An image holds what the job's segments say, as of a completed epoch: a task brings it to its own base, by them.

Source: docs/decisions/0049-state-images.md; PROTOCOL P14, P26.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Generic

from holdfast.errors import ConfigError
from holdfast.model import WorkerId
from holdfast.ports import Clock, ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.worker.compaction import Advanced, opened_beyond, reading, restore
from holdfast.runtime.worker.local.images import HeldImage, Images, M, P
from holdfast.runtime.worker.local.opened import MemoryState, OpenStore
from holdfast.runtime.worker.target import StateTarget, new_store, wanted_of
from holdfast.state.local.image import ImageHolders, Wanted
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import Memory

_log = logging.getLogger("holdfast.worker")


WAIT_S = {ImageHolders.NO: 0.0, ImageHolders.MAPPED: 1.0, ImageHolders.CHANGED: 60.0}
"""How long a task waits for others that hold its image: a zombie may map it for long, a twin brings it up to date."""
_LOOK_S = 0.01


class WarmState(Generic[M, P]):
    """Opens the state of tasks from images; see worker.local.opened.LocalState.

    Args:
        clock: Limits the wait for an image.
        pause: Waits for so many seconds.
        images: Those of the machine.
    """

    def __init__(self, clock: Clock, pause: Callable[[float], None], images: Images[M, P]) -> None:
        self._clock, self._pause, self._images = clock, pause, images

    def open(
        self,
        plan: Plan,
        target: StateTarget,
        worker: WorkerId,
        root: ObjectStore,
        advanced: Advanced = lambda *_: None,
    ) -> OpenStore:
        """Return a store at the target, restored from the root where there can be no image."""
        wanted_state = wanted_of(plan, target)
        if not (wanted_state.declared and wanted_state.base.manifest and self._images.possible):
            return MemoryState().open(plan, target, worker, root, advanced)
        try:
            return self._open(_Task(root, plan, target, worker, wanted_state))
        except (OSError, MemoryError, ConfigError) as error:
            _warn(
                "the state of tasks is restored from the root in every epoch, and held in memory whatever its size, as "
                f"there is no image of it: {error}"
            )
            return MemoryState().open(plan, target, worker, root, advanced)

    def _open(self, task: _Task) -> OpenStore:
        with ExitStack() as stack:
            image = self._image(task)
            stack.callback(image.release)
            store = task.mapped(image)
            stack.pop_all()
        return OpenStore(store, image.release, discard=image.remove)

    def _image(self, task: _Task) -> HeldImage[M, P]:
        """Return an image as of the base, which this process shares."""
        began = self._clock.monotonic()
        while True:
            image, others = self._images.find(task.wanted)
            if image is None:
                if self._clock.monotonic() - began < WAIT_S[others]:
                    self._pause(_LOOK_S)
                    continue
                image = self._images.create(task.wanted)
            with ExitStack() as stack:
                stack.callback(image.release)
                if image.alone:
                    task.bring_up(image)
                if image.share():
                    stack.pop_all()
                    return image
            began = self._clock.monotonic()


class _Task:
    """The base that a task needs, and how an image gets there."""

    def __init__(self, objects: ObjectStore, plan: Plan, target: StateTarget, worker: WorkerId, wanted: Wanted) -> None:
        self._objects, self._plan, self._target, self.wanted = objects, plan, target, wanted
        self._worker = worker

    def mapped(self, image: HeldImage[M, P]) -> StateStore:
        """Return a store with the tables of an image, whose changes are not in the image."""
        memory = image.private()
        store = self._store(memory)
        image.load(store, memory)
        store.completed(self.wanted.base)
        return store

    def bring_up(self, image: HeldImage[M, P]) -> None:
        """Bring an image, held alone, to the base."""
        head, target = image.head, self._target
        with ExitStack() as opened:
            piece_reader = reading(self._objects)
            new = None if head is None else opened_beyond(self._plan, target, head.cut.epoch, piece_reader, opened)
            memory = self._begin(image, opened)  # only after all pieces are known to be readable
            store = self._store(memory)
            if new is None:
                restore(store, self._plan, target, piece_reader)
            else:
                image.load(store, memory)
                store.follow(self.wanted.base.epoch, new)
            store.drop_vacant()
            image.finish(store, memory, self.wanted)

    def _store(self, memory: Memory) -> StateStore:
        return new_store(self._plan, self._target, self._worker, memory)

    def _begin(self, image: HeldImage[M, P], held: ExitStack) -> M:
        memory = image.begin()
        held.callback(memory.close)
        return memory


@cache
def _warn(what: str) -> None:
    """Warn once in a process."""
    _log.warning(what)
