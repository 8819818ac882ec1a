"""Make one worker's part of an epoch durable: the changelog segment and the staged output.

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

from holdfast.model import Epoch, ObjectRef, RowDigest, SegmentRef, Staged, WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.wire.messages import Deploy
from holdfast.runtime.worker.digests import ROWS
from holdfast.runtime.worker.protocol import Sealed
from holdfast.sinks.staging import Stage
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.store import StateStore
from holdfast.state.tables.delta import Changes


@dataclass
class SealJob:
    """Frozen values and collected output of one epoch."""

    header: SegmentHeader
    deltas: Sequence[Changes]
    stages: Mapping[str, Stage]
    audit: str = ROWS
    """The setting: with "rows" the output is hashed too."""
    _encoded: dict[str, tuple[bytes, int]] | None = field(default=None)
    _digests: dict[str, RowDigest] = field(default_factory=dict)

    def run(self, store: ObjectStore) -> Sealed:
        """Encode once, store everything, and return the references."""
        if self._encoded is None:
            self._encoded = self._encode()
        refs: dict[str, tuple[ObjectRef, int]] = {}
        for path, (data, rows) in self._encoded.items():
            store.put(path, data)
            refs[path] = (ObjectRef(path, len(data), hashlib.sha256(data).hexdigest()), rows)
        segment = refs.get(self._segment_path)
        staged = {
            sink: Staged((refs[path][0],), refs[path][1])
            for sink in self.stages
            if (path := self._staged_path(sink)) in refs
        }
        ref = None if segment is None else SegmentRef(Epoch(self.header.epoch), Epoch(self.header.follows), segment[0])
        return Sealed(ref, staged, dict(self._digests))

    def _encode(self) -> dict[str, tuple[bytes, int]]:
        encoded: dict[str, tuple[bytes, int]] = {}
        if any(len(delta) for delta in self.deltas):
            encoded[self._segment_path] = (seal(self.header, self.deltas), sum(len(delta) for delta in self.deltas))
        for sink, stage in self.stages.items():
            part = stage.seal(hashed=self.audit == ROWS)
            if part is not None:
                self._digests[sink] = part.digest
                encoded[self._staged_path(sink)] = (part.data, part.rows)
        return encoded

    @property
    def _segment_path(self) -> str:
        h = self.header
        return f"segments/{h.generation:08d}/{h.epoch:012d}/{h.worker}.segment"

    def _staged_path(self, sink: str) -> str:
        h = self.header
        return f"staged/{h.generation:08d}/{h.epoch:012d}/{h.worker}-{sink}.arrow"


def segment_job(
    state: StateStore, epoch: Epoch, deploy: Deploy, worker: WorkerId, stages: Mapping[str, Stage]
) -> SealJob:
    """Take the frozen changes of an epoch, and of the given-up epochs before it; they may be sealed later."""
    state.supersede(epoch)
    deltas = state.deltas(epoch)
    follows = min((delta.follows for delta in deltas), default=epoch)
    header = SegmentHeader(deploy.job_uuid, deploy.generation, deploy.timeline, epoch, follows, worker)
    return SealJob(header, deltas, stages, deploy.audit)
