"""The copies that a standby keeps of other workers' state.

A copy is a state store that processes no records: it advances by the segments of completed epochs, which the driver
names in `Follow`. So it holds committed state only, and the worker that takes its subtask over needs just the pieces
that the copy still lacks.

Invariants
    - A copy is as of one completed epoch, which its cut names.
    - A copy advances only along the lineage of its target (P14), and never over a base, which does not record what was
      deleted.
    - All pieces are open before the first is absorbed: a root that cannot be reached changes no copy. A copy that is
      not absorbed to the end is discarded.
    - The copy that is furthest behind advances first. Slots without a row are dropped, as operators do at barriers.
    - A restore ends once the worker is to run another subtask.

For use by one thread, the operator thread.
Source: docs/decisions/0054-standbys.md; DESIGN section 5 (standby); PROTOCOL P14.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from holdfast.checkpoint.bases import pieces
from holdfast.errors import HoldfastError, Unavailable
from holdfast.model import NO_EPOCH, Epoch, Generation, Subtask, WorkerId
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker.compaction import opened_beyond, reading
from holdfast.runtime.worker.local.opened import OpenStore
from holdfast.runtime.worker.ports import SubtaskPorts
from holdfast.runtime.worker.target import StateTarget, cut_of

RETRY_S = 1.0
"""Time between two attempts to read a root that is unreachable."""
OPENED_BYTES_MAX = 512 << 20
"""The limit for pieces that are open together: object stores hold them in memory. More are restored one by one."""


class _Superseded(Exception):
    """The worker is to run another subtask than the one whose copy is being restored."""


class StandbyCopies:
    """All copies of one worker.

    Args:
        advanced: Called with the bytes restored so far and those of all pieces, while a copy is being restored.
    """

    def __init__(
        self,
        plan: Plan,
        ports: SubtaskPorts,
        worker: WorkerId,
        advanced: Callable[[int, int], object],
    ) -> None:
        self._plan, self._ports, self._worker, self._advanced = plan, ports, worker, advanced
        self._wanted = dict[Subtask, m.Follow]()
        self._copies = dict[Subtask, OpenStore]()
        self._retry_at = dict[Subtask, float]()
        self._to_run: Subtask | None = None
        self.generation = Generation(0)
        """That of the newest `Follow`."""
        self.refused = ""
        """Why the root could not be read at the last attempt; empty if it could."""

    def ask(self, message: m.Follow) -> None:
        """Note the epoch to which a copy is to be brought, and give up the copies that are not followed any more."""
        if message.generation < self.generation:
            return
        self.generation = message.generation
        before = self._wanted.get(message.subtask)
        if before is None or (before.generation, before.base_epoch) <= (message.generation, message.base_epoch):
            self._wanted[message.subtask] = self._joined(before, message)
        for subtask in self._wanted.keys() - set(message.role.follows):
            del self._wanted[subtask]
            self._discard(subtask)

    def _joined(self, before: m.Follow | None, message: m.Follow) -> m.Follow:
        """Return the message with the epochs that the copy has reached since its last heartbeat in the lineage.

        The driver names the epoch that was last reported, and the copy may be newer. An earlier message named that
        epoch: epochs that completed on one timeline are on one lineage.
        """
        if before is None or (before.job_uuid, before.timeline) != (message.job_uuid, message.timeline):
            return message
        at = self._epoch_of(message.subtask)
        known = {epoch: manifest for epoch, manifest in before.lineage.items() if epoch >= at}
        return msgspec.structs.replace(message, lineage=known | message.lineage)

    def hurry(self, subtask: Subtask | None) -> None:
        """End a restore of another copy: the worker is to run this subtask; None: no longer. From any thread."""
        self._to_run = subtask

    def turn(self) -> bool:
        """Bring one copy to its target; return whether there was one to bring.

        Raises:
            HoldfastError: a copy can never be brought to its target here. Not if the root is unreachable.
        """
        if self._is_full():
            return False
        now = self._ports.clock.monotonic()
        behind = [
            subtask
            for subtask, target in self._wanted.items()
            if not self._is_current(subtask, target) and self._retry_at.get(subtask, now) <= now
        ]
        if behind:
            subtask = min(behind, key=self._epoch_of)
            self._bring_unless_refused(subtask, self._wanted[subtask])
        return bool(behind)

    def _is_full(self) -> bool:
        """Return whether copies wait for room on the local disk."""
        full = [copy.store for copy in self._copies.values() if copy.store.refused]
        for store in full:
            store.settle()
            self.refused = store.refused or self.refused
        return any(store.refused for store in full)

    def _epoch_of(self, subtask: Subtask) -> Epoch:
        copy = self._copies.get(subtask)
        return NO_EPOCH if copy is None else copy.store.committed_through

    def take(self, target: m.Deploy) -> OpenStore | None:
        """Give up all copies; return that of the target's subtask, brought to the target, or None if it cannot be.

        Raises:
            HoldfastError: a piece that the copy lacks cannot be read.
        """
        try:
            subtask = target.subtask
            if not self._continues(subtask, target):
                self._discard(subtask)  # the restore may use its folder, so it is released first
                return None
            self._bring(subtask, target)
            return self._copies.pop(subtask)
        finally:
            self._leave_others(target.subtask)
            self.close()

    def _leave_others(self, subtask: Subtask) -> None:
        """Give up the other copies; their folders are released beside the work of the subtask.

        RocksDB takes the longer to close the more state it has, while the records of the subtask wait.
        """
        for other in self._copies.keys() - {subtask}:
            self._ports.lane("release").submit(self._copies.pop(other).close, lambda _: None)

    def stock(self) -> tuple[m.StandbyCopy, ...]:
        """Return what the copies hold."""
        return tuple(self._copied(subtask, target) for subtask, target in sorted(self._wanted.items()))

    @property
    def state_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(copy.store.nbytes for copy in self._copies.values())

    def close(self) -> None:
        """Give up all copies; their folders remain, as bases of later restores."""
        self._wanted.clear()
        self._retry_at.clear()
        for subtask in list(self._copies):
            self._discard(subtask)

    def _copied(self, subtask: Subtask, target: m.Follow) -> m.StandbyCopy:
        at = self._epoch_of(subtask)
        return m.StandbyCopy(subtask, at, sum(p.object.size for p in pieces(target.handle) if p.epoch > at))

    def _is_current(self, subtask: Subtask, target: StateTarget) -> bool:
        copy = self._copies.get(subtask)
        return copy is not None and copy.store.cut == cut_of(target)

    def _continues(self, subtask: Subtask, target: StateTarget) -> bool:
        """Return whether the copy is as of an epoch on the lineage of the target, for the same key groups."""
        copy = self._copies.get(subtask)
        if copy is None or copy.store.owned != target.handle.key_groups:
            return False
        cut = copy.store.cut
        on_lineage = bool(cut.manifest) and target.lineage.get(cut.epoch) == cut.manifest
        return on_lineage and cut.epoch <= target.base_epoch

    def _bring_unless_refused(self, subtask: Subtask, target: StateTarget) -> None:
        try:
            if not self._continues(subtask, target):
                self._discard(subtask)
            self._bring(subtask, target)
            self.refused = ""
        except Unavailable as error:
            self.refused, self._retry_at[subtask] = error.what, self._ports.clock.monotonic() + RETRY_S
        except _Superseded:
            pass  # the message that names the other subtask is next

    def _bring(self, subtask: Subtask, target: StateTarget) -> None:
        """Bring the copy of a subtask to its target: by the pieces that it lacks, else from all pieces.

        Raises:
            HoldfastError: a piece cannot be read; the copy is as before, or there is none any more.
        """
        copy = self._copies.get(subtask)
        with ExitStack() as stack:
            new = None
            if copy is not None:
                at, read = copy.store.committed_through, reading(self._ports.store)
                new = opened_beyond(self._plan, target, at, read, stack, OPENED_BYTES_MAX, self._advanced)
            if copy is None or new is None:
                self._discard(subtask)
                self._copies[subtask] = self._restored(target)
                return
            if copy.store.committed_through < target.base_epoch:
                try:
                    copy.store.follow(target.base_epoch, new, lambda: self._advanced(0, 0))
                except HoldfastError:
                    self._discard(subtask)
                    raise
                copy.store.drop_vacant()
            copy.store.completed(cut_of(target))

    def _restored(self, target: StateTarget) -> OpenStore:
        def advanced(done_bytes: int, all_bytes: int) -> None:
            if self._to_run not in (None, target.handle.subtask):
                raise _Superseded
            self._advanced(done_bytes, all_bytes)

        opened = self._ports.local.open(self._plan, target, self._worker, self._ports.store, advanced)
        opened.store.drop_vacant()
        return opened

    def _discard(self, subtask: Subtask) -> None:
        if (copy := self._copies.pop(subtask, None)) is not None:
            copy.close()
