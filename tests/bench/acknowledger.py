"""A worker that only acknowledges: what the driver and the root see of a real one, without its work on records.

Every epoch it stores a segment and staged output, acknowledges with a new position and the delivery before,
and merges its segments by the rules of a real worker. So very many epochs can be played.

Source: runtime/worker/protocol.py; checkpoint/bases.py decides what is merged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from holdfast.checkpoint.bases import Thresholds, advanced, due
from holdfast.checkpoint.manifest import Confirmed, SubtaskPart
from holdfast.model import ObjectRef, SegmentRef, SourcePosition, Staged, Tag, WorkerId, Writer
from holdfast.ports import ObjectStore
from holdfast.runtime.wire import messages as m

OBJECT_BYTES = 500
ROWS = 10
"""Of each partition in each epoch."""


class Acknowledger:
    """One worker, of the subtask that reads the partition of its number."""

    def __init__(self, worker: WorkerId, sink: str, store: ObjectStore, send: Callable[[m.FromWorker], None]) -> None:
        self.worker, self._sink, self._store, self._send = worker, sink, store, send
        self._deploy: m.Deploy | None = None
        self._acked: m.Ack | None = None
        self._merged: SegmentRef | None = None

    def received(self, message: m.FromDriver) -> None:
        """Take a message of the driver."""
        match message:
            case m.Deploy():
                self._deploy, self._handle = message, message.handle
                self._send(m.Ready(self.worker, message.generation, "empty", 0))
            case m.Trigger():
                if self._acked is not None and self._acked.epoch == message.barrier.committed_through:
                    self._committed(self._acked.part)
                self._acked = self._ack(message)
                self._send(self._acked)
            case _:
                pass  # pulses, announcements and expiries ask for no answer

    def beat(self) -> None:
        """Send a heartbeat."""
        if self._deploy is not None:
            generation, at = self._deploy.generation, () if self._acked is None else self._acked.part.positions
            progress = m.WorkerProgress(positions=at, ends=at, operators=(m.OperatorProgress("counts", ROWS, 1, 1),))
            delivered = () if self._acked is None else self._acked.part.delivered
            self._send(m.Heartbeat(self.worker, generation, False, False, delivered, progress, partitions=1))

    def _ack(self, message: m.Trigger) -> m.Ack:
        assert self._deploy is not None
        subtask, epoch = self._deploy.role.subtask, message.barrier.epoch
        before = message.barrier.committed_through
        at = (SourcePosition("rows", subtask, epoch * ROWS, subtask=subtask),)
        segment = SegmentRef(epoch, before, self._stored("segments", epoch))
        staged = {self._sink: Staged((self._stored("staged", epoch),), ROWS)}
        delivered = (Confirmed(Writer(self._sink, subtask), Tag(self._deploy.timeline, before)),) if before else ()
        part = SubtaskPart(subtask, at, segment, staged, delivered, self._merged)
        return m.Ack(self.worker, message.generation, epoch, part)

    def _committed(self, part: SubtaskPart) -> None:
        self._handle = advanced(self._handle, part.segment, part.compacted)
        self._merged = None
        assert part.segment is not None
        if (merge := due(self._handle, part.segment.epoch, Thresholds())) is not None:
            ref = self._stored("merged" if merge.follows else "base", merge.through)
            self._merged = SegmentRef(merge.through, merge.follows, ref)

    def _stored(self, folder: str, epoch: int) -> ObjectRef:
        assert self._deploy is not None
        path = f"{folder}/{self._deploy.generation:08d}/{epoch:012d}/{self.worker}"
        data = path.encode().ljust(OBJECT_BYTES)
        self._store.create(path, data)
        return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())
