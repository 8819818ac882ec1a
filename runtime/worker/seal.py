"""Make one worker's part of an epoch durable: the changelog segment, the staged output, the record of the order.

The operator thread prepares the job from frozen values, the upload lane runs it. Object names begin with
generation, epoch and worker, so a late write of a zombie can never change an object that a manifest names.

Invariants
    - `run` may be repeated after an unknown outcome: names and bytes are the same each time.
    - Nothing is returned before the store has confirmed every object.

Source: PROTOCOL P8, P16; DESIGN section 4, step 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.checkpoint.repository import write_object
from holdfast.model import Epoch, ObjectRef, SegmentRef, Staged, Subtask, Uploaded, WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.wire.messages import Deploy
from holdfast.runtime.worker.digests import ROWS
from holdfast.runtime.worker.order import SubtaskOrder, encode
from holdfast.runtime.worker.protocol import Sealed
from holdfast.runtime.worker.uploads import Uploads
from holdfast.sinks.contract.target import Upload
from holdfast.sinks.protocol.staging import Stage, StagedPart
from holdfast.state.changelog import SegmentHeader, seal_into
from holdfast.state.store import StateStore
from holdfast.state.tables.delta import EpochChanges
from holdfast.storage.hashing import ByteSink, Tee
from holdfast.storage.once import create_each_same


@dataclass
class SealJob:
    """Frozen values and collected output of one epoch."""

    header: SegmentHeader
    deltas: Sequence[EpochChanges]
    stages: Mapping[str, Stage]
    audit: str = ROWS
    """The setting: with "rows" the output is hashed too."""
    writer: Subtask | None = None
    """As in SegmentRef."""
    subtask: Subtask = Subtask(0)
    uploads: Uploads | None = None
    records_order: bool = False
    order: SubtaskOrder | None = None
    """The steps of the epoch; None if there were none, or they are not recorded."""
    copied_max: int = 0
    """Bytes of the object up to which `data` holds it."""
    data: bytes | None = None
    """The segment that was stored; None if it is larger."""
    _parts: dict[str, StagedPart] | None = field(default=None)

    def run(self, store: ObjectStore) -> Sealed:
        """Store everything and return the references. The segment is written while it is sealed."""
        records = sum(map(len, self.deltas))
        segment = self._write_segment(store) if records else None
        if self._parts is None:
            sealed = {sink: stage.seal(hashed=self.audit == ROWS) for sink, stage in self.stages.items()}
            self._parts = {sink: part for sink, part in sealed.items() if part is not None}
        paths = {sink: self._staged_path(sink) for sink in self._parts}
        order = {} if self.order is None else {self._order_path: encode(self.order)}
        create_each_same(store, {paths[sink]: part.data for sink, part in self._parts.items()} | order)
        staged = {sink: self._staged(sink, paths[sink], part) for sink, part in self._parts.items()}
        digests = {sink: part.digest for sink, part in self._parts.items()}
        orders = tuple(_reference(path, data) for path, data in order.items()) if self.records_order else None
        return Sealed(segment, staged, digests, records, orders)

    def _staged(self, sink: str, path: str, part: StagedPart) -> Staged:
        """Return what the manifest says of a part that is stored; large ones are also put into the target."""
        named = None if self.uploads is None else self.uploads.upload(self._upload(sink), part)
        return Staged((_reference(path, part.data),), part.rows, () if named is None else (Uploaded(path, named),))

    def _write_segment(self, store: ObjectStore) -> SegmentRef:
        def write(into: ByteSink) -> None:
            copy = Tee(into, self.copied_max)
            seal_into(copy, self.header, self.deltas)
            self.data = copy.data

        ref = write_object(store, self._segment_path, write, "check the store; the epoch is sealed again")
        return SegmentRef(Epoch(self.header.epoch), Epoch(self.header.follows), ref, writer=self.writer)

    def _upload(self, sink: str) -> Upload:
        h = self.header
        return Upload(h.job_uuid, sink, h.timeline, h.epoch, h.generation, h.worker, self.subtask)

    @property
    def _segment_path(self) -> str:
        h = self.header
        return f"segments/{h.generation:08d}/{h.epoch:012d}/{h.worker}.segment"

    def _staged_path(self, sink: str) -> str:
        h = self.header
        return f"staged/{h.generation:08d}/{h.epoch:012d}/{h.worker}-{sink}.arrow"

    @property
    def _order_path(self) -> str:
        h = self.header
        return f"orders/{h.generation:08d}/{h.epoch:012d}/{h.worker}.order"


def _reference(path: str, data: bytes) -> ObjectRef:
    return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())


def segment_job(
    state: StateStore,
    epoch: Epoch,
    deploy: Deploy,
    worker: WorkerId,
    stages: Mapping[str, Stage],
    uploads: Uploads | None = None,
    order: SubtaskOrder | None = None,
) -> SealJob:
    """Take the frozen changes of an epoch, and of the given-up epochs before it; they may be sealed later."""
    state.supersede(epoch)
    deltas = state.deltas(epoch)
    follows = min((delta.follows for delta in deltas), default=epoch)
    header = SegmentHeader(deploy.job_uuid, deploy.generation, deploy.timeline, epoch, follows, worker)
    writer = None if deploy.topic is None else deploy.topic.writer(deploy.subtask)
    given = deploy.audit, writer, deploy.subtask, uploads, deploy.records_order, order
    return SealJob(header, deltas, stages, *given)
