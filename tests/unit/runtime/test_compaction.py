from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.checkpoint.bases import Merge
from holdfast.model import (
    NO_EPOCH,
    Cut,
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    SegmentRef,
    SnapshotHandle,
    Subtask,
    Timeline,
    WorkerId,
)
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.wire.messages import ActiveRole, Deploy
from holdfast.runtime.worker.compaction import CompactJob, reading, restore
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.batch import KeyType
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.storage.objects import MemoryObjects

JOB, GROUPS, WHOLE = JobUuid("1" * 32), 8, (0, 8)
PLAN = Plan("job", GROUPS, (), (), (), (), ())
KEY = KeyType.of([pa.field("n", pa.int64(), nullable=False)])
SPEC = TableSpec(1, "counts", KEY, (ColumnSpec("n", np.dtype(np.int64)),))


class Stored:
    """A subtask's segments: epoch 1 puts 1 and 2, epoch 2 deletes 1, epoch 3 puts 3."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.segments = (self.segment(1, {1: True, 2: True}), self.segment(2, {1: False}), self.segment(3, {3: True}))

    def segment(self, epoch: int, written: dict[int, bool]) -> SegmentRef:
        number, before = Epoch(epoch), Epoch(epoch - 1)
        keys = KEY.from_ints(np.array(list(written), dtype=np.int64))
        puts = np.array(list(written.values()), dtype=bool)
        delta = OperatorDelta(number, before, 1, GROUPS, keys, puts, {"n": np.full(len(written), epoch)})
        data = seal(SegmentHeader(JOB, Generation(1), Timeline(1), number, before, WorkerId("w")), [delta])
        path = f"segments/{epoch}"
        self.objects.put(path, data)
        return SegmentRef(number, before, ObjectRef(path, len(data), hashlib.sha256(data).hexdigest()))

    def deploy(self, epoch: int, base: SegmentRef | None, *segments: SegmentRef) -> Deploy:
        files, at = ((), NO_EPOCH) if base is None else ((base.object,), base.epoch)
        handle = SnapshotHandle(Subtask(0), WHOLE, files, at, segments)
        return Deploy(
            JOB, Generation(1), Timeline(1), Epoch(101), Epoch(epoch), ActiveRole(Subtask(0)), (), handle, (), (), ()
        )

    def base(self, epoch: int) -> SegmentRef:
        deploy = self.deploy(epoch, None, *self.segments)
        merge = Merge(Epoch(epoch), NO_EPOCH, self.segments[:epoch])
        return CompactJob(deploy, WorkerId("w"), merge, (SPEC,)).run(self.objects)

    def restored(self, deploy: Deploy) -> dict[int, int]:
        store = StateStore(Identity(JOB, Generation(1), Timeline(1), WorkerId("w")), [SPEC], GROUPS, WHOLE)
        restore(store, PLAN, deploy, reading(self.objects))
        assert store.cut == Cut(deploy.base_epoch, deploy.lineage.get(deploy.base_epoch, ""))
        found = {key: store.get_committed(1, (key,)) for key in (1, 2, 3)}
        return {key: values["n"] for key, values in found.items() if values is not None}


class TestRestoring:
    def test_a_base_and_the_segments_after_it_are_restored(self) -> None:
        stored = Stored()
        deploy = stored.deploy(3, stored.base(2), stored.segments[2])
        assert stored.restored(deploy) == {2: 1, 3: 3}

    def test_the_restored_epoch_is_identified_by_content(self) -> None:
        """Otherwise an image of it could not be used by a later start."""
        stored = Stored()
        deploy = msgspec.structs.replace(
            stored.deploy(3, None, *stored.segments), lineage={Epoch(3): "manifest of 3", Epoch(2): "manifest of 2"}
        )
        assert stored.restored(deploy) == {2: 1, 3: 3}

    def test_pieces_are_read_one_at_a_time_and_oldest_first(self) -> None:
        stored, found = Stored(), list[tuple[int, int]]()
        deploy = stored.deploy(3, None, *reversed(stored.segments))
        sizes = [segment.object.size for segment in stored.segments]
        store = StateStore(Identity(JOB, Generation(1), Timeline(1), WorkerId("w")), [SPEC], GROUPS, WHOLE)

        def advanced(done: int, total: int) -> None:
            found.append((done, total))
            if done == sizes[0]:  # the second piece is not read before the first one is in the table
                assert store.table(1).get_committed((2,)) == {"n": 1}
                stored.objects.delete(stored.segments[0].object.path)

        restore(store, PLAN, deploy, reading(stored.objects), advanced)
        ends = [sum(sizes[:count]) for count in range(4)]
        assert found == [(done, ends[3]) for end in range(3) for done in (ends[end], ends[end + 1])]
        assert store.get_committed(1, (1,)) is None and store.get_committed(1, (3,)) == {"n": 3}

    def test_a_repeated_merge_writes_the_same_bytes(self) -> None:
        stored = Stored()
        first, again = stored.base(3), stored.base(3)
        assert again == first
