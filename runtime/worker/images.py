"""The state of a task, from the image of it that an earlier task has left on this machine.

Invariants
    - What a task writes to its state is in no image.
    - An image holds what the job's segments say, as of a completed epoch: a task brings it to its own base, by them.

Source: docs/design/0049-state-images.md; PROTOCOL P14, P26.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from holdfast.errors import ConfigError
from holdfast.model import WorkerId
from holdfast.ports import Clock, ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.worker.compaction import opened_beyond, restore
from holdfast.runtime.worker.local import Home, MemoryState, Opened, Target, cut_of, identity_of
from holdfast.state.evolution import declaration
from holdfast.state.local.image import Head, Held, Image, Wanted, create, find, remove_old
from holdfast.state.paging.swap import resident_bytes, unfit
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import Memory
from holdfast.state.tables.spec import TableSpec

_log = logging.getLogger("holdfast.worker")


class ImageMemory(Memory, Protocol):
    """The memory of tables in an image."""

    def close(self) -> None:
        """Release what it holds; arrays stay valid."""


M = TypeVar("M", bound=ImageMemory)
"""Of an image that is changed."""
P = TypeVar("P", bound=ImageMemory)
"""Of an image that is used."""
FOLDER = "images"
WAIT_S = {Held.NO: 0.0, Held.MAPPED: 1.0, Held.CHANGED: 60.0}
"""How long a task waits for others that hold its image: a zombie may map it for long, a twin brings it up to date."""
_LOOK_S = 0.01


class HeldImage(Protocol[M, P]):
    """An image that this process holds; see state.local.image.Image."""

    head: Head | None
    alone: bool

    def begin(self) -> M:
        """Begin to change it; return its memory."""

    def private(self) -> P:
        """Return memory in which it can be loaded without being changed."""

    def load(self, store: StateStore, memory: M | P) -> None:
        """Give a store, whose tables have this memory, the tables of the image."""

    def finish(self, store: StateStore, memory: M, wanted: Wanted) -> None:
        """Keep the tables of a store that has the image's memory, as of the base."""

    def share(self) -> bool:
        """Let others use it too; return whether it is still what it was."""

    def release(self) -> None:
        """Let others change it; one that is not finished is removed."""

    def remove(self) -> None:
        """Remove it, unless others hold it too, and release it."""


class Images(Protocol[M, P]):
    """The images of one machine."""

    @property
    def possible(self) -> bool:
        """Whether this machine can have any."""

    def find(self, wanted: Wanted) -> tuple[HeldImage[M, P] | None, Held]:
        """Return the best image, held, and whether other processes hold one; see state.local.image.find."""

    def create(self, wanted: Wanted) -> HeldImage[M, P]:
        """Return a new image, held alone."""


class LocalImages:
    """The images of this machine.

    Args:
        home: Where they are; default: below the system's temporary directory. Without a boot id there can be none.
        budget: What the state of a task may keep in memory; None: all of it.
    """

    def __init__(self, home: Home | None = None, budget: Budget | None = None) -> None:
        self._home = home or Home()
        self._limits = None if budget is None else (_others_bytes() + budget.total, budget.tables)

    @property
    def possible(self) -> bool:
        """Whether the machine has a boot id; without one, unsynced files may not be whole."""
        return self._home.boot != ""

    def find(self, wanted: Wanted) -> tuple[Image | None, Held]:
        """See Images.find.

        Raises:
            OSError: there is no folder for images, and none can be created.
            ConfigError: others can write into it.
        """
        image, held = find(self._folder(wanted), wanted)
        return None if image is None else self._limited(image), held

    def create(self, wanted: Wanted) -> Image:
        """See Images.create."""
        folder = self._folder(wanted)
        if why := unfit(folder):  # there, what a task changes in its private pages takes room in the file
            raise OSError(f"{why}; set TMPDIR on the executors to a folder on a disk")
        remove_old(folder.parent.parent, FOLDER, time.time())
        return self._limited(create(folder, wanted))

    def _limited(self, image: Image) -> Image:
        if self._limits is not None:
            image.limits = self._limits
        return image

    def _folder(self, wanted: Wanted) -> Path:
        return self._home.make(wanted.job_uuid, FOLDER)


class WarmState(Generic[M, P]):
    """Opens the state of tasks from images; see worker.local.LocalState.

    Args:
        store: The job's root.
        clock: Limits the wait for an image.
        pause: Waits for so many seconds.
        images: Those of the machine.
    """

    def __init__(self, store: ObjectStore, clock: Clock, pause: Callable[[float], None], images: Images[M, P]) -> None:
        self._store, self._clock, self._pause, self._images = store, clock, pause, images

    def open(self, plan: Plan, target: Target, worker: WorkerId) -> Opened:
        """Return a store at the target, or an empty one where there can be no image."""
        declared, base = {operator.id: _declared(operator.table) for operator in plan.operators}, cut_of(target)
        if not (declared and base.manifest and self._images.possible):
            return MemoryState().open(plan, target, worker)
        wanted = Wanted(target.job_uuid, target.handle.key_groups, declared, base, target.lineage)
        try:
            return self._open(_Task(self._store, plan, target, worker, wanted))
        except (OSError, MemoryError, ConfigError) as error:
            _warn(
                "the state of tasks is restored from the root in every epoch, and held in memory whatever its size, as "
                f"there is no image of it: {error}"
            )
            return MemoryState().open(plan, target, worker)

    def _open(self, task: _Task) -> Opened:
        with ExitStack() as held:
            image = self._image(task)
            held.callback(image.release)
            store = task.mapped(image)
            held.pop_all()
        return Opened(store, None, None, image.release, ready=True, discard=image.remove)

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
            with ExitStack() as held:
                held.callback(image.release)
                if image.alone:
                    task.bring_up(image)
                if image.share():
                    held.pop_all()
                    return image
            began = self._clock.monotonic()


class _Task:
    """What a task needs, and how an image gets there."""

    def __init__(self, objects: ObjectStore, plan: Plan, target: Target, worker: WorkerId, wanted: Wanted) -> None:
        self._objects, self._plan, self._target, self.wanted = objects, plan, target, wanted
        self._identity = identity_of(target, worker)

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
            new = None if head is None else opened_beyond(self._plan, target, head.cut.epoch, self._objects, opened)
            memory = self._begin(image, opened)  # only after all pieces are known to be readable
            store = self._store(memory)
            if new is None:
                restore(Opened(store, None, None, lambda: None), self._plan, target, self._objects)
            else:
                image.load(store, memory)
                store.follow(self.wanted.base.epoch, new)
            store.drop_vacant()
            image.finish(store, memory, self.wanted)

    def _store(self, memory: Memory) -> StateStore:
        specs = [operator.table for operator in self._plan.operators]
        return StateStore(self._identity, specs, self._plan.key_groups, self.wanted.key_groups, None, memory)

    def _begin(self, image: HeldImage[M, P], held: ExitStack) -> M:
        memory = image.begin()
        held.callback(memory.close)
        return memory


@cache
def _others_bytes() -> int:
    """Return what this process had in memory before its first task opened state: the interpreter and its libraries."""
    return resident_bytes()


def _declared(spec: TableSpec) -> str:
    """Return what decides how the rows of a table lie in memory, absent ones included."""
    return "|".join([declaration(spec), *(repr(column.default) for column in spec.columns)])


@cache
def _warn(what: str) -> None:
    """Warn once in a process."""
    _log.warning(what)
