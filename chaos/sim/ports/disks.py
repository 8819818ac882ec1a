"""The local disk that all simulated workers share: images and copies that dead workers have left.

After a kill, copies are a prefix of the writes, as with RocksDB; after a power loss any subset of it, in folders
of an earlier boot. A worker takes any folder that no process holds: it identifies copies by their content.

Source: PROTOCOL P14, P15; docs/decisions/0122-local-images.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.images import SimulatedImage, SimulatedMemory
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.errors import Unavailable
from holdfast.model import Epoch, WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.worker.compaction import Advanced
from holdfast.runtime.worker.local.kept import LocalCopies, Subtask
from holdfast.runtime.worker.local.opened import OpenStore
from holdfast.runtime.worker.target import StateTarget
from holdfast.state.local.copies import Copies
from holdfast.state.local.image import ImageHolders, Wanted
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import PLAIN, PlainMemory


@dataclass(eq=False)
class KeptCopies:
    """One folder of copies; `holder` has locked it."""

    boot: int
    """The machine's boot in which it was made; a folder from an earlier boot is never used."""
    store: MemoryKeyValue = field(default_factory=MemoryKeyValue)
    holder: Process | None = None


class HeldFolder:
    """A folder of copies, and the KeyValue port of its holder."""

    def __init__(self, world: Surroundings, folder: KeptCopies, process: Process) -> None:
        self._world, self._folder, self._process = world, folder, process
        self.copies = Copies(self)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See KeyValue.get_many."""
        return self._folder.store.get_many(keys)

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        """See KeyValue.write."""
        self._process.call(lambda: self._change(lambda: self._folder.store.write(puts, deletes)), _keeping)

    def _change(self, effect: Callable[[], None]) -> None:
        refuse(self._world, effect)

    def erase(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """See KeyValue.erase."""
        self._process.call(lambda: self._change(lambda: self._folder.store.erase(ranges)), _keeping)

    def scan(self, first: bytes, end: bytes, pairs_max: int | None = None) -> list[tuple[bytes, bytes]]:
        """See KeyValue.scan."""
        return self._folder.store.scan(first, end, pairs_max)

    def flush(self, wait: bool = True) -> None:
        """See KeyValue.flush."""
        self._folder.store.flush()

    def close(self) -> None:
        """See KeyValue.close."""
        self._folder.store.flush()
        self._folder.holder = None

    def discard(self) -> None:
        """Remove all that is in it."""
        self._folder.store = MemoryKeyValue()
        self._folder.holder = None


def refuse(world: Surroundings, effect: Callable[[], None]) -> None:
    """Carry out a change of the disk, unless it is full or fails."""
    faults = world.faults
    if faults.down(Fault.DISK_FULL):
        faults.hit(Fault.DISK_FULL, _keeping())
        raise Unavailable("no space left for local state", next_step="make room")
    if faults.strikes(Fault.DISK_ERROR, _keeping):
        if world.random.random() < 0.5:
            effect()
        raise Unavailable("input/output error in local state", next_step="try again")
    effect()


class SwapArea(PlainMemory):
    """The memory of one worker's tables, as if they were always larger than their budget: they need room on the disk.

    Nothing is written. As in state/paging/swap.py, `refused` is the result of the last attempt.
    """

    def __init__(self, world: Surroundings) -> None:
        self._world = world

    def settle(self) -> None:
        """See Memory.settle."""
        full = self._world.faults.down(Fault.DISK_FULL)
        if full:
            self._world.faults.hit(Fault.DISK_FULL, (Point.BETWEEN,))
        self.refused = "no space left for state" if full else ""


def _keeping() -> tuple[Point, ...]:
    return (Point.APPLY,)


class KeptImage(SimulatedImage):
    """An image on the disk; `holder` has locked it."""

    def __init__(self, disk: Disk, process: Process) -> None:
        super().__init__()
        self._disk, self.boot = disk, disk.boot
        self.holder: Process | None = process

    def finish(self, store: StateStore, memory: SimulatedMemory, wanted: Wanted, *, hashed: bool = False) -> None:
        """See HeldImage.finish."""
        assert self.holder is not None
        done = partial(super().finish, store, memory, wanted)
        self.holder.call(lambda: refuse(self._disk.world, done), _keeping)

    def release(self) -> None:
        """See HeldImage.release."""
        self.holder = None
        self._disk.tidy()

    def remove(self) -> None:
        """See HeldImage.remove."""
        self.whole = False
        self.release()


class ImagesOf:
    """The images of the machine, as one process sees them; see worker.local.images.Images."""

    possible = True

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk, self._process = disk, process

    def find(self, wanted: Wanted) -> tuple[KeptImage | None, ImageHolders]:
        """Return any usable image, not only the best one: each must be a correct base."""
        usable = [each for each in self._disk.free_images() if wanted.usable(each.head)]
        if not usable:
            return None, ImageHolders.NO
        image = self._disk.world.random.choice(usable)
        assert image.head is not None
        image.holder = self._process
        self._disk.adopted(self._process, image.head.cut.epoch)
        return image, ImageHolders.NO

    def create(self, wanted: Wanted) -> KeptImage:
        """See Images.create."""
        image = KeptImage(self._disk, self._process)
        self._disk.images.append(image)
        return image


class Disk:
    """All that is on the machine."""

    def __init__(self, world: Surroundings) -> None:
        self.world, self.images = world, list[KeptImage]()
        self._folders = list[KeptCopies]()
        self.boot = 0
        self.reused = 0
        """Images, and folders with copies, that a process left and another took over."""

    def claim(self, process: Process) -> HeldFolder:
        """Open any folder of copies that no process holds, or else a new one."""
        found = [each for each in self._folders if each.holder is None and self._is_of_now(each)]
        folder = self.world.random.choice(found) if found else KeptCopies(self.boot)
        if not found:
            self._folders.append(folder)
        folder.holder = process
        held = HeldFolder(self.world, folder, process)
        self.reused += held.copies.nbytes > 0
        return held

    def free_images(self) -> list[KeptImage]:
        """Return the images of this boot that are whole and that no process holds."""
        return [each for each in self.images if each.whole and each.holder is None and self._is_of_now(each)]

    def _is_of_now(self, kept: KeptCopies | KeptImage) -> bool:
        """See runtime/worker/local/home.py: everything is kept below the machine's boot id."""
        return kept.boot == self.boot

    def adopted(self, process: Process, epoch: Epoch) -> None:
        """Note that a process took an image over."""
        self.reused += 1
        self.world.schedule.journal.say(process.name, f"adopts an image of epoch {epoch}")

    def tidy(self) -> None:
        """Remove the images that are not whole and that no process holds."""
        self.images = [each for each in self.images if each.whole or each.holder is not None]

    def unflushed(self, process: Process) -> int:
        """Return how many writes of a process a kill could still undo."""
        return sum(folder.store.unflushed for folder in self._folders if folder.holder is process)

    def power_lost(self) -> None:
        """The machine reboots: any subset of the unflushed writes may survive."""
        self.boot += 1
        for folder in self._folders:
            chance = self.world.random
            kept = [number for number in range(folder.store.unflushed) if chance.random() < 0.5]
            folder.store = folder.store.after_power_loss(kept)

    def lost(self, process: Process) -> None:
        """A process was killed: a prefix of its writes survives."""
        for folder in self._folders:
            if folder.holder is process:
                folder.store = folder.store.after_kill(self.world.random.randint(0, folder.store.unflushed))
                folder.holder = None
        for image in self.images:
            if image.holder is process:
                image.holder = None
        self.tidy()


class DiskState:
    """The LocalState port of one worker."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk, self._process = disk, process

    def open(
        self,
        plan: Plan,
        target: StateTarget,
        worker: WorkerId,
        root: ObjectStore,
        advanced: Advanced = lambda *_: None,
    ) -> OpenStore:
        """See LocalState.open."""
        disk, process = self._disk, self._process
        memory = SwapArea(disk.world) if disk.world.scenario.budgeted else PLAIN
        local_copy = LocalCopies(Subtask(plan, worker, root), ImagesOf(disk, process), lambda: disk.claim(process))
        try:
            store = local_copy.open(target, memory, advanced)
        except BaseException:
            local_copy.close()
            raise
        return OpenStore(store, local_copy.close, local_copy, local_copy.discard)
