"""The images of one machine, as those that open state see them.

Source: docs/decisions/0049-state-images.md, 0122-local-images.md.
"""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Protocol, Self, TypeVar

from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.worker.local.home import Home
from holdfast.state.local.image import Head, Image, ImageHolders, Wanted, create, find, remove_old
from holdfast.state.paging.swap import resident_bytes, unfit
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import Memory

IMAGES = "images"


class ImageMemory(Memory, Protocol):
    """The memory of tables in an image."""

    def close(self) -> None:
        """Release what it holds; arrays stay valid."""


M = TypeVar("M", bound=ImageMemory)
"""The memory of an image that is changed."""
P = TypeVar("P", bound=ImageMemory)
"""The memory of an image that is used."""


class HeldImage(Protocol[M, P]):
    """An image that this process holds; see state.local.image.Image."""

    head: Head | None
    alone: bool

    def copy(self, other: Self) -> None:
        """Take the content of another image, which this process holds and nothing changes."""

    def begin(self) -> M:
        """Begin to change it; return its memory."""

    def private(self) -> P:
        """Return memory in which it can be loaded without being changed."""

    def load(self, store: StateStore, files: M | P) -> None:
        """Give a store, whose tables have this memory, the tables of the image."""

    def read(self, store: StateStore, memory: Memory) -> None:
        """Give a store, whose tables have any memory, the tables of the image. Raises LocalDamaged."""

    def verify(self) -> None:
        """Compare the image with its hashes. Raises LocalDamaged."""

    def finish(self, store: StateStore, memory: M, wanted: Wanted, *, hashed: bool = False) -> None:
        """Keep the tables of a store that has the image's memory, as of the base; with hashes, if asked for."""

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

    def find(self, wanted: Wanted) -> tuple[HeldImage[M, P] | None, ImageHolders]:
        """Return the best image, held, and whether other processes hold one; see state.local.image.find."""

    def create(self, wanted: Wanted) -> HeldImage[M, P]:
        """Return a new image, held alone."""


class LocalImages:
    """The images of this machine.

    Args:
        home: Where they are; default: below the system's temporary directory. Without a boot id there can be none.
        budget: Bytes of a task's state that may stay in memory; None: all of it.
    """

    def __init__(self, home: Home | None = None, budget: Budget | None = None) -> None:
        self._home = home or Home()
        self._limits = None if budget is None else (_others_bytes() + budget.total, budget.tables)

    @property
    def possible(self) -> bool:
        """Whether the machine has a boot id; without one, unsynced files may not be whole."""
        return self._home.boot != ""

    def find(self, wanted: Wanted) -> tuple[Image | None, ImageHolders]:
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
        remove_old(folder.parent.parent, IMAGES, time.time())
        return self._limited(create(folder, wanted))

    def _limited(self, image: Image) -> Image:
        if self._limits is not None:
            image.limits = self._limits
        return image

    def _folder(self, wanted: Wanted) -> Path:
        return self._home.make(wanted.job_uuid, IMAGES)


@cache
def _others_bytes() -> int:
    """Return what this process had in memory before its first task opened state: the interpreter and its libraries."""
    return resident_bytes()
