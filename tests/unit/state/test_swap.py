import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from open_files import open_below

from holdfast.model import Epoch
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.paging import area
from holdfast.state.paging.area import REGION_BYTES
from holdfast.state.paging.swap import RETURNED_AT_ONCE, SLACK_REGIONS, SwapMemory, resident_bytes, unfit
from holdfast.state.tables.kernels.layout import Control, Do
from holdfast.state.tables.slab import UNLIMITED
from holdfast.state.tables.table import ColumnSpec, StateTable, TableSpec

MIB = 1 << 20
INT = np.dtype(np.int64)
NUMBERS = TableSpec(1, "n", KeyType(("k",), (pa.int64(),)), (ColumnSpec("n", INT), ColumnSpec("total", INT)))
NAMES = TableSpec(1, "s", KeyType(("k",), (pa.utf8(),)), (ColumnSpec("n", INT), ColumnSpec("total", INT)))


def swapping(folder: Path, tables_max: int = MIB) -> SwapMemory:
    """Return a swap area that is always over its budget."""
    return SwapMemory(folder, resident_max=1, tables_max=tables_max)


def stored(folder: Path, words: int) -> Path:
    """Write a file of an image: so many words, and a hole behind them."""
    path = folder / "1"
    path.write_bytes(np.arange(words).tobytes())
    os.truncate(path, 16 * MIB)
    return path


class TestRoomOverAFile:
    def test_has_its_content_and_leaves_it_alone(self, tmp_path: Path) -> None:
        path = stored(tmp_path, MIB)
        before = path.read_bytes()
        memory = swapping(tmp_path)
        array = memory.use(memory.over(path, INT), MIB)
        assert memory.used_bytes == 8 * MIB and (array == np.arange(MIB)).all()
        for change in (1, 2, 3):
            array += 1
            memory.settle()
            assert (array == np.arange(array.size) + change).all()
        assert path.read_bytes() == before

    def test_writes_only_what_has_changed_when_it_leaves_memory(self, tmp_path: Path) -> None:
        memory = swapping(tmp_path)
        array = memory.use(memory.over(stored(tmp_path, MIB), INT), MIB)
        total, changed = int(array.sum()), 3 * REGION_BYTES // 8
        array[changed] = -1
        before = resident_bytes()
        memory.settle()
        assert before - resident_bytes() > 5 * MIB
        (found,) = memory._areas.values()
        assert [found.is_given(number) for number in range(4)] == [True, True, True, False]
        assert int(array.sum()) == total - changed - 1

    def test_keeps_what_was_written_where_the_system_does_not_say_what_that_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        memory = swapping(tmp_path)
        array = memory.use(memory.over(stored(tmp_path, MIB), INT), MIB)
        array[7] = -1
        monkeypatch.setattr(os, "pread", lambda *_: b"")
        memory.settle()
        assert array[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, -1, 8]

    def test_leaves_memory_while_the_disk_is_full_but_for_what_was_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", refused)
        memory = swapping(tmp_path)
        array = memory.use(memory.over(stored(tmp_path, MIB), INT), MIB)
        array[0] = -1
        assert int(array[1:].min()) == 1
        before = resident_bytes()
        memory.settle()
        assert memory.refused == f"{tmp_path}: No space left on device" and memory.dropped_regions == 3
        assert before - resident_bytes() > 5 * MIB and array[:3].tolist() == [-1, 1, 2]

    def test_what_lies_behind_a_smaller_part_reads_as_zeros(self, tmp_path: Path) -> None:
        memory = swapping(tmp_path)
        room = memory.over(stored(tmp_path, MIB), INT)
        memory.use(room, MIB)
        kept = memory.use(room, REGION_BYTES // 8)
        assert memory.used_bytes == REGION_BYTES
        again = memory.use(room, MIB)
        assert (again[: kept.size] == np.arange(kept.size)).all() and not again[kept.size :].any()

    def test_grows_beyond_its_content(self, tmp_path: Path) -> None:
        memory = swapping(tmp_path)
        room = memory.over(stored(tmp_path, 1_000), INT)
        array = memory.use(room, 2 * MIB)
        array[1_000:] = 7
        memory.settle()
        assert (array[:1_000] == np.arange(1_000)).all() and (array[1_000:] == 7).all()

    def test_a_file_may_end_within_a_region(self, tmp_path: Path) -> None:
        path = stored(tmp_path, 1_000)
        os.truncate(path, 4 * MIB + 4_096)
        memory = swapping(tmp_path)
        array = memory.use(memory.over(path, INT), (4 * MIB + 4_096) // 8)
        array[-1] = 9
        memory.settle()
        assert (array[-1], array[999], array[1_000]) == (9, 999, 0)

    def test_is_ordinary_memory_while_it_fits_the_budget(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(area, "_unlinked", None)
        memory = SwapMemory(tmp_path, resident_max=1, tables_max=64 * MIB)
        array = memory.use(memory.over(stored(tmp_path, MIB), INT), MIB)
        array += 1
        memory.settle()
        assert memory.bytes_max == UNLIMITED and memory.dropped_regions == 0


class TestTextValues:
    def test_count_as_changes_and_leave_the_process(self, tmp_path: Path) -> None:
        spec = TableSpec(1, "t", NUMBERS.key, (ColumnSpec("text", pa.utf8()),))
        memory = swapping(tmp_path)
        table = StateTable(spec, 8, memory=memory)
        slots = table.slots(spec.key.from_ints(np.arange(4_000)))
        table.write(slots, {"text": pa.array(["x" * 2_000] * 4_000)})
        assert memory.used_bytes > 8 * 10**6 and memory.dropped_regions > 0
        assert 8 * 10**6 < table.dirty_bytes < 10 * 10**6
        assert table.read("text", slots[-1:]).to_pylist() == ["x" * 2_000]


class TestRoom:
    def test_keeps_address_and_content_when_it_is_swapped_out(self, tmp_path: Path) -> None:
        memory = swapping(tmp_path)
        array = memory.use(memory.room(INT, 4 * MIB), 3 * MIB)
        array[:] = np.arange(array.size)
        address = array.ctypes.data
        for change in (1, 2, 3):
            memory.settle()
            assert (array == np.arange(array.size) + change - 1).all()
            array += 1
        assert array.ctypes.data == address
        assert memory.dropped_regions >= 3 * MIB * 8 // REGION_BYTES  # later rounds depend on the rest of the process

    def test_leaves_the_process_when_it_is_swapped_out(self, tmp_path: Path) -> None:
        memory = swapping(tmp_path)
        array = memory.zeros(8 * MIB)
        array[:] = 1
        before = resident_bytes()
        memory.settle()
        assert before - resident_bytes() > 60 * MIB

    def test_has_no_file_while_it_fits_the_budget(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(area, "_unlinked", None)
        memory = SwapMemory(tmp_path, resident_max=1, tables_max=64 * MIB)
        memory.zeros(4 * MIB)[:] = 1
        memory.settle()
        assert memory.dropped_regions == 0

    def test_is_given_back_when_no_array_refers_to_it(self, tmp_path: Path) -> None:
        memory = swapping(tmp_path)
        array = memory.zeros(MIB)
        array[:] = 1
        memory.settle()
        memory.bring(array.ctypes.data, [0], True)
        assert memory._recent
        files = open_below(tmp_path)
        del array
        assert memory.used_bytes == 0 and not memory._recent
        assert open_below(tmp_path) == files - 1
        assert not list(tmp_path.iterdir())

    def test_stays_in_memory_while_the_disk_is_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: object) -> None:
            raise OSError(28, "No space left on device")

        memory = swapping(tmp_path)
        array = memory.zeros(MIB)
        array[:] = 7
        with monkeypatch.context() as context:
            context.setattr(os, "posix_fallocate", refused)
            memory.settle()
            assert memory.refused == f"{tmp_path}: No space left on device"
            assert memory.dropped_regions == 0
            assert (array == 7).all()
        memory.settle()
        assert memory.refused == ""
        assert (array == 7).all()

    def test_what_lies_behind_a_smaller_part_is_dropped_from_memory_and_disk(self, tmp_path: Path) -> None:
        memory = swapping(tmp_path)
        room = memory.room(INT, 8 * MIB)
        array = memory.use(room, 8 * MIB)
        array[:] = 1
        memory.settle()
        files = open_below(tmp_path)
        kept = memory.use(room, REGION_BYTES // 8)
        assert memory.used_bytes == REGION_BYTES and kept.size == REGION_BYTES // 8
        assert (kept == 1).all()
        again = memory.use(room, 2 * kept.size)
        assert (again[: kept.size] == 1).all() and not again[kept.size :].any()
        memory.use(room, 0)
        assert (memory.used_bytes, open_below(tmp_path)) == (0, files - 1)

    def test_becomes_ordinary_memory_again_once_it_is_well_below_its_budget(self, tmp_path: Path) -> None:
        memory = SwapMemory(tmp_path, resident_max=1, tables_max=16 * MIB)
        room, other = memory.room(INT, 2 * MIB), memory.zeros(MIB)
        array = memory.use(room, 2 * MIB)
        array[:], other[:] = np.arange(array.size), 7
        files = open_below(tmp_path)
        memory.settle()
        assert open_below(tmp_path) == files + 2
        memory.use(room, MIB // 2 * 3 - 1)
        assert (memory.used_bytes, memory.swapping) == (20 * MIB, True)
        kept = memory.use(room, 3 * MIB // 4)
        assert (memory.used_bytes, memory.swapping) == (14 * MIB, True)  # not well below its budget
        kept = memory.use(room, MIB // 2)
        assert (memory.used_bytes, memory.swapping, memory.bytes_max) == (12 * MIB, False, UNLIMITED)
        dropped = memory.dropped_regions
        for _ in range(-(-memory.used_bytes // REGION_BYTES // RETURNED_AT_ONCE) + 1):
            memory.settle()
        assert memory.dropped_regions == dropped and open_below(tmp_path) == files
        assert (kept == np.arange(kept.size)).all() and (other == 7).all()


class TestRegionThatIsBrought:
    @pytest.mark.parametrize("write", [False, True], ids=["to read", "to write"])
    @pytest.mark.parametrize("touched", [False, True], ids=["absent", "with a page that was read"])
    def test_keeps_its_content_and_leaves_again(self, tmp_path: Path, write: bool, touched: bool) -> None:
        memory = swapping(tmp_path)
        array = memory.zeros(4 * MIB)
        array[:] = np.arange(array.size)
        memory.settle()
        for change in range(2):
            assert not touched or array[5] == 5 + change
            memory.bring(array.ctypes.data, [0, 3, 7, 7], write)
            assert (array == np.arange(array.size) + change).all()
            array += 1
            dropped = memory.dropped_regions
            memory.settle()
            assert memory.dropped_regions >= dropped + 3

    def test_is_ignored_if_it_is_in_no_area_or_all_is_resident(self, tmp_path: Path) -> None:
        memory = SwapMemory(tmp_path, resident_max=1, tables_max=64 * MIB)
        array = memory.zeros(MIB)
        memory.bring(array.ctypes.data, [0], True)
        memory.bring(array.ctypes.data + 8, [0], True)
        assert not array.any() and memory.dropped_regions == 0

    def test_earlier_regions_make_room_for_a_part_that_needs_more_than_may_be_added(self, tmp_path: Path) -> None:
        memory = SwapMemory(tmp_path, resident_max=1, tables_max=16 * MIB)
        array = memory.zeros(8 * MIB)
        array[:] = 1
        memory.settle()
        dropped = memory.dropped_regions
        memory.bring(array.ctypes.data, range(10), True)
        assert memory.dropped_regions == dropped  # all of them are of this part
        memory._part, memory._grown = memory._part + 1, 0  # as settle() does where memory suffices
        memory.bring(array.ctypes.data, range(12, 12 + SLACK_REGIONS + 2), True)
        assert memory.dropped_regions == dropped + 2
        assert (array == 1).all()


class TestFolder:
    @pytest.mark.parametrize(("kind", "fits"), [("ext4", True), ("xfs", True), ("tmpfs", False), ("ramfs", False)])
    def test_in_memory_is_unfit(self, tmp_path: Path, kind: str, fits: bool) -> None:
        device = os.stat(tmp_path).st_dev
        mounts = tmp_path / "mountinfo"
        mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / /x rw,noatime shared:1 - {kind} /dev/x rw\n")
        assert (unfit(tmp_path, mounts) == "") is fits


class TestTableAfterAPeak:
    @pytest.mark.parametrize("spec", [NUMBERS, NAMES], ids=["numbers", "names"])
    def test_fits_its_budget_again_and_keeps_its_rows(self, tmp_path: Path, spec: TableSpec) -> None:
        memory = SwapMemory(tmp_path, resident_max=1, tables_max=14 * MIB)
        table = StateTable(spec, 8, memory=memory)
        for epoch, numbers in enumerate((range(3_000), range(3_000, 250_000)), 1):
            slots = table.slots(keys_of(spec, numbers))
            table.changing(slots)("n")[slots] = np.array(numbers)
            table.freeze(Epoch(epoch), Epoch(epoch - 1))
        assert memory.bytes_max < UNLIMITED
        table.delete(table.slots(keys_of(spec, range(3_000, 250_000))))
        table.freeze(Epoch(3), Epoch(2))
        table.commit(Epoch(3))
        table.drop_vacant()
        assert (memory.swapping, memory.bytes_max) == (False, UNLIMITED)
        assert memory.used_bytes < 11 * MIB
        for numbers in (range(3_000), range(2_000, 40_000)):  # what is dropped is inserted again, in the smaller index
            slots = table.slots(keys_of(spec, numbers))
            table.touch(slots)
            found = table.column("n")[slots]
            assert (found == np.where(np.array(numbers) < 3_000, numbers, 0)).all()
            assert len(np.unique(slots)) == len(numbers)
        assert table.present().size == 40_000 and len(table) == 40_000

    def test_keeps_no_index_that_it_has_moved_out_of(self, tmp_path: Path) -> None:
        memory = SwapMemory(tmp_path, resident_max=1 << 40, tables_max=14 * MIB)
        table = StateTable(NUMBERS, 8, memory=memory)
        for first in range(0, 900_000, 100_000):
            table.slots(keys_of(NUMBERS, range(first, first + 100_000)))
        assert memory.swapping
        table.drop_vacant()
        assert len(table) == 0 and memory.used_bytes < 3 * MIB


def keys_of(spec: TableSpec, numbers: range) -> Keys:
    column = pa.array(np.array(numbers))
    return spec.key.encode([column if spec is NUMBERS else column.cast(pa.utf8())])


class TestTableOnSwap:
    @pytest.fixture(params=["numbers", "names"])
    def spec(self, request: pytest.FixtureRequest) -> Iterator[TableSpec]:
        yield NUMBERS if request.param == "numbers" else NAMES

    def test_equals_one_in_memory(self, tmp_path: Path, spec: TableSpec) -> None:
        """Every operation in turn, on tables that grow through several sizes of their index."""
        memory = swapping(tmp_path, tables_max=4 * MIB)
        one, other = StateTable(spec, 8, memory=memory), StateTable(spec, 8)
        chance = np.random.default_rng(5)
        for epoch in range(1, 9):
            for _ in range(4):
                numbers = chance.integers(0, 15_000 * epoch, 8_000)
                for table in (one, other):
                    fold(table, numbers)
            gone = chance.integers(0, 15_000 * epoch, 500)
            for table in (one, other):
                table.delete(np.unique(table.slots(keys(spec, gone))))
                table.freeze(Epoch(epoch), Epoch(max(0, epoch - 2)))
                table.drop_vacant()
            assert shown(one) == shown(other)
            if epoch == 5:
                assert one.roll_back(Epoch(4)) and other.roll_back(Epoch(4))
                assert shown(one) == shown(other)
                for table in (one, other):
                    table.freeze(Epoch(epoch), Epoch(4))
        assert memory.dropped_regions > 100


def keys(spec: TableSpec, numbers: NDArray[np.int64]) -> Keys:
    column = pa.array(numbers) if spec is NUMBERS else pa.array([f"user-{n}" for n in numbers.tolist()])
    return spec.key.encode([column])


def fold(table: StateTable, numbers: NDArray[np.int64]) -> None:
    program = table.program([(Do.COUNT, "n", 0), (Do.ADD_INT, "total", 0)])
    given = KernelInput(np.ascontiguousarray(numbers))
    table.fold(keys(table.spec, numbers), program, sources_of([given]))


def shown(table: StateTable) -> dict[bytes, tuple[int, int]]:
    slots = table.present()
    names = table.keys_at(slots).canonical().to_pylist()
    rows = zip(table.values("n", slots).tolist(), table.values("total", slots).tolist(), strict=True)
    return dict(zip(names, rows, strict=True))


class TestFreeSlots:
    @pytest.mark.parametrize("spec", [NUMBERS, NAMES], ids=["numbers", "names"])
    def test_are_used_again_and_their_keys_are_gone(self, tmp_path: Path, spec: TableSpec) -> None:
        memory = swapping(tmp_path, tables_max=4 * MIB)
        table, size = StateTable(spec, 8, memory=memory), 200_000
        table.touch(table.slots(keys(spec, np.arange(size))))
        gone = np.random.default_rng(1).permutation(size)[: size // 3]
        table.delete(table.slots(keys(spec, gone)))
        for epoch in (1, 2):
            table.freeze(Epoch(epoch), Epoch(epoch - 1))
        table.commit(Epoch(2))
        table.drop_vacant()
        assert len(table) == size - gone.size
        assert (table.find(keys(spec, gone)) == -1).all()
        high = int(table._control[Control.HIGH])
        slots = table.slots(keys(spec, np.arange(size, size + gone.size)))
        assert np.unique(slots).size == gone.size
        assert int(table._control[Control.HIGH]) == high
        left = np.setdiff1d(np.arange(size), gone)
        assert np.intersect1d(table.find(keys(spec, left)), slots).size == 0
        assert table.present().size == left.size
