"""The local disk that all simulated workers share: folders with committed state, left by dead workers.

After a kill a folder holds a prefix of its writes, as with RocksDB. A worker adopts any unlocked folder whose marker
makes it usable, not the best one: every usable folder must be a correct base.

Source: PROTOCOL P14, P15; runtime/worker/local.py, which chooses by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.faults.schedule import Process
from holdfast.chaos.sim.ports.surroundings import Surroundings
from holdfast.errors import Unavailable
from holdfast.model import WorkerId
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.worker.local import Opened, Target, identity_of
from holdfast.state.evolution import declaration
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.state.marker import read_marker, usable
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import PLAIN, PlainMemory


@dataclass(eq=False)
class Folder:
    """One folder; `holder` has locked it."""

    boot: int
    """The machine's boot in which it was made; a folder from an earlier boot is never used."""
    store: MemoryKeyValue = field(default_factory=MemoryKeyValue)
    holder: Process | None = None


class HeldFolder:
    """The KeyValue port of a folder's holder."""

    def __init__(self, world: Surroundings, folder: Folder, process: Process) -> None:
        self._world, self._folder, self._process = world, folder, process

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See KeyValue.get_many."""
        return self._folder.store.get_many(keys)

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        """See KeyValue.write."""
        self._process.call(lambda: self._change(lambda: self._folder.store.write(puts, deletes)), _applying)

    def _change(self, effect: Callable[[], None]) -> None:
        faults = self._world.faults
        if faults.down(Fault.DISK_FULL):
            faults.hit(Fault.DISK_FULL, _applying())
            raise Unavailable("no space left for local state", next_step="make room")
        if faults.strikes(Fault.DISK_ERROR, _applying):
            if self._world.random.random() < 0.5:
                effect()
            raise Unavailable("input/output error in local state", next_step="try again")
        effect()

    def erase(self, ranges: list[tuple[bytes, bytes]]) -> None:
        """See KeyValue.erase."""
        self._process.call(lambda: self._change(lambda: self._folder.store.erase(ranges)), _applying)

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


class SwapArea(PlainMemory):
    """The memory of one worker's tables, as if they were always larger than their budget: they need room on the disk.

    Nothing is written. As in state/paging/swap.py, `refused` is what the last attempt found.
    """

    def __init__(self, world: Surroundings) -> None:
        self._world = world

    def settle(self) -> None:
        """See Memory.settle."""
        full = self._world.faults.down(Fault.DISK_FULL)
        if full:
            self._world.faults.hit(Fault.DISK_FULL, (Point.BETWEEN,))
        self.refused = "no space left for state" if full else ""


def _applying() -> tuple[Point, ...]:
    return (Point.APPLY,)


class Disk:
    """All folders of the machine."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self._folders: list[Folder] = []
        self._boot = 0
        self.reused = 0

    def take(self, plan: Plan, target: Target, worker: WorkerId, process: Process) -> Opened:
        """Open any usable folder, or else a new one."""
        lineage, owned, epoch = target.lineage, target.handle.key_groups, target.base_epoch
        specs = [operator.table for operator in plan.operators]
        declared = {spec.operator: declaration(spec) for spec in specs}
        found = []
        for folder in self._folders:
            marker = read_marker(folder.store) if folder.holder is None and self._is_of_now(folder) else None
            if usable(marker, target.job_uuid, lineage, epoch, owned, declared) is not None:
                found.append(folder)
        folder = self._world.random.choice(found) if found else Folder(self._boot)
        if not found:
            self._folders.append(folder)
        folder.holder = process
        held, marker = HeldFolder(self._world, folder, process), read_marker(folder.store)
        memory = SwapArea(self._world) if self._world.scenario.budgeted else PLAIN
        store = StateStore(identity_of(target, worker), specs, plan.key_groups, owned, held, memory)
        if marker is None:
            return Opened(store, None, None, held.close)
        self.reused += 1
        self._world.schedule.journal.say(process.name, f"adopts a folder of epoch {marker.applied}")
        self._world.checks.folder_taken(target.timeline, (marker.applied, marker.applying))
        covered = usable(marker, target.job_uuid, lineage, epoch, owned, declared)
        return Opened(store, marker.applied, covered, held.close)

    def unflushed(self, process: Process) -> int:
        """Return how many writes of a process a kill could still undo."""
        return sum(folder.store.unflushed for folder in self._folders if folder.holder is process)

    def power_lost(self) -> None:
        """The machine reboots: any subset of the unflushed writes may survive."""
        self._boot += 1
        for folder in self._folders:
            chance = self._world.random
            kept = [number for number in range(folder.store.unflushed) if chance.random() < 0.5]
            folder.store = folder.store.after_power_loss(kept)

    def _is_of_now(self, folder: Folder) -> bool:
        """See runtime/worker/local.py: folders are kept below the machine's boot id."""
        return folder.boot == self._boot

    def lost(self, process: Process) -> None:
        """A process was killed: a prefix of its writes survives."""
        for folder in self._folders:
            if folder.holder is process:
                folder.store = folder.store.after_kill(self._world.random.randint(0, folder.store.unflushed))
                folder.holder = None


class DiskState:
    """The LocalState port of one worker."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk, self._process = disk, process

    def open(self, plan: Plan, target: Target, worker: WorkerId) -> Opened:
        """See LocalState.open."""
        return self._disk.take(plan, target, worker, self._process)
