"""Copies of sealed objects: whole or not there, whatever a kill, a refusing disk or a damaged file has left."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import LocalDamaged, Unavailable
from holdfast.model import ObjectRef
from holdfast.ports import KeyValue
from holdfast.state.local import copies as module
from holdfast.state.local.copies import FLUSH_OBJECTS, PART_BYTES, Copies
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.state.local.rocks import DAMAGED, RocksKeyValue

EVERYTHING = (b"", b"\xff\xff")


def data_of(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def ref_of(path: str, data: bytes) -> ObjectRef:
    return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())


class Watched(MemoryKeyValue):
    """Counts flushes, and refuses so many writes."""

    flushes = refusals = 0

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("refused", next_step="try again")
        super().write(puts, deletes)

    def flush(self, wait: bool = True) -> None:
        self.flushes += 1
        super().flush(wait)


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValue]:
    opened: KeyValue = MemoryKeyValue() if request.param == "memory" else RocksKeyValue(tmp_path / "db")
    yield opened
    opened.close()


class TestCopies:
    @pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
    def test_return_what_was_put_also_to_the_next_process(self, store: KeyValue, size: int) -> None:
        data = data_of(1, size)
        copies = Copies(store)
        copies.put("a", data)
        for each in (copies, Copies(store)):
            assert (each.get(ref_of("a", data)), each.nbytes) == (data, size)

    def test_return_nothing_for_another_name_size_or_hash(self, store: KeyValue) -> None:
        copies = Copies(store)
        copies.put("a", b"12")
        assert copies.get(ref_of("b", b"12")) is None
        assert copies.get(ref_of("a", b"1")) is None
        assert copies.get(ref_of("a", b"123")) is None
        assert copies.get(ref_of("a", b"21")) is None

    def test_replace_an_object_of_the_same_name(self, store: KeyValue) -> None:
        copies = Copies(store)
        for data in (data_of(1, 2 * PART_BYTES + 5), data_of(2, 7)):
            copies.put("a", data)
            assert copies.get(ref_of("a", data)) == data
        assert copies.nbytes == 7

    def test_are_removed_by_name_and_leave_nothing(self, store: KeyValue) -> None:
        copies, data = Copies(store), data_of(1, PART_BYTES + 1)
        for path in ("a", "a!", "ab", "b"):
            copies.put(path, data)
        copies.remove(lambda path: path in ("a", "ab"))
        for each in (copies, Copies(store)):
            assert [each.get(ref_of(path, data)) is None for path in ("a", "a!", "ab", "b")] == [True, False] * 2
        copies.remove(lambda _: True)
        assert (copies.nbytes, store.scan(*EVERYTHING)) == (0, [])


class TestFlushes:
    def test_come_after_so_many_objects_or_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "FLUSH_BYTES", 100)
        store = Watched()
        copies = Copies(store)
        for number in range(2 * FLUSH_OBJECTS):
            copies.put(f"{number}", b"1")
        assert store.flushes == 2
        copies.put("small", bytes(99))
        assert store.flushes == 2
        copies.put("last", b"1")
        assert store.flushes == 3


class TestRefusals:
    def test_a_refused_part_is_retried_after_a_wait(self) -> None:
        store, waited = Watched(), list[float]()
        copies, data = Copies(store, waited.append), data_of(1, 2 * PART_BYTES)
        store.refusals = 3
        copies.put("a", data)
        assert copies.get(ref_of("a", data)) == data and len(waited) == 3

    def test_persistent_refusals_omit_the_object_and_leave_its_parts_to_the_next_removal(self) -> None:
        store = Watched()
        copies, data = Copies(store, lambda _: None), data_of(1, PART_BYTES)
        copies.put("kept", b"1")
        store.refusals = module.ATTEMPTS + 1
        with pytest.raises(Unavailable):
            copies.put("a", data)
        store.write([(b"pa\0" + bytes(8), b"a part")], [])  # the write may have been done nevertheless
        assert copies.get(ref_of("a", data)) is None
        copies.remove(lambda _: False)
        assert len(store.scan(*EVERYTHING)) == 2 and copies.get(ref_of("kept", b"1")) == b"1"

    @pytest.mark.parametrize("done", [0, 1])
    def test_a_refused_removal_is_completed_by_the_next_one(self, done: int) -> None:
        store = Watched()
        copies = Copies(store)
        copies.put("a", b"1")
        write, writes = store.write, list[int]()

        def refuse(puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
            writes.append(1)
            store.refusals = len(writes) > done
            write(puts, deletes)

        store.write = refuse  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            copies.remove(lambda _: True)
        store.write, store.refusals = write, 0  # type: ignore[method-assign]
        copies.remove(lambda _: True)
        assert store.scan(*EVERYTHING) == []


class TestAKill:
    def test_anywhere_leaves_objects_that_are_whole_and_parts_that_are_erased(self) -> None:
        store = MemoryKeyValue()
        copies = Copies(store)
        before, after = data_of(1, PART_BYTES + 3), data_of(2, 3 * PART_BYTES)
        for path in ("a", "b", "c"):
            copies.put(path, before)
        store.flush()
        copies.put("b", after)
        copies.remove(lambda path: path == "a")
        copies.put("d", after)
        refs = [ref_of(path, data) for path in "abcd" for data in (before, after)]
        for survived in range(store.unflushed + 1):
            left = store.after_kill(survived)
            again = Copies(left)
            whole = {ref: data for ref in refs if (data := again.get(ref)) is not None}
            assert all(ref_of(ref.path, data) == ref for ref, data in whole.items())
            assert ref_of("c", before) in whole
            listed = {key[1:].decode() for key, _ in left.scan(b"l", b"m")}
            assert listed - {ref.path for ref in whole} <= {"b"}, "only what was being replaced is not whole"
            again.put("e", b"1")
            again.remove(lambda path: path in ("b", "e"))
            parts = {key[1:].split(b"\0")[0].decode() for key, _ in left.scan(b"p", b"q")}
            assert parts == {ref.path for ref in whole} - {"b"}

    @pytest.mark.parametrize("seed", range(3))
    def test_a_kill_of_the_process_leaves_whole_objects_and_few_missing(self, tmp_path: Path, seed: int) -> None:
        command = [sys.executable, "-c", PUTTING, str(tmp_path / "db"), str(Path(__file__).parent)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        chance = random.Random(seed)
        for _ in range(chance.randrange(1, 60)):
            process.stdout.readline()
        process.kill()  # somewhere in a later object
        process.wait()
        put = 1 + max(map(int, process.stdout.read().split()), default=-1)
        process.stdout.close()

        store = RocksKeyValue(tmp_path / "db")
        copies = Copies(store)
        listed = {int(key[1:]) for key, _ in store.scan(b"l", b"m")}
        assert all(copies.get(numbered(number)) is not None for number in listed)
        assert listed == set(range(len(listed))) and len(listed) >= put - 2 * FLUSH_OBJECTS
        store.close()


def numbered(number: int) -> ObjectRef:
    return ref_of(f"{number}", data_of(number, 1 + number * 40_000 % (2 * PART_BYTES)))


PUTTING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_copies import PART_BYTES, Copies, RocksKeyValue, data_of
import time

copies = Copies(RocksKeyValue(Path(sys.argv[1])), time.sleep)
for number in range(1_000):
    copies.put(f"{number}", data_of(number, 1 + number * 40_000 % (2 * PART_BYTES)))
    print(number, flush=True)
"""


class TestDamage:
    def test_damage_to_a_file_is_detected_and_never_returned(self, tmp_path: Path) -> None:
        path, refs = tmp_path / "db", [numbered(number) for number in range(8)]
        store = RocksKeyValue(path)
        copies = Copies(store)
        for number in range(8):
            copies.put(f"{number}", data_of(number, refs[number].size))
        store.flush()
        store.close()
        (sst,) = path.glob("*.sst")
        intact, found = sst.read_bytes(), 0
        for seed in range(12):
            at = random.Random(seed).randrange(len(intact)) if seed else len(intact) - 1
            sst.write_bytes(intact[:at] + bytes([intact[at] ^ 0xFF]) + intact[at + 1 :])
            found += damage_found(path, refs)
            (path / DAMAGED).unlink(missing_ok=True)
        assert found >= 10, "nearly every byte of the file is of some object"


def damage_found(path: Path, refs: list[ObjectRef]) -> bool:
    """Read all objects; return whether damage was found."""
    try:
        store = RocksKeyValue(path)
    except LocalDamaged:
        return True
    found = False
    try:
        copies = Copies(store)
        for ref in refs:
            try:
                data = copies.get(ref)
                found |= data is None
                assert data is None or ref_of(ref.path, data) == ref
            except LocalDamaged:
                found = True
    except LocalDamaged:
        found = True
    finally:
        store.close()
    return found
