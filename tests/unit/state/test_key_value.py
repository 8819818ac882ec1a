from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import Damaged, Unavailable
from holdfast.ports import KeyValue
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.state.local.rocks import RANGES_MAX, RocksKeyValue, takes_writes

PAIRS = [(b"a", b"1"), (b"b\x00", b""), (b"b\xff", b"3"), (b"c", b"4")]


@pytest.fixture(params=["memory", "rocks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValue]:
    opened: KeyValue = MemoryKeyValue() if request.param == "memory" else RocksKeyValue(tmp_path / "db")
    yield opened
    opened.close()


class TestKeyValue:
    def test_returns_what_was_written_and_none_for_the_rest(self, store: KeyValue) -> None:
        store.write(PAIRS, [])
        assert store.get_many([b"c", b"x", b"b\x00"]) == [b"4", None, b""]

    def test_deletes_and_replaces(self, store: KeyValue) -> None:
        store.write(PAIRS, [])
        store.write([(b"a", b"new")], [b"c", b"not there"])
        assert store.get_many([b"a", b"c"]) == [b"new", None]

    def test_scans_a_half_open_range_in_byte_order(self, store: KeyValue) -> None:
        store.write(PAIRS[::-1], [])
        assert store.scan(b"b", b"c") == PAIRS[1:3]
        assert store.scan(b"", b"\xff") == PAIRS
        assert store.scan(b"d", b"e") == []

    def test_erases_half_open_ranges_and_takes_newer_pairs_there(self, store: KeyValue) -> None:
        store.write(PAIRS, [])
        store.erase([(b"a", b"b"), (b"b\x01", b"c"), (b"x", b"y")])
        assert store.scan(b"", b"\xff") == [PAIRS[1], PAIRS[3]]
        assert store.get_many([b"a", b"b\xff", b"c"]) == [None, None, b"4"]
        store.write([(b"a", b"newer")], [])
        store.flush()
        assert store.scan(b"", b"c") == [(b"a", b"newer"), PAIRS[1]]

    def test_reads_nothing_for_no_keys(self, store: KeyValue) -> None:
        assert store.get_many([]) == []

    def test_reads_more_keys_than_fit_one_call(self, store: KeyValue) -> None:
        keys = [b"%05d" % number for number in range(2_500)]
        store.write([(key, key) for key in keys], [])
        assert store.get_many(keys) == keys


class TestMemoryKeyValue:
    def test_keeps_a_prefix_of_the_writes_after_a_kill(self) -> None:
        store = MemoryKeyValue()
        store.write([(b"a", b"1")], [])
        store.flush()
        store.write([(b"b", b"2")], [])
        store.write([(b"c", b"3")], [b"a"])
        assert [store.after_kill(survived).scan(b"", b"\xff") for survived in range(3)] == [
            [(b"a", b"1")],
            [(b"a", b"1"), (b"b", b"2")],
            [(b"b", b"2"), (b"c", b"3")],
        ]

    def test_keeps_ranges_in_the_order_of_the_writes_after_a_kill(self) -> None:
        store = MemoryKeyValue()
        store.write(PAIRS, [])
        store.flush()
        store.erase([(b"a", b"c")])
        store.write([(b"b", b"newer")], [])
        assert [store.after_kill(survived).scan(b"", b"\xff") for survived in range(3)] == [
            PAIRS,
            [(b"c", b"4")],
            [(b"b", b"newer"), (b"c", b"4")],
        ]


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_key_value import changes
from holdfast.state.local import rocks
from holdfast.state.local.rocks import RocksKeyValue, RocksMemory

rocks.RANGES_MAX = 300  # buffers are changed for their ranges, too
store = RocksKeyValue(Path(sys.argv[1]), RocksMemory(cache_bytes=8 << 20, write_bytes=1 << 20))
for number in range(100_000):
    changes(store, number)
    if number == int(sys.argv[3]):
        store.flush()
        print("flushed", flush=True)
"""


def changes(store: KeyValue, number: int) -> None:
    """Change number n of a long history: two rows of three writes, then a range over most of what was written last."""
    if number % 3 == 2:
        store.erase([(b"row %07d" % (number - 40), b"row %07d" % (number - number % 5))])
    else:
        store.write([(b"row %07d" % number, b"%d" % number * 500), (b"row %07d" % (number - 30), b"again")], [])


class TestRangesAndARealKill:
    """P15 with ranges: without a log, and with memtables flushed whenever they are full, a prefix survives."""

    @pytest.mark.parametrize("flushed", [50, 700])
    def test_what_survives_is_a_prefix_of_rows_and_ranges(self, tmp_path: Path, flushed: int) -> None:
        command = [sys.executable, "-c", KILLED, str(tmp_path / "db"), str(Path(__file__).parent), str(flushed)]
        found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=found)
        assert process.stdout is not None
        assert process.stdout.readline() == "flushed\n"
        files = {*tmp_path.glob("db/*.sst")}
        # The process flushes on its own accord meanwhile; of four new files at most two are still being written.
        while len({*tmp_path.glob("db/*.sst")} - files) < 4:
            assert process.poll() is None
        process.kill()
        process.wait()
        process.stdout.close()

        store, replayed = RocksKeyValue(tmp_path / "db"), MemoryKeyValue()
        survived = store.scan(b"", b"\xff")
        store.close()
        prefixes = []  # an empty store is one, too: every fifteenth change erases the last rows
        for number in range(100_000):
            changes(replayed, number)
            if replayed.scan(b"", b"\xff") == survived:
                prefixes.append(number)
            if survived and survived[-1][0] < b"row %07d" % (number - 200):
                break
        assert prefixes and prefixes[-1] > flushed


class TestRocksKeyValue:
    def test_keeps_flushed_writes(self, tmp_path: Path) -> None:
        store = RocksKeyValue(tmp_path)
        store.write(PAIRS, [])
        store.flush()
        store.close()
        again = RocksKeyValue(tmp_path)
        assert again.scan(b"", b"\xff") == PAIRS
        again.close()

    def test_takes_more_ranges_than_one_write_buffer_is_to_hold(self, tmp_path: Path) -> None:
        store = RocksKeyValue(tmp_path)
        for number in range(0, 3 * RANGES_MAX, 100):
            store.write([(b"%06d" % row, b"x") for row in range(number, number + 100)], [])
            store.erase([(b"%06d" % row, b"%06d" % (row + 1)) for row in range(number, number + 99)])
        assert store.scan(b"", b"\xff") == [(b"%06d" % row, b"x") for row in range(99, 3 * RANGES_MAX + 99, 100)]
        store.close()

    def test_is_opened_once_at_a_time(self, tmp_path: Path) -> None:
        store = RocksKeyValue(tmp_path)
        with pytest.raises(Unavailable, match="cannot be used now"):
            RocksKeyValue(tmp_path)
        store.close()
        RocksKeyValue(tmp_path).close()

    def test_says_so_when_a_scan_meets_a_damaged_block(self, tmp_path: Path) -> None:
        store = RocksKeyValue(tmp_path)
        store.write([(b"%09d" % number, b"value %d" % number) for number in range(5_000)], [])
        store.flush()
        store.close()
        (table,) = tmp_path.glob("*.sst")
        data = bytearray(table.read_bytes())
        data[len(data) // 3] ^= 0xFF
        table.write_bytes(data)
        damaged = RocksKeyValue(tmp_path)
        with pytest.raises(Damaged, match="damaged"):
            damaged.scan(b"", b"\xff")
        damaged.close()


STUCK = """
import resource, signal, sys
from pathlib import Path
from holdfast.errors import LocalDamaged, Unavailable
from holdfast.state.local import rocks

def refused(kind):
    try:
        store.write([(b"%d" % i, bytes(50)) for i in range(100)], [])
        store.flush()
    except kind as error:
        assert isinstance(error, LocalDamaged) == (kind is LocalDamaged), error
        return
    raise AssertionError("not refused")

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
rocks.STUCK_AFTER_S = 0.0
store = rocks.RocksKeyValue(Path(sys.argv[1]))
store.write([(b"kept", b"1")], [])
store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
refused(Unavailable)  # in the background, which is found out by the flush
refused(Unavailable)  # the disk is no better
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
refused(LocalDamaged)
store.close()
store = rocks.RocksKeyValue(Path(sys.argv[1]))
store.write([(b"new", b"2")], [])
assert [key for key, _ in store.scan(b"k", b"z")] == [b"kept", b"new"]
store.close()
"""
"""In a process of its own, which alone may grow no file."""


class TestRocksAfterAnErrorOfTheDisk:
    def test_takes_a_disk_for_well_only_if_it_has_room_for_what_waits(self, tmp_path: Path) -> None:
        assert takes_writes(tmp_path, 1)
        assert not takes_writes(tmp_path, 1 << 60)
        assert not takes_writes(tmp_path / "gone", 1)
        assert not list(tmp_path.iterdir())

    def test_says_that_it_must_be_opened_again_once_the_disk_takes_writes(self, tmp_path: Path) -> None:
        run = subprocess.run(
            [sys.executable, "-c", STUCK, str(tmp_path / "db")], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
