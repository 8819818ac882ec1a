"""Where a worker keeps its state: memory, and behind it a local folder with RocksDB.

A folder that a dead worker left on this machine is the best base there is: only the segments after
its marker have to be read. Folders lie below the machine's identity and its boot id, because what
RocksDB has not synced is lost with the machine, not with the process, and because several machines may
share the folder above: `<root>/<machine>/<boot id>/<job UUID>/<worker's folder>`.

Invariants
    - Folders of another machine are never opened or removed, nor is anything where the boot is unknown.

Source: DESIGN section 5 (restore); PROTOCOL P14, P15.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Epoch, Generation, WorkerId
from holdfast.runtime.messages import Deploy
from holdfast.runtime.plan import Plan
from holdfast.runtime.presence import boot_id, machine_id
from holdfast.state.directory import claim
from holdfast.state.marker import usable
from holdfast.state.store import Identity, StateStore


@dataclass(frozen=True)
class Opened:
    """A store that was opened, and what of it may be used."""

    store: StateStore
    applied: Epoch | None
    """None if nothing of it may be used."""
    key_groups: tuple[int, int] | None
    close: Callable[[], None]
    """Releases the folder."""


class LocalState(Protocol):
    """Opens the state of a subtask with whatever base is at hand."""

    def open(self, plan: Plan, deploy: Deploy, worker: WorkerId) -> Opened:
        """Return a store for the subtask's key groups, not restored yet."""


class MemoryState:
    """Keeps state in memory alone."""

    def open(self, plan: Plan, deploy: Deploy, worker: WorkerId) -> Opened:
        """Return an empty store."""
        specs = [operator.table for operator in plan.operators]
        store = StateStore(identity_of(deploy, worker), specs, plan.key_groups, deploy.handle.key_groups)
        return Opened(store, None, None, lambda: None)


class LocalFolders:
    """Keeps state in RocksDB folders of this machine.

    Args:
        root: Parent of all folders; default: below the system's temporary directory.
        machine: What this machine is known by.
        boot: Its boot id, empty if there is none.
    """

    def __init__(self, root: Path | None = None, machine: str | None = None, boot: str | None = None) -> None:
        self._folder: Path | None = None
        self._root = root or Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
        self._machine = machine_id() if machine is None else machine
        self._boot = boot_id() if boot is None else boot

    def discard(self) -> None:
        """The job is finished: nobody will need the folder again."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, plan: Plan, deploy: Deploy, worker: WorkerId) -> Opened:
        """Take over the folder that leaves least to restore, else a new one."""
        boots = self._root / self._machine
        parent = boots / (self._boot or "unknown-boot") / deploy.job_uuid
        lineage, owned, target = deploy.lineage, deploy.handle.key_groups, deploy.base_epoch
        try:
            self._root.mkdir(exist_ok=True, mode=0o700)
            _check_owner(self._root)
            _remove_earlier_boots(boots, self._boot)
            parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = claim(parent, deploy.job_uuid, lineage, target, owned)
        except OSError as error:
            raise Unavailable(
                f"no local folder for state below {parent}: {error}",
                not_done="the subtask was not started on this machine",
                next_step="make room or set TMPDIR on the executors to a folder that can be written",
            ) from error
        self._folder = folder.path
        covered = usable(folder.marker, deploy.job_uuid, lineage, target, owned)
        specs = [operator.table for operator in plan.operators]
        store = StateStore(identity_of(deploy, worker), specs, plan.key_groups, owned, folder.store)
        applied = folder.marker.applied if covered is not None and folder.marker is not None else None
        return Opened(store, applied, covered, folder.store.close)


def _remove_earlier_boots(boots: Path, boot: str) -> None:
    """Remove what this machine left before it was started again: it is no base for anything."""
    for other in boots.iterdir() if boot and boots.is_dir() else ():
        if other.name != boot:
            shutil.rmtree(other, ignore_errors=True)


def _check_owner(root: Path) -> None:
    """What lies in a folder that somebody else can write is nobody's state."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"{root} is not a folder of this user alone",
            not_done="no state was read from it or written to it",
            next_step="remove it, or set TMPDIR on the executors to another folder",
        )


def identity_of(deploy: Deploy, worker: WorkerId) -> Identity:
    """Return whose state a deployment is."""
    return Identity(deploy.job_uuid, Generation(deploy.generation), deploy.timeline, worker)
