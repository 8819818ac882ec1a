"""Where a worker keeps its state: in memory, with a copy of the committed values in a local RocksDB folder.

A folder that a dead worker left on this machine is the best base: only the segments after its marker
have to be read. Folders are kept below the machine's identity and its boot id, because unsynced writes
of RocksDB are lost with the machine, not with the process, and because several machines may share the
parent folder: `<root>/<machine>/<boot id>/<job UUID>/<worker's folder>`.

Invariants
    - Folders of another machine are never opened or removed, nor is anything where the boot is unknown.

Source: DESIGN section 5 (restore); PROTOCOL P14, P15.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Cut, Epoch, Generation, JobUuid, SnapshotHandle, Timeline, WorkerId
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.wire.messages import TopicState
from holdfast.runtime.wire.presence import boot_id, machine_id
from holdfast.sinks.contract.owners import Claim
from holdfast.state.directory import claim
from holdfast.state.evolution import declaration
from holdfast.state.local.rocks import RocksMemory
from holdfast.state.marker import usable
from holdfast.state.paging.swap import Swap, resident_bytes, unfit
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.slab import PLAIN, Memory

_log = logging.getLogger("holdfast.worker")


@dataclass(frozen=True)
class Opened:
    """An open store, and which part of it may be used."""

    store: StateStore
    applied: Epoch | None
    """None if no part of it may be used."""
    key_groups: tuple[int, int] | None
    close: Callable[[], None]
    """Releases the folder."""
    ready: bool = False
    """Whether the store has the deployment's base; else it is to be restored."""
    discard: Callable[[], None] = lambda: None
    """Removes the folder: no run will need it again."""


class Target(Protocol):
    """The state of a subtask as of a completed epoch: what `Deploy` and `Follow` name."""

    @property
    def job_uuid(self) -> JobUuid: ...
    @property
    def generation(self) -> Generation: ...
    @property
    def timeline(self) -> Timeline: ...
    @property
    def base_epoch(self) -> Epoch: ...
    @property
    def handle(self) -> SnapshotHandle: ...
    @property
    def lineage(self) -> dict[Epoch, str]: ...
    @property
    def claim(self) -> Claim: ...
    @property
    def topic(self) -> TopicState | None: ...


class LocalState(Protocol):
    """Opens the state of a subtask on the best local base."""

    def open(self, plan: Plan, target: Target, worker: WorkerId) -> Opened:
        """Return a store for the subtask's key groups, not restored yet."""


class MemoryState:
    """Keeps state in memory alone."""

    def open(self, plan: Plan, target: Target, worker: WorkerId) -> Opened:
        """Return an empty store."""
        specs = [operator.table for operator in plan.operators]
        store = StateStore(identity_of(target, worker), specs, plan.key_groups, target.handle.key_groups)
        return Opened(store, None, None, lambda: None)


def local_root() -> Path:
    """Return the parent of all local folders of this user."""
    return Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"


@dataclass(frozen=True)
class Home:
    """Where a machine keeps local state: below `<root>/<machine>/<boot>`."""

    root: Path = field(default_factory=local_root)
    machine: str = field(default_factory=machine_id)
    """The identity of this machine."""
    boot: str = field(default_factory=boot_id)
    """Its boot id, empty if there is none."""

    def folder(self, *below: str) -> Path:
        """Return the folder below that of this boot; it may not exist."""
        return Path(self.root, self.machine, self.boot or "unknown-boot", *below)

    def make(self, *below: str) -> Path:
        """Create this folder; folders of earlier boots are removed.

        Raises:
            OSError: it cannot be created.
            ConfigError: others can write into the root.
        """
        self.root.mkdir(exist_ok=True, mode=0o700)
        _check_owner(self.root)
        _remove_earlier_boots(self.root / self.machine, self.boot)
        made = self.folder(*below)
        made.mkdir(parents=True, exist_ok=True, mode=0o700)
        return made


class LocalFolders:
    """Keeps state in RocksDB folders of this machine.

    Args:
        home: Where they are; default: below the system's temporary directory.
        budget: What the state may keep in memory; None: all of it.
    """

    def __init__(self, home: Home | None = None, budget: Budget | None = None) -> None:
        self._home, self._budget = home or Home(), budget
        self._rocks = RocksMemory() if budget is None else RocksMemory(budget.rocks, budget.rocks // 2)
        self._others_bytes = resident_bytes()
        """The interpreter and its libraries, which do not count."""
        self._folders = set[Path]()
        self._swap: Swap | None = None
        """Of all stores: the budget is that of the worker."""

    def discard(self) -> None:
        """Remove the folders: the job has finished and will not need them again."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def open(self, plan: Plan, target: Target, worker: WorkerId) -> Opened:
        """Take over the folder that leaves the least to restore, else create one."""
        parent = self._home.folder(target.job_uuid)
        lineage, owned, epoch = target.lineage, target.handle.key_groups, target.base_epoch
        specs = [operator.table for operator in plan.operators]
        declared = {spec.operator: declaration(spec) for spec in specs}
        try:
            self._home.make(target.job_uuid)
            folder = claim(parent, target.job_uuid, lineage, epoch, owned, declared, self._rocks)
            memory = self._memory(parent)
        except OSError as error:
            raise Unavailable(
                f"no local folder for state can be created below {parent}: {error}",
                not_done="the subtask was not started on this machine",
                next_step="free disk space, or set TMPDIR on the executors to a writable folder",
            ) from error
        self._folders.add(folder.path)
        covered = usable(folder.marker, target.job_uuid, lineage, epoch, owned, declared)
        store = StateStore(identity_of(target, worker), specs, plan.key_groups, owned, folder.store, memory)
        applied = folder.marker.applied if covered is not None and folder.marker is not None else None
        return Opened(store, applied, covered, folder.store.close)

    def _memory(self, folder: Path) -> Memory:
        """Return the memory of the tables: a swap area, if there is a budget and the folder is on a disk."""
        if self._budget is None:
            return PLAIN
        if why := unfit(folder):
            _log.warning(
                "state cannot leave memory: %s; a state larger than memory ends this worker. "
                "Set TMPDIR on the executors to a folder on a disk.",
                why,
            )
            return PLAIN
        if self._swap is None:
            self._swap = Swap(folder, self._others_bytes + self._budget.total, self._budget.tables)
        return self._swap


def _remove_earlier_boots(boots: Path, boot: str) -> None:
    """Remove the folders of this machine's earlier boots: they are not a usable base."""
    for other in boots.iterdir() if boot and boots.is_dir() else ():
        if other.name != boot:
            shutil.rmtree(other, ignore_errors=True)


def _check_owner(root: Path) -> None:
    """Never load state from a folder that others can write."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"{root} is not a folder that only this user owns and can write",
            not_done="no state was read from it or written to it",
            next_step="remove it, or set TMPDIR on the executors to another folder",
        )


def identity_of(target: Target, worker: WorkerId) -> Identity:
    """Return the identity of a subtask's state: the job, generation, timeline and worker."""
    return Identity(target.job_uuid, Generation(target.generation), target.timeline, worker)


def cut_of(target: Target) -> Cut:
    """Return the completed epoch of a target, with its manifest."""
    return Cut(target.base_epoch, target.lineage.get(target.base_epoch, ""))
