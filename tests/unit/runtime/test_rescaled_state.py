"""State that was rescaled: a segment counts for the key groups in its handle, whatever else it contains.

A base has no tombstones. So a segment from before a rescale still holds keys that one of the new owners deleted, and
whose tombstones its base merge dropped: read beyond its span, it brings them back.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from holdfast.checkpoint.bases import Merge, advanced, pieces
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.recovery import handles_for
from holdfast.model import (
    NO_EPOCH,
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
from holdfast.state.keys.keygroups import range_of
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.storage.objects import MemoryObjects

JOB, GROUPS, KEYS = JobUuid("1" * 32), 8, range(64)
PLAN = Plan("job", GROUPS, (), (), (), (), ())
KEY = KeyType.of([pa.field("n", pa.int64(), nullable=False)])
SPEC = TableSpec(1, "counts", KEY, (ColumnSpec("n", np.dtype(np.int64)),))
GROUP_OF = KEY.from_ints(np.array(KEYS)).key_groups(GROUPS).tolist()
Rows = dict[int, int]


class Life:
    """One job's state as its manifests name it, and the expected rows."""

    def __init__(self) -> None:
        self.objects, self.rows = MemoryObjects(), Rows()
        self.epoch, self.generation = NO_EPOCH, Generation(1)
        self.handles: tuple[SnapshotHandle, ...] = ()
        self.rescale(1)

    def rescale(self, parallelism: int) -> None:
        ranges = [range_of(i, parallelism, GROUPS) for i in range(parallelism)]
        self.generation = Generation(self.generation + 1)
        self.handles = handles_for(self.manifest if self.handles else None, ranges)

    @property
    def manifest(self) -> Manifest:
        return Manifest(
            JOB,
            Generation(1),
            Timeline(1),
            self.epoch,
            NO_EPOCH,
            len(self.handles),
            GROUPS,
            (),
            self.handles,
            (),
            (),
            (),
        )

    def write(self, **written: dict[int, int | None]) -> None:
        """Close an epoch in which subtask `s0`, `s1`... put or deleted (None) these keys."""
        follows, self.epoch = self.epoch, Epoch(self.epoch + 1)
        for subtask, handle in enumerate(self.handles):
            rows = written.get(f"s{subtask}", {})
            keys = KEY.from_ints(np.array(list(rows), dtype=np.int64))
            groups = keys.key_groups(GROUPS)
            assert all((handle.key_groups[0] <= groups) & (groups < handle.key_groups[1])), "of another subtask"
            puts = np.array([value is not None for value in rows.values()], bool)
            values = np.array([value or 0 for value in rows.values()], dtype=np.int64)
            delta = OperatorDelta(self.epoch, follows, 1, GROUPS, keys, puts, {"n": values})
            worker = WorkerId(f"w{subtask}")
            header = SegmentHeader(JOB, Generation(1), Timeline(1), self.epoch, follows, worker)
            data = seal(header, [delta])
            path = f"segments/{self.epoch}/{worker}"
            self.objects.put(path, data)
            ref = ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())
            self._advance(subtask, advanced(handle, SegmentRef(self.epoch, follows, ref), None))
            self.rows = {key: n for key, n in {**self.rows, **rows}.items() if n is not None}

    def merge(self, subtask: int) -> None:
        """Merge everything of a subtask into a base."""
        handle = self.handles[subtask]
        merge = Merge(self.epoch, NO_EPOCH, pieces(handle))
        merged = CompactJob(self.deploy(handle), WorkerId(f"w{subtask}"), merge, (SPEC,)).run(self.objects)
        self._advance(subtask, advanced(handle, None, merged))

    def _advance(self, subtask: int, handle: SnapshotHandle) -> None:
        self.handles = (*self.handles[:subtask], handle, *self.handles[subtask + 1 :])

    def deploy(self, handle: SnapshotHandle) -> Deploy:
        given = Timeline(1), Epoch(self.epoch + 100), self.epoch
        return Deploy(JOB, self.generation, *given, ActiveRole(Subtask(0)), (), handle, (), (), ())

    def restored(self) -> Rows:
        """Restore every subtask from storage; return all rows."""
        found: Rows = {}
        for handle in self.handles:
            store = StateStore(
                Identity(JOB, self.generation, Timeline(1), WorkerId("new")),
                [SPEC],
                GROUPS,
                handle.key_groups,
            )
            restore(store, PLAN, self.deploy(handle), reading(self.objects))
            table = store.table(1)
            slots = table.present()
            keys = table.key_columns(slots)[0].to_pylist()
            found |= dict(zip(keys, table.column("n")[slots].tolist(), strict=True))
        return found


def of_half(half: int) -> list[int]:
    """Return the keys of one of two subtasks."""
    return [key for key in KEYS if GROUP_OF[key] // (GROUPS // 2) == half]


@pytest.fixture
def life() -> Life:
    """Written by one subtask; then by two, the first of which has merged its deletes into a base."""
    life = Life()
    life.write(s0={key: key for key in KEYS})
    life.rescale(2)
    life.write(s0=dict.fromkeys(of_half(0)[::2]), s1={key: -key for key in of_half(1)[::3]})
    life.merge(0)
    life.rescale(1)
    return life


class TestDeletedKeys:
    def test_do_not_reappear_after_two_rescales_around_a_base_merge(self, life: Life) -> None:
        spans = {piece.key_groups for piece in pieces(life.handles[0])}
        assert spans == {(0, GROUPS // 2), (GROUPS // 2, GROUPS)}, "no segment was restricted: nothing is tested"
        assert life.restored() == life.rows

    def test_do_not_reappear_with_a_merge_of_restricted_segments(self, life: Life) -> None:
        life.merge(0)
        assert life.restored() == life.rows

    def test_do_not_reappear_at_any_owner_of_a_part(self, life: Life) -> None:
        for parallelism in (3, 2, 4, 1):
            life.rescale(parallelism)
            assert life.restored() == life.rows

    def test_do_not_reappear_if_the_second_rescale_joins_other_parts(self, life: Life) -> None:
        life.rescale(4)
        life.merge(1)
        life.write(s0={key: None for key in KEYS if GROUP_OF[key] < 2})
        life.merge(0)
        life.rescale(3)
        assert life.restored() == life.rows
        life.rescale(1)
        life.merge(0)
        assert life.restored() == life.rows
