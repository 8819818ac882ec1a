"""What a worker keeps on the local disk of real folders: which restart reads what, and that its rows are right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from sealed_epochs import sealed_epoch

from holdfast.checkpoint.bases import Merge, advanced, pieces
from holdfast.checkpoint.repository import write_object
from holdfast.errors import LocalDamaged, Unavailable
from holdfast.model import NO_EPOCH, Epoch, Generation, JobUuid, SegmentRef, SnapshotHandle, Subtask, Timeline, WorkerId
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.testing.lanes import InlineLane, VirtualClock
from holdfast.runtime.wire.messages import ActiveRole, Deploy
from holdfast.runtime.worker.compaction import CompactJob
from holdfast.runtime.worker.local import kept as local_kept
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.opened import LocalFolders, OpenStore
from holdfast.runtime.worker.local.upkeep import Upkeep
from holdfast.state.keys.batch import KeyType
from holdfast.state.local.image import Wanted
from holdfast.state.store import StateStore
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.storage.objects import MemoryObjects

WORKER, JOB, GROUPS = WorkerId("w"), JobUuid("7" * 32), 8
ALL = (0, GROUPS)
KEY = KeyType(("k",), (pa.int64(),))
SPEC = TableSpec(1, "counts", KEY, (ColumnSpec("count", np.dtype(np.int64)),))


class Operator:
    id, table = SPEC.operator, SPEC


class OnePlan:
    """A plan of one operator, as far as state looks at it."""

    operators, key_groups = (Operator(),), GROUPS


PLAN = cast(Plan, OnePlan())


class Root(MemoryObjects):
    """It notes what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = list[str]()

    def get(self, path: str) -> bytes:
        self.read.append(path)
        return super().get(path)


class Life:
    """One subtask over many runs: epochs, merges, bases; and a model of its rows."""

    def __init__(self, folder: Path, seed: int = 0, image_from: int = 1) -> None:
        self.root, self.random, self.image_from = Root(), Random(seed), image_from
        self.home, self.rows, self.epoch = Home(folder, "machine", "boot"), dict[int, int](), NO_EPOCH
        self.handle = SnapshotHandle(Subtask(0), ALL, (), NO_EPOCH, ())
        self.bases = 0

    @property
    def target(self) -> Deploy:
        lineage = {self.epoch: f"manifest {self.epoch}"} if self.epoch else {}
        place = JOB, Generation(1), Timeline(1), Epoch(self.epoch + 1), self.epoch
        return Deploy(*place, ActiveRole(Subtask(0)), (), self.handle, (), (), (), lineage=lineage)

    @contextmanager
    def run(self) -> Iterator[StateStore]:
        """Open the state as a worker does; its rows must be those of the model."""
        self.root.read = []
        self.opened: OpenStore = LocalFolders(self.home).open(PLAN, self.target, WORKER, self.root)
        self.lane, self.clock = InlineLane(), VirtualClock()
        self.upkeep = Upkeep(self.lane, self.clock, self.opened, self.image_from)
        assert self.shown(self.opened.store) == self.rows
        yield self.opened.store
        self.upkeep.close()
        self.settle()

    def settle(self) -> None:
        """Do what waits for its turn on the lane."""
        while self.lane.jobs:
            self.lane.step()

    def shown(self, store: StateStore) -> dict[int, int]:
        table = store.table(1)
        slots = table.present()
        return dict(zip(table.key_columns(slots)[0].to_pylist(), table.column("count")[slots].tolist(), strict=True))

    def change(self, store: StateStore, count: int = 20) -> None:
        """Complete an epoch that writes and deletes some keys, and merge what is due."""
        table = store.table(1)
        written = {self.random.randrange(200): self.random.randrange(1 << 40) for _ in range(count)}
        gone = [key for key in self.rows if self.random.random() < 0.1 and key not in written]
        slots = table.slots(KEY.encode([pa.array(list(written), pa.int64())]))
        table.changing(slots)("count")[slots] = list(written.values())
        if gone:
            table.delete(table.slots(KEY.encode([pa.array(gone, pa.int64())])))
        self.rows = {key: n for key, n in self.rows.items() if key not in gone} | written
        before, self.epoch = self.epoch, Epoch(self.epoch + 1)
        store.freeze(1, self.epoch, before)
        data = sealed_epoch(store, self.epoch)
        ref = write_object(self.root, f"segments/00000001/{self.epoch:012d}/w.segment", lambda to: to.write(data), "")
        store.commit(self.epoch)
        segment = SegmentRef(self.epoch, before, ref)
        self.upkeep.sealed(segment, data)
        self.settle()
        self.handle = advanced(self.handle, segment, None)

    def merge(self, *, base: bool) -> None:
        """Merge everything into a base, or the newest two segments into one."""
        through = self.epoch
        if base:
            merge = Merge(through, NO_EPOCH, pieces(self.handle))
        else:
            newest = self.handle.segments[-2:]
            merge = Merge(through, newest[0].follows, newest)
        job = CompactJob(self.target, WORKER, merge, (SPEC,), 1 << 20)
        merged = job.run(self.root)
        self.upkeep.merged(self.target, merge, merged.object, job.data)
        self.settle()
        self.handle = advanced(self.handle, None, merged)
        self.bases += base

    def read(self) -> set[str]:
        """What the last start read from the root, by folder."""
        return {path.partition("/")[0] for path in self.root.read}

    def files(self) -> list[Path]:
        """The files of images."""
        return sorted(
            each for each in (self.home.folder(JOB, "images")).glob("*/*") if each.name not in ("lock", "head")
        )


@pytest.fixture(autouse=True)
def any_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may keep their folders in memory."""
    monkeypatch.setattr("holdfast.runtime.worker.local.images.unfit", lambda folder: "")
    monkeypatch.setattr("holdfast.state.paging.mapped.FILE_BYTES_MIN", 1 << 10)


@pytest.fixture(params=["read", "mapped"])
def life(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Life:
    """A base with an image, and segments after it."""
    monkeypatch.setattr(local_kept, "READ_BYTES_MAX", 1 << 30 if request.param == "read" else 0)
    life = Life(tmp_path)
    with life.run() as store:
        for _ in range(3):
            life.change(store)
        life.merge(base=True)
        for _ in range(3):
            life.change(store)
    return life


class TestARestart:
    def test_reads_nothing_from_the_root(self, life: Life) -> None:
        with life.run():
            assert life.read() == set()

    def test_reads_copies_where_no_image_was_worth_it(self, tmp_path: Path) -> None:
        life = Life(tmp_path, image_from=1 << 30)
        with life.run() as store:
            for _ in range(3):
                life.change(store)
            life.merge(base=True)
            life.change(store)
        with life.run():
            assert life.read() == set() and life.files() == []

    @pytest.mark.parametrize("seed", range(6))
    def test_has_the_right_rows_after_any_history(self, tmp_path: Path, seed: int) -> None:
        life = Life(tmp_path, seed, image_from=1 if seed % 3 else 1 << 12)
        for _ in range(6):
            with life.run() as store:
                for _ in range(life.random.randrange(1, 6)):
                    life.change(store)
                    if len(life.handle.segments) > 1 and life.random.random() < 0.6:
                        life.merge(base=life.random.random() < 0.5)
        assert life.bases

    def test_continues_from_an_image_of_many_epochs_ago(self, life: Life) -> None:
        """No manifest of that time is known any more: the base object is what counts."""
        with life.run() as store:
            for _ in range(5):
                life.change(store)
        assert len(life.target.lineage) == 1
        with life.run():
            assert life.read() == set()

    def test_on_another_machine_reads_everything_from_the_root(self, life: Life) -> None:
        life.home = replace(life.home, machine="another")
        with life.run():
            assert life.read() == {"base", "segments"}

    def test_with_other_key_groups_uses_no_image(self, life: Life) -> None:
        half = GROUPS // 2
        life.handle = replace(life.handle, key_groups=(0, half))
        opened = LocalFolders(life.home).open(PLAN, life.target, WORKER, life.root)
        kept = opened.store.table(1).present().size
        opened.close()
        assert 0 < kept < len(life.rows) and "base/" in "".join(life.root.read)


@pytest.fixture
def other(life: Life, tmp_path: Path) -> Life:
    """Another history with the same numbers and names, as a root that was restored or copied has; on that machine."""
    other = Life(tmp_path / "elsewhere", seed=9)
    with other.run() as store:
        for _ in range(3):
            other.change(store)
        other.merge(base=True)
        for _ in range(3):
            other.change(store)
    other.home = life.home
    return other


class TestAnImageOfAnotherHistory:
    def test_is_not_used(self, other: Life) -> None:
        with other.run():
            assert other.read() == {"base", "segments"}, "names are the same, content is not"

    def test_is_used_by_a_version_that_looks_at_epochs_alone(
        self, other: Life, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So the test above would fail for it."""
        monkeypatch.setattr(Wanted, "continues", lambda wanted, head: head.cut.epoch <= wanted.base.epoch)
        with pytest.raises(AssertionError), other.run():
            pass


class TestDamage:
    @pytest.mark.parametrize("at", [0.0, 0.3, 0.99])
    def test_damage_to_an_image_is_detected_and_the_root_is_read(self, life: Life, at: float) -> None:
        for path in life.files():
            data = bytearray(path.read_bytes())
            place = int(at * (len(data) - 1))
            data[place] ^= 1
            path.write_bytes(data)
        if local_kept.READ_BYTES_MAX:
            with life.run():
                assert "base" in life.read()
            return
        opened = LocalFolders(life.home).open(PLAN, life.target, WORKER, life.root)
        assert opened.kept is not None
        try:
            opened.kept.verify()
        except LocalDamaged:
            opened.close()
            with life.run():
                assert "base" in life.read(), "it was removed"
            return
        opened.close()  # the byte is behind what the arrays use

    def test_damage_to_a_copy_makes_it_unused(self, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = LocalFolders(life.home).open(PLAN, life.target, WORKER, life.root)
        assert opened.kept is not None
        newest = life.handle.segments[-1].object
        opened.kept.copy(newest.path, bytes(newest.size))
        opened.close()
        with life.run():
            assert life.root.read == [newest.path]


class TestRenewal:
    def test_a_failed_renewal_leaves_the_previous_image(self, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
        with life.run() as store:
            life.change(store)
            with monkeypatch.context() as patch:

                def full(*_: Any, **__: Any) -> None:
                    raise OSError(28, "No space left on device")

                patch.setattr("holdfast.state.local.image.Image.finish", full)
                life.merge(base=True)
            assert life.upkeep._refused_with.endswith("No space left on device")
            life.change(store)
        assert len({path.parent for path in life.files()}) == 1, "what was not finished takes no room"
        with life.run():
            assert life.read() == {"base"}, "the segment after it was copied"

    def test_goes_on_while_the_tables_map_the_image_before(self, life: Life) -> None:
        for _ in range(3):
            with life.run() as store:
                for _ in range(3):
                    life.change(store, 60)
                life.merge(base=True)
                life.change(store)
                assert life.shown(store) == life.rows
        assert len({path.parent for path in life.files()}) == 1

    def test_a_renewal_that_reads_an_unreachable_root_is_retried(
        self, life: Life, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        life.home = replace(life.home, machine="another")
        with life.run() as store:
            life.change(store)
            with monkeypatch.context() as patch:

                def away(*_: Any) -> None:
                    raise Unavailable("the root is away", next_step="")

                patch.setattr(local_kept, "open_verified", away)
                life.merge(base=True)
                assert life.upkeep._refused_with == "the root is away" and life.files() == []
            life.clock.pass_by(2)
            life.upkeep.refusal()
            life.settle()
            assert life.upkeep.refusal() is None and life.files()
