"""Images: the tables of a store as files, against dictionaries."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs
from open_files import open_below

from holdfast.errors import LocalDamaged
from holdfast.model import Cut, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.evolution import declaration
from holdfast.state.keys.batch import KeyType
from holdfast.state.local import image as images
from holdfast.state.local.image import Head, Image, ImageHolders, Wanted, create, find
from holdfast.state.paging.area import REGION_BYTES
from holdfast.state.paging.mapped import MappedFiles
from holdfast.state.paging.private import PrivateFiles
from holdfast.state.paging.swap import resident_bytes
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.slab import PLAIN, UNLIMITED
from holdfast.state.tables.spec import ColumnSpec, TableSpec

JOB, GROUPS = JobUuid("7" * 32), 8
ALL = (0, GROUPS)
IDENTITY = Identity(JOB, Generation(1), Timeline(1), WorkerId("w"))
COUNTS = TableSpec(1, "counts", KeyType(("k",), (pa.int64(),)), (ColumnSpec("n", np.dtype(np.int64)),))
TEXT = ColumnSpec("text", pa.utf8(), nullable=True)
NAMES = TableSpec(2, "names", KeyType(("k",), (pa.utf8(),)), (TEXT, ColumnSpec("n", np.dtype(np.int64))))
SPECS = (COUNTS, NAMES)
ALWAYS_OVER = (1, 1 << 12)
"""The limits of tables that are swapped out whenever they may be."""
Rows = dict[int, dict[object, tuple[object, ...]]]
"""By operator: the values of every key."""


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a few hundred rows have files of their own."""
    monkeypatch.setattr("holdfast.state.paging.mapped.FILE_BYTES_MIN", 1 << 13)


def cut(epoch: int) -> Cut:
    return Cut(Epoch(epoch), f"manifest {epoch}")


def wanted(epoch: int, key_groups: tuple[int, int] = ALL, specs: tuple[TableSpec, ...] = SPECS) -> Wanted:
    lineage = {Epoch(past): f"manifest {past}" for past in range(1, epoch + 1)}
    return Wanted(JOB, key_groups, {spec.operator: declaration(spec) for spec in specs}, cut(epoch), lineage)


@dataclass
class Job:
    """Epochs of a job, each with its segment, and the rows that there should be."""

    folder: Path
    rng: random.Random
    epoch: int = 0
    segments: dict[int, bytes] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: {1: {}, 2: {}})
    restored: int = 0
    limits: tuple[int, int] = (UNLIMITED, UNLIMITED)
    memories: list[PrivateFiles] = field(default_factory=list)
    """Of the attempts."""

    def open(self) -> tuple[Image, StateStore]:
        """Open the state as a task does."""
        self.folder.mkdir(exist_ok=True)
        image, held = find(self.folder, wanted(self.epoch))
        assert not held
        image = image or create(self.folder, wanted(self.epoch))
        if image.alone:
            self.bring_up(image)
        assert image.share()
        image.limits = self.limits
        memory = image.private()
        self.memories.append(memory)
        store = StateStore(IDENTITY, SPECS, GROUPS, ALL, memory)
        image.load(store, memory)
        return image, store

    def bring_up(self, image: Image, *, hashed: bool = False) -> None:
        head, memory = image.head, image.begin()
        store = StateStore(IDENTITY, SPECS, GROUPS, ALL, memory)
        if head is None:
            self.restored += 1
            store.restore(Epoch(self.epoch), self.segments.values())
        else:
            image.load(store, memory)
            store.follow(Epoch(self.epoch), [s for at, s in self.segments.items() if at > head.cut.epoch])
        store.drop_vacant()
        image.finish(store, memory, wanted(self.epoch), hashed=hashed)

    def renew(self, before: Image | None) -> Image:
        """Make an image as of the last epoch of the one before, as a worker does, and remove that."""
        self.folder.mkdir(exist_ok=True)
        image = create(self.folder, wanted(self.epoch))
        if before is not None:
            image.copy(before)
        self.bring_up(image, hashed=True)
        if before is not None:
            before.remove()
        return image

    def change(self, store: StateStore, keys: int) -> Rows:
        """Write and delete some keys; return the rows that there are then."""
        rows = {operator: dict(known) for operator, known in self.rows.items()}
        for spec in SPECS:
            chosen = [self.rng.randrange(3 * keys) for _ in range(self.rng.randrange(1, keys))]
            chosen = list(dict.fromkeys(chosen))
            names = chosen if spec is COUNTS else [f"key {number}" * (number % 4) + str(number) for number in chosen]
            table = store.table(spec.operator)
            slots = table.slots(spec.key.encode([pa.array(names, spec.key.types[0])]))
            values = np.array([self.rng.randrange(1 << 40) for _ in names])
            if spec is COUNTS:
                table.write(slots, {"n": values})
                rows[1] |= {name: (int(n),) for name, n in zip(names, values, strict=True)}
            else:
                texts = [None if n % 5 == 0 else "x" * int(n % 90) for n in values]
                table.write(slots, {"n": values, "text": pa.array(texts, pa.large_utf8())})
                rows[2] |= {name: (t, int(n)) for name, t, n in zip(names, texts, values, strict=True)}
            gone = [at for at in range(len(names)) if self.rng.random() < 0.3]
            table.delete(slots[gone])
            for at in gone:
                del rows[spec.operator][names[at]]
        return rows

    def close(self, store: StateStore, rows: Rows) -> None:
        """Complete the next epoch with what a task did."""
        epoch = Epoch(self.epoch + 1)
        for spec in SPECS:
            store.freeze(spec.operator, epoch, Epoch(self.epoch))
        header = SegmentHeader(JOB, Generation(1), Timeline(1), epoch, Epoch(self.epoch), WorkerId("w"))
        self.segments[epoch] = seal(header, store.deltas(epoch))
        self.epoch, self.rows = epoch, rows


def rows_of(store: StateStore) -> Rows:
    found: Rows = {}
    for spec in SPECS:
        table = store.table(spec.operator)
        slots = table.present()
        columns = [c.to_pylist() if isinstance(c, pa.Array) else list(c) for c in table.key_columns(slots)]
        values: list[list[Any]] = []
        for column in spec.columns:
            read = table.values(column.name, slots) if column.plain else table.read(column.name, slots)
            values.append(read.tolist() if isinstance(read, np.ndarray) else read.to_pylist())
        found[spec.operator] = dict(zip(columns[0], zip(*values, strict=True), strict=True))
    return found


class TestAnImage:
    @pytest.mark.parametrize("limits", [(UNLIMITED, UNLIMITED), ALWAYS_OVER], ids=["fits", "is larger than its budget"])
    @pytest.mark.parametrize("seed", range(6))
    def test_has_the_state_of_the_last_epoch_whatever_attempts_did(
        self, tmp_path: Path, seed: int, limits: tuple[int, int]
    ) -> None:
        job = Job(tmp_path / "images", random.Random(seed), limits=limits)
        keys = 40 if seed % 2 else 3_000
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        for _ in range(20):
            image, store = job.open()
            assert rows_of(store) == job.rows
            attempts = [job.change(store, keys)]
            if job.rng.random() < 0.3:  # it loses, another one wins
                image.release()
                image, store = job.open()
                assert rows_of(store) == job.rows
                attempts.append(job.change(store, keys))
            job.close(store, attempts[-1])
            image.release()
        assert job.restored == 1
        assert len(list(job.folder.iterdir())) == 1
        assert any(memory.dropped_regions for memory in job.memories) == (limits is ALWAYS_OVER)

    def test_counts_all_that_it_maps_as_tables(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        image, store = job.open()
        job.close(store, job.change(store, 200_000))
        image.release()
        image, store = job.open()
        assert image.head is not None
        arrays = [array for table in image.head.tables.values() for array in table.arrays.values() if array.file]
        used = sum(-(-array.size * np.dtype(array.dtype).itemsize // REGION_BYTES) for array in arrays)
        assert job.memories[-1].used_bytes == used * REGION_BYTES
        assert any(
            name == "entries" and array.file for t in image.head.tables.values() for name, array in t.arrays.items()
        )
        image.release()

    def test_keeps_its_large_arrays_in_files_and_no_file_that_it_has_outgrown(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        names = set[str]()
        for keys in (500, 5_000, 20_000):
            image, store = job.open()
            job.close(store, job.change(store, keys))
            image.release()
            image, store = job.open()
            assert rows_of(store) == job.rows
            assert image.head is not None
            arrays = [array for table in image.head.tables.values() for array in table.arrays.values()]
            files = {array.file for array in arrays if array.file}
            assert files and {path.name for path in image.path.iterdir()} == files | {"head", "lock", image.head.small}
            names |= files
            image.release()
        assert len(names) > len(files), "some array has got a larger file"

    def test_an_image_of_an_epoch_outside_the_lineage_of_the_base_is_replaced(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        job.open()[0].release()
        (path,) = job.folder.iterdir()
        other = wanted(2)
        lineage = {Epoch(1): "another manifest", Epoch(2): "manifest 2"}
        image, _ = find(job.folder, Wanted(JOB, ALL, other.declared, other.base, lineage))
        assert image is None and not path.exists()

    def test_an_image_written_by_another_holdfast_version_is_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its records may lie in memory in another way."""
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        image, store = job.open()
        job.close(store, job.change(store, 40))
        image.release()
        (path,) = job.folder.iterdir()
        monkeypatch.setattr("holdfast.state.local.image.sources_digest", lambda: "another version")
        assert find(job.folder, wanted(job.epoch)) == (None, ImageHolders.NO) and not path.exists()
        image, store = job.open()
        assert rows_of(store) == job.rows and job.restored == 2
        image.release()

    def test_is_read_after_a_column_was_renamed(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        worker = StateStore(IDENTITY, SPECS, GROUPS, ALL)
        job.close(worker, job.change(worker, 40))
        image, _ = job.open()
        renamed = replace(COUNTS, columns=(ColumnSpec("m", np.dtype(np.int64), id="n"),))
        assert declaration(renamed) == declaration(COUNTS)
        store = StateStore(IDENTITY, (renamed, NAMES), GROUPS, ALL)
        image.load(store, image.private())
        table = store.table(1)
        slots = table.present()
        found = zip(table.key_columns(slots)[0].to_pylist(), table.values("m", slots).tolist(), strict=True)
        assert dict(found) == {key: n for key, (n,) in job.rows[1].items()}
        image.release()

    @pytest.mark.parametrize("later", [wanted(2, (0, 4)), wanted(2, ALL, (NAMES,))], ids=["key groups", "operators"])
    def test_an_image_that_no_task_can_use_is_removed(self, tmp_path: Path, later: Wanted) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        image, _ = job.open()
        (path,) = job.folder.iterdir()
        assert find(job.folder, later) == (None, ImageHolders.NO)
        assert path.exists(), "a task has mapped it"
        image.release()
        assert find(job.folder, later) == (None, ImageHolders.NO)
        assert not path.exists()

    def test_an_image_of_other_key_groups_or_operators_stays(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        mine = create_folder(job, wanted(1, (0, 4)))
        assert find(job.folder, wanted(1, (4, 8))) == (None, ImageHolders.NO)
        other = TableSpec(3, "others", COUNTS.key, COUNTS.columns)
        assert find(job.folder, wanted(1, (0, 4), (other,))) == (None, ImageHolders.NO)
        assert mine.exists()


def create_folder(job: Job, state: Wanted) -> Path:
    """Leave an empty image of this state."""
    job.folder.mkdir(exist_ok=True)
    image = create(job.folder, state)
    memory = image.begin()
    store = StateStore(IDENTITY, SPECS, GROUPS, state.key_groups, memory)
    store.restore(state.base.epoch, [])
    image.finish(store, memory, state)
    image.release()
    return image.path


class TestACopyOfAnImage:
    @pytest.mark.parametrize("seed", range(4))
    def test_follows_the_segments_and_is_read_as_what_they_say(self, tmp_path: Path, seed: int) -> None:
        """Image, copy, segments, copy, segments: whatever it is built of, and in whatever memory it is read."""
        job = Job(tmp_path / "images", random.Random(seed))
        worker = StateStore(IDENTITY, SPECS, GROUPS, ALL)
        image: Image | None = None
        for _ in range(12):
            for _ in range(job.rng.randrange(1, 4)):
                job.close(worker, job.change(worker, 3_000 if seed % 2 else 60))
            image = job.renew(image)
            for memory in (PLAIN, image.private()):
                store = StateStore(IDENTITY, SPECS, GROUPS, ALL, memory)
                image.read(store, memory)
                assert rows_of(store) == job.rows and store.committed_through == job.epoch
        assert image is not None and job.restored == 1 and list(job.folder.iterdir()) == [image.path]
        image.release()
        found, _ = find(job.folder, wanted(job.epoch))
        assert found is not None and found.head == image.head

    def test_has_the_content_of_its_source_which_stays_as_it_was(self, tmp_path: Path) -> None:
        def files() -> dict[str, tuple[int, int]]:
            return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in source.path.iterdir()}

        job = Job(tmp_path / "images", random.Random(0))
        worker = StateStore(IDENTITY, SPECS, GROUPS, ALL)
        job.close(worker, job.change(worker, 3_000))
        source = job.renew(None)
        (source.path / "swap-of-a-table-that-maps-it").touch()
        before, head = files(), source.head
        made = create(job.folder, wanted(1))
        made.copy(source)
        made.verify()
        assert head is not None and {path.name for path in made.path.iterdir()} == head.files | {"lock"}
        job.close(worker, job.change(worker, 3_000))
        job.bring_up(made)
        source.verify()
        assert (files(), source.head) == (before, head)
        made.release()
        source.release()

    def test_takes_no_room_for_holes(self, tmp_path: Path) -> None:
        memory = MappedFiles(tmp_path)
        room = memory.room(np.dtype(np.int64), 1 << 24)
        memory.use(room, 1 << 14)[:] = 7
        name = memory.file_of(room)
        with open(tmp_path / name, "r+b") as file:  # data, a hole, data, a hole
            file.seek(64 << 20)
            file.write(b"behind a hole")
        images._copy(tmp_path / name, tmp_path / "copy")
        given, made = os.stat(tmp_path / name), os.stat(tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == (tmp_path / name).read_bytes()
        assert made.st_size == given.st_size and made.st_blocks * 512 < 1 << 20
        (tmp_path / "holes").touch()
        os.truncate(tmp_path / "holes", 1 << 30)
        images._copy(tmp_path / "holes", tmp_path / "as empty")
        empty = os.stat(tmp_path / "as empty")
        assert (empty.st_size, empty.st_blocks) == (1 << 30, 0)
        memory.close()


class TestDamage:
    @pytest.fixture
    def image(self, tmp_path: Path) -> Image:
        """An image with files of their own and small arrays, with hashes."""
        job = Job(tmp_path / "images", random.Random(0))
        worker = StateStore(IDENTITY, SPECS, GROUPS, ALL)
        job.close(worker, job.change(worker, 3_000))
        return job.renew(None)

    def test_damage_to_any_file_is_detected_and_the_image_is_not_read(self, image: Image) -> None:
        assert image.head is not None
        image.verify()
        arrays = [array for table in image.head.tables.values() for array in table.arrays.values() if array.size]
        assert {array.file for array in arrays} > {""} and all(array.hash for array in arrays)
        chance = random.Random(1)
        for array in arrays:
            size = array.size * np.dtype(array.dtype).itemsize
            for at in (0, size - 1, *(chance.randrange(size) for _ in range(8))):
                with open(image.path / (array.file or image.head.small), "r+b") as file:
                    where, bit = array.offset + at, 1 << chance.randrange(8)
                    was = os.pread(file.fileno(), 1, where)
                    os.pwrite(file.fileno(), bytes([was[0] ^ bit]), where)
                    with pytest.raises(LocalDamaged):
                        image.read(StateStore(IDENTITY, SPECS, GROUPS, ALL), PLAIN)
                    os.pwrite(file.fileno(), was, where)
        image.verify()

    @pytest.mark.parametrize("missing", [False, True])
    def test_a_shortened_or_missing_image_file_is_detected_even_when_mapped(self, image: Image, missing: bool) -> None:
        assert image.head is not None
        for name in image.head.files:
            whole = (image.path / name).rename(image.path / "aside")
            if not missing:
                (image.path / name).write_bytes(bytes(8))
            with pytest.raises(LocalDamaged):
                image.verify()
            memory = image.private()
            with pytest.raises((LocalDamaged, OSError)):
                image.load(StateStore(IDENTITY, SPECS, GROUPS, ALL, memory), memory)
            whole.rename(image.path / name)
        image.verify()


class TestContinuing:
    """An image is used by state that builds on its epoch, or on the base object with its rows."""

    def test_is_by_lineage_or_by_the_content_of_a_base(self) -> None:
        given = wanted(3)
        head = Head(JOB, cut(2), ALL, dict(given.declared), "layout", "small", {}, content="hash")
        assert given.continues(head) and given.continues(structs.replace(head, cut=cut(3)))
        other = replace(given, lineage={Epoch(2): "another", Epoch(3): "manifest 3"})
        assert not other.continues(head)
        assert replace(other, content="hash").continues(head)
        assert not replace(other, content="another").continues(head)
        assert not other.continues(structs.replace(head, content="")), "two that are not known are not the same"
        unnamed = structs.replace(head, cut=Cut(Epoch(2), ""), content="")
        assert not replace(given, lineage={}).continues(unnamed)
        assert not replace(given, base=Cut(Epoch(2), "")).continues(unnamed)
        assert not given.continues(structs.replace(head, cut=cut(4), content="")), "it is ahead"

    def test_finds_an_image_by_the_base_that_it_was_made_of(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        path = create_folder(job, replace(wanted(1), content="hash"))
        rewound = replace(wanted(4), lineage={Epoch(4): "manifest 4"}, content="hash")
        image, _ = find(job.folder, rewound)
        assert image is not None and image.path == path and image.head is not None and image.head.content == "hash"
        image.release()
        assert find(job.folder, replace(rewound, content="another")) == (None, ImageHolders.NO) and not path.exists()


class TestLocks:
    def test_only_one_of_two_tasks_with_the_same_image_changes_it_and_both_map_it(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        job.open()[0].release()
        job.epoch = 2
        first, _ = find(job.folder, wanted(2))
        assert first is not None and first.alone
        assert find(job.folder, wanted(2)) == (None, ImageHolders.CHANGED), "the other one waits"
        job.bring_up(first)
        assert first.share()
        second, _ = find(job.folder, wanted(2))
        assert second is not None and not second.alone and second.path == first.path

    def test_a_task_that_maps_an_image_keeps_it_as_it_is(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        job.close(StateStore(IDENTITY, SPECS, GROUPS, ALL), job.rows)
        zombie, _ = job.open()
        assert find(job.folder, wanted(2)) == (None, ImageHolders.MAPPED)
        mine = create(job.folder, wanted(2))
        assert mine.path != zombie.path
        mine.release()
        zombie.release()

    def test_one_that_was_killed_while_it_was_changed_is_removed(self, tmp_path: Path) -> None:
        folder = tmp_path / "images"
        code = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/tests/shared"]
import tests.unit.state.test_image as t
job = t.Job(Path(sys.argv[1]), t.random.Random(0))
job.close(t.StateStore(t.IDENTITY, t.SPECS, t.GROUPS, t.ALL), job.rows)
job.open()[0].release()
image, _ = t.find(job.folder, t.wanted(2))
image.begin()
print("changing", flush=True)
sys.stdin.read()
"""
        here = str(Path(__file__).parents[3])
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder), here], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "changing\n"
            assert find(folder, wanted(2)) == (None, ImageHolders.CHANGED)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert find(folder, wanted(2)) == (None, ImageHolders.NO)
        assert not list(folder.iterdir())

    def test_a_folder_that_another_process_removes_meanwhile_is_not_taken(self, tmp_path: Path) -> None:
        job = Job(tmp_path / "images", random.Random(0))
        path = create_folder(job, wanted(1))
        lock = os.open(path / "lock", os.O_RDWR)
        image, _ = find(job.folder, wanted(1))
        assert image is not None
        image.remove()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)
        assert find(job.folder, wanted(1)) == (None, ImageHolders.NO)


class TestMappedFiles:
    def test_leave_a_process_that_is_too_large_with_their_content(self, tmp_path: Path) -> None:
        memory = MappedFiles(tmp_path, resident_max=1)
        array = memory.use(memory.room(np.dtype(np.int64), 1 << 21), 1 << 21)
        array[:] = np.arange(array.size)
        before = resident_bytes()
        memory.settle()
        assert before - resident_bytes() > 15 << 20
        assert (array == np.arange(array.size)).all()
        del array
        memory.settle()
        memory.close()

    def test_files_that_cannot_be_mapped_leave_no_descriptor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def none_left(*_: object) -> None:
            raise OSError(12, "Cannot allocate memory")

        memory, files = MappedFiles(tmp_path), open_below(tmp_path)
        monkeypatch.setattr("mmap.mmap", none_left)
        with pytest.raises(MemoryError):
            memory.room(np.dtype(np.int64), 1 << 20)
        (tmp_path / "7").write_bytes(bytes(1 << 20))
        with pytest.raises(OSError, match="Cannot allocate"):
            memory.mapped("7", np.int64)
        assert open_below(tmp_path) == files

    def test_a_private_mapping_changes_no_file(self, tmp_path: Path) -> None:
        shared = MappedFiles(tmp_path)
        room = shared.room(np.dtype(np.int64), 1 << 20)
        part = shared.use(room, 1_000)
        part[:1_000] = np.arange(1_000)
        name = shared.file_of(part)
        private = PrivateFiles(tmp_path)
        mine = private.mapped(name, np.int64)
        assert mine[:1_000].tolist() == list(range(1_000))
        mine[:] = 7
        assert shared.mapped(name, np.int64)[:1_000].tolist() == list(range(1_000))
        shared.close()

    def test_room_that_the_disk_does_not_have_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(file: int, offset: int, size: int) -> None:
            raise OSError(28, "No space left on device")

        shared = MappedFiles(tmp_path)
        room = shared.room(np.dtype(np.int64), 1 << 20)
        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            shared.use(room, 1_000)
        shared.close()
