"""The images of the simulated machines: tables that earlier attempts of microbatch tasks have left there.

An attempt runs on one of two machines, by its name, so images are one or several epochs behind, or absent. A machine
may restart and lose them. Tables are copied; files and locks are played in tests/unit/state/test_image.py.

Source: docs/decisions/0049-state-images.md; PROTOCOL P14, P26.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.runtime.microbatch.blocks import Attempt
from holdfast.state.compiled.digest import sources_digest
from holdfast.state.local.image import Head, ImageHolders, Wanted
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import Memory, PlainMemory, TableContents

MACHINES, RESTARTS = 2, 16
"""How many machines there are, and in one of how many attempts its machine has just restarted."""


class SimulatedMemory(PlainMemory):
    """The memory of an image's own tables, or of private copies of them."""

    def __init__(self, *, private: bool) -> None:
        self.private = private

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class SimulatedImage:
    """One image; see worker.images.HeldImage."""

    head: Head | None = None
    alone: bool = True
    tables: Mapping[int, TableContents] = field(default_factory=dict)
    whole: bool = False
    """False while it is changed, and if the process that changed it has died."""

    def begin(self) -> SimulatedMemory:
        """See HeldImage.begin."""
        self.whole = False
        return SimulatedMemory(private=False)

    def private(self) -> SimulatedMemory:
        """See HeldImage.private."""
        return SimulatedMemory(private=True)

    def load(self, store: StateStore, files: SimulatedMemory) -> None:
        """See HeldImage.load."""
        assert self.head is not None
        tables = copied(self.tables) if files.private else self.tables
        store.adopt(tables, {operator: {} for operator in tables}, self.head.cut.epoch)

    def copy(self, other: SimulatedImage) -> None:
        """See HeldImage.copy."""
        self.head, self.tables = other.head, copied(other.tables)

    def read(self, store: StateStore, memory: Memory) -> None:
        """See HeldImage.read."""
        self.load(store, self.private())

    def verify(self) -> None:
        """See HeldImage.verify: nothing damages this memory."""

    def finish(self, store: StateStore, memory: SimulatedMemory, wanted: Wanted, *, hashed: bool = False) -> None:
        """See HeldImage.finish."""
        self.tables = store.stored()
        given = wanted.job_uuid, wanted.base, wanted.key_groups, dict(wanted.declared)
        head = Head(*given, sources_digest(), small="", tables={}, content=wanted.content)
        self.head, self.whole = head, True

    def share(self) -> bool:
        """See HeldImage.share."""
        return True

    def release(self) -> None:
        """Attempts run one after another."""

    def remove(self) -> None:
        """See HeldImage.remove."""
        self.whole = False


class SimulatedImages:
    """The images of one machine; see worker.images.Images."""

    def __init__(self) -> None:
        self._images: list[SimulatedImage] = []
        self.taken = Counter[str]()
        """How many attempts have found an image: one as of their base, or an older one; and how many have not."""

    possible = True

    def find(self, wanted: Wanted) -> tuple[SimulatedImage | None, ImageHolders]:
        """See Images.find."""
        usable = [each for each in self._images if each.whole and wanted.usable(each.head)]
        best = max(usable, key=_epoch, default=None)
        if best is not None:
            best.alone = _epoch(best) != wanted.base.epoch
        self.taken["none" if best is None else "older" if best.alone else "current"] += 1
        return best, ImageHolders.NO

    def create(self, wanted: Wanted) -> SimulatedImage:
        """See Images.create."""
        self._images = [each for each in self._images if each.whole]
        self._images.append(SimulatedImage())
        return self._images[-1]


class SimulatedMachines:
    """The machines on which attempts run."""

    def __init__(self) -> None:
        self._images = [SimulatedImages() for _ in range(MACHINES)]

    def of(self, attempt: Attempt) -> SimulatedImages:
        """Return the images of the machine on which an attempt runs."""
        drawn = int(attempt.id, 16)
        number = drawn % MACHINES
        if drawn // MACHINES % RESTARTS == 0:
            taken = self._images[number].taken
            self._images[number] = SimulatedImages()
            self._images[number].taken = taken
        return self._images[number]

    @property
    def taken(self) -> Counter[str]:
        """How many attempts have found which image."""
        return sum((each.taken for each in self._images), Counter())


def _epoch(image: SimulatedImage) -> int:
    assert image.head is not None
    return image.head.cut.epoch


def copied(tables: Mapping[int, TableContents]) -> dict[int, TableContents]:
    """Return copies of tables, by operator."""
    return {
        operator: TableContents({name: array.copy() for name, array in stored.arrays.items()}, dict(stored.numbers))
        for operator, stored in tables.items()
    }
