from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import Damaged, Unavailable
from holdfast.ports import KeyValue
from holdfast.state.memory import MemoryKeyValue
from holdfast.state.rocks import RocksKeyValue

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


class TestRocksKeyValue:
    def test_keeps_flushed_writes(self, tmp_path: Path) -> None:
        store = RocksKeyValue(tmp_path)
        store.write(PAIRS, [])
        store.flush()
        store.close()
        again = RocksKeyValue(tmp_path)
        assert again.scan(b"", b"\xff") == PAIRS
        again.close()

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
from holdfast.state import rocks

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
    def test_says_that_it_must_be_opened_again_once_the_disk_takes_writes(self, tmp_path: Path) -> None:
        run = subprocess.run(
            [sys.executable, "-c", STUCK, str(tmp_path / "db")], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
