"""How the state of a subtask is opened: in memory alone, or with what the local disk has of it.

Source: docs/decisions/0122-local-images.md; DESIGN section 5 (restore).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import Unavailable
from holdfast.model import WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.memory import Budget
from holdfast.runtime.worker.compaction import Advanced, reading, restore
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.images import LocalImages
from holdfast.runtime.worker.local.kept import LocalCopies, Subtask
from holdfast.runtime.worker.target import StateTarget, new_store
from holdfast.state.local.directory import claim
from holdfast.state.local.rocks import RocksMemory
from holdfast.state.paging.swap import SwapMemory, resident_bytes, unfit
from holdfast.state.store import StateStore
from holdfast.state.tables.slab import PLAIN, Memory

_log = logging.getLogger("holdfast.worker")
COPIES = "copies"


@dataclass(frozen=True)
class OpenStore:
    """An open store at its target."""

    store: StateStore
    close: Callable[[], None]
    """Releases what it has on disk."""
    kept: LocalCopies[Any, Any] | None = None
    discard: Callable[[], None] = lambda: None
    """Removes what it has on disk: no run will need it again."""


class LocalState(Protocol):
    """Opens the state of a subtask, with the best that this machine has of it."""

    def open(
        self,
        plan: Plan,
        target: StateTarget,
        worker: WorkerId,
        root: ObjectStore,
        advanced: Advanced = lambda *_: None,
    ) -> OpenStore:
        """Return a store at the target.

        Args:
            root: The job's.

        Raises:
            HoldfastError: it cannot be restored.
        """


class MemoryState:
    """Keeps state in memory alone."""

    def open(
        self,
        plan: Plan,
        target: StateTarget,
        worker: WorkerId,
        root: ObjectStore,
        advanced: Advanced = lambda *_: None,
    ) -> OpenStore:
        """Return a store restored from the root."""
        store = new_store(plan, target, worker, PLAIN)
        restore(store, plan, target, reading(root), advanced)
        return OpenStore(store, lambda: None)


class LocalFolders:
    """Keeps images and copies in folders of this machine.

    Args:
        home: Where they are; default: below the system's temporary directory.
        budget: Bytes of the state that may stay in memory; None: all of it.
    """

    def __init__(self, home: Home | None = None, budget: Budget | None = None) -> None:
        self._home, self._budget = home or Home(), budget
        self._images = LocalImages(self._home, budget)
        self._rocks = RocksMemory() if budget is None else RocksMemory(budget.rocks, budget.rocks // 2)
        self._others_bytes = resident_bytes()
        """The interpreter and its libraries, which do not count."""
        self._opened = list[LocalCopies[Any, Any]]()
        self._swap: SwapMemory | None = None
        """Shared by all stores: the budget is that of the worker."""

    def discard(self) -> None:
        """Remove the folders: the job has finished and will not need them again."""
        for kept in self._opened:
            kept.discard()

    def open(
        self,
        plan: Plan,
        target: StateTarget,
        worker: WorkerId,
        root: ObjectStore,
        advanced: Advanced = lambda *_: None,
    ) -> OpenStore:
        """Return a store at the target; see LocalState.open.

        Raises:
            Unavailable: there is no local folder, and none can be created; or the root cannot be reached.
        """
        parent = self._home.folder(target.job_uuid)
        try:
            copies = self._home.make(target.job_uuid, COPIES)
            claimed = partial(claim, copies, target.handle.key_groups, self._rocks)
            local_copies = LocalCopies(Subtask(plan, worker, root), self._images, claimed)
            memory = self._memory(parent)
        except OSError as error:
            raise Unavailable(
                f"no local folder for state can be created below {parent}: {error}",
                not_done="the subtask was not started on this machine",
                next_step="free disk space, or set TMPDIR on the executors to a writable folder",
            ) from error
        try:
            store = local_copies.open(target, memory, advanced)
        except BaseException:
            local_copies.close()
            raise
        self._opened.append(local_copies)
        return OpenStore(store, local_copies.close, local_copies, local_copies.discard)

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
            limits = self._others_bytes + self._budget.total, self._budget.tables
            self._swap = SwapMemory(folder, *limits)
        return self._swap
