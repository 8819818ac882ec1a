"""A machine's local disk in memory, for tests of workers: folders of copies, and no images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.model import WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.worker.compaction import Advanced
from holdfast.runtime.worker.local.images import Images
from holdfast.runtime.worker.local.kept import LocalCopies, Subtask
from holdfast.runtime.worker.local.opened import OpenStore
from holdfast.runtime.worker.target import StateTarget
from holdfast.state.local.copies import Copies
from holdfast.state.local.image import ImageHolders, Wanted
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.state.tables.slab import PLAIN


class NoImages:
    """A machine that can have no images."""

    possible = False

    def find(self, wanted: Wanted) -> tuple[Any, ImageHolders]:
        return None, ImageHolders.NO

    def create(self, wanted: Wanted) -> Any:
        raise AssertionError("there can be none")


@dataclass(eq=False)
class Folder:
    """One folder of copies; a store that is closed leaves it as it is."""

    store: MemoryKeyValue = field(default_factory=MemoryKeyValue)
    closed: bool = False

    def __post_init__(self) -> None:
        self.copies = Copies(self.store)

    def close(self) -> None:
        self.closed = True

    def discard(self) -> None:
        self.closed = True


class Disk:
    """The LocalState port of all workers; every store gets a new folder of copies.

    Args:
        images: Those of the machine; default: it can have none.
    """

    def __init__(self, kind: type[MemoryKeyValue] = MemoryKeyValue, images: Images[Any, Any] | None = None) -> None:
        self.folders, self._kind, self._images = list[Folder](), kind, images or NoImages()

    def claim(self) -> Folder:
        self.folders.append(Folder(self._kind()))
        return self.folders[-1]

    def open(
        self,
        plan: Plan,
        target: StateTarget,
        worker: WorkerId,
        root: ObjectStore,
        advanced: Advanced = lambda *_: None,
    ) -> OpenStore:
        kept = LocalCopies(Subtask(plan, worker, root), self._images, self.claim)
        return OpenStore(kept.open(target, PLAIN, advanced), kept.close, kept, kept.discard)
