"""A disk that refuses local state or merged segments stops nothing, and is reported with cause and next step."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from local_disks import Disk
from patience import run

import holdfast as hf
from holdfast.checkpoint.bases import Thresholds
from holdfast.errors import Unavailable
from holdfast.ports import ObjectStore
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.job import explain, status
from holdfast.runtime.job.live import Status
from holdfast.runtime.processes.host import WorkerSession, WorkerTask
from holdfast.runtime.processes.tls import make_credentials
from holdfast.runtime.wire.mailbox import Mailbox
from holdfast.runtime.worker.local.home import Home
from holdfast.runtime.worker.local.opened import LocalFolders, LocalState
from holdfast.runtime.worker.local.upkeep import RETRY_AFTER_S, TOLD_AFTER_S
from holdfast.runtime.worker.loop import Limits
from holdfast.state.local import rocks
from holdfast.state.local.memory import MemoryKeyValue
from holdfast.testing import TestDriver

FULL = "no space left on device"


@dataclass
class Pair:
    key: int
    value: int


class Full(MemoryKeyValue):
    """Copies on a disk that refuses writes when the test asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing, self.why, self.refused = False, FULL, 0

    def write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> None:
        if self.refusing:
            self.refused += 1
            raise Unavailable(self.why, next_step="make room")
        super().write(puts, deletes)


class OneDisk(Disk):
    """The disk of all workers."""

    def __init__(self) -> None:
        super().__init__(Full)

    @property
    def stores(self) -> list[Full]:
        return [folder.store for folder in self.folders if isinstance(folder.store, Full)]

    def refuse(self, why: str = FULL) -> None:
        for store in self.stores:
            store.refusing, store.why = True, why

    def heal(self) -> None:
        for store in self.stores:
            store.refusing = False


def pairs_app() -> hf.App:
    app = hf.App("pairs", key_groups=16)
    pairs = app.source("pairs", hf.Generator(Pair, lambda i: Pair(i, i), count=1))
    pairs.key_by("key").agg("counts", n=hf.count()).sink("out", hf.SQLite("x.db", table="t", key=["key"]))
    return app


def counting(disk: LocalState, parallelism: int = 1) -> TestDriver:
    driver = TestDriver(pairs_app(), parallelism)
    driver.cluster.local = lambda: disk
    return driver


def step(t: TestDriver, keys: range, seconds: int = 1) -> None:
    t.push("pairs", [{"key": key, "value": 1} for key in keys])
    t.checkpoint()
    t.advance(f"{seconds}s")


def shown(t: TestDriver) -> Status:
    return status.of_run(t.cluster.driver.state, "", "continuous", None)


def problems(t: TestDriver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shown(t).as_json()["problems"]
    return found


class TestDiskThatRefusesWrites:
    def test_is_a_problem_with_its_worker_its_error_and_the_next_step(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            step(t, range(100))
            assert problems(t) == []
            disk.refuse()
            for _ in range(20):
                step(t, range(100))
            (problem,) = problems(t)
            (worker,) = t.cluster.members
        assert problem["code"] == "local_state_refused"
        assert f"worker {worker} on here" in problem["what"] and FULL in problem["what"]
        behind = re.search(r"it is (\d+) epochs \([\d,]+ bytes\) behind", problem["what"])
        assert behind is not None and int(behind[1]) >= 20
        assert "free space" in problem["next"]

    def test_is_reported_with_its_first_error(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            disk.refuse("first words")
            step(t, range(100), 3)
            disk.refuse("other words")
            step(t, range(100), 30)
            (problem,) = problems(t)
        assert "first words" in problem["what"]

    def test_is_reported_for_each_affected_worker(self) -> None:
        disk = OneDisk()
        with counting(disk, 2) as t:
            step(t, range(100))
            disk.stores[0].refusing = True
            step(t, range(100), 30)
            assert len(problems(t)) == 1
            disk.refuse()
            step(t, range(100), 30)
            assert len(problems(t)) == 2

    def test_stops_neither_epochs_nor_output(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            disk.refuse()
            for _ in range(20):
                step(t, range(100))
            assert {row["n"] for row in t.rows("out")} == {20}
            assert t.restarts == ()

    def test_is_shown_by_explain(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            disk.refuse()
            step(t, range(100), 30)
            found = [each for each in explain.findings(shown(t)) if each.code not in explain.GOOD]
            assert [each.code for each in found] == ["local_state_refused"]
            assert FULL in found[0].what and found[0].next

    def test_is_no_problem_if_it_accepts_writes_a_moment_later(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            disk.refuse()
            step(t, range(100))
            t.cluster.pass_time(TOLD_AFTER_S / 2)
            assert disk.stores[0].refused > 0
            assert problems(t) == []

    def test_is_no_longer_a_problem_once_it_accepts_writes_again(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            disk.refuse()
            step(t, range(100), 30)
            assert len(problems(t)) == 1
            disk.heal()
            t.cluster.pass_time(2 * RETRY_AFTER_S)
            assert problems(t) == []
            assert disk.stores[0].scan(b"", b"\xff\xfe")

    def test_is_retried_once_a_second_and_not_in_every_time_slice(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            disk.refuse()
            step(t, range(100), 30)
            before = disk.stores[0].refused
            step(t, range(100), 60)
            assert 50 <= disk.stores[0].refused - before <= 70

    def test_is_forgotten_with_its_folder(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            disk.refuse()
            step(t, range(100), 30)
            assert len(problems(t)) == 1
            t.crash()
            t.recover()
            t.cluster.pass_time(30)
            assert problems(t) == []

    def test_stays_reported_through_a_rollback_in_place(self) -> None:
        disk = OneDisk()
        with counting(disk, 2) as t:
            disk.refuse()
            step(t, range(100), 30)
            t.crash(1)
            t.recover()
            t.cluster.pass_time(1)
            assert t.how()[0] == "rolled back"
            assert len(problems(t)) == 1

    def test_keeps_nothing_in_memory_but_what_it_refused_last(self) -> None:
        disk = OneDisk()
        with counting(disk) as t:
            disk.refuse()
            for _ in range(50):
                step(t, range(100))
            (member,) = t.cluster.members.values()
            upkeep = member.loop._upkeep
            assert upkeep is not None and upkeep._lag[0] >= 50
            assert (upkeep._waiting, upkeep._waiting_bytes) == (0, 0)


class NoBases:
    """A store that takes no base, and no merged segment, while it refuses."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.refusing, self.refused = store, True, 0
        self.put, self.get, self.list, self.delete = store.put, store.get, store.list, store.delete

    def create(self, path: str, data: bytes) -> None:
        if self.refusing and path.startswith(("base/", "merged/")):
            self.refused += 1
            raise Unavailable(f"{path} cannot be written: Input/output error", next_step="see to the disk")
        self._store.create(path, data)


class TestRefusedMerge:
    def test_is_a_problem_until_a_merge_succeeds_even_if_uploads_succeed(self) -> None:
        with counting(OneDisk()) as t:
            store = t.cluster._store = NoBases(t.cluster._store)
            t.cluster.limits = Limits(merging=Thresholds(segments_max=2))
            t.crash(0)
            t.recover()
            for _ in range(12):
                step(t, range(100))
            (problem,) = problems(t)
            assert problem["code"] == "merge_refused"
            assert "Input/output error" in problem["what"] and problem["next"]
            assert "merge_refused" in [each.code for each in explain.findings(shown(t))]
            assert all(each.refused is None for each in shown(t).workers)
            store.refusing = False
            for _ in range(4):
                step(t, range(100))
            assert problems(t) == []

    def test_is_repeated_ever_less_often(self) -> None:
        """Every attempt reads all pieces of the state."""
        with counting(OneDisk(), 1) as t:
            store = t.cluster._store = NoBases(t.cluster._store)
            t.cluster.limits = Limits(merging=Thresholds(segments_max=2))
            t.crash(0)
            t.recover()
            for _ in range(4):
                step(t, range(100))
            t.cluster.pass_time(60)
            assert 8 <= store.refused <= 16
            store.refusing = False
            t.cluster.pass_time(10)
            step(t, range(100))
            assert problems(t) == []


class TestLogOfAWorker:
    def test_reports_the_refusal_and_its_end_once_each(self, caplog: pytest.LogCaptureFixture) -> None:
        disk = OneDisk()
        task = WorkerTask(pairs_app().plan(), "root", ("here", 1), make_credentials(False), resolve(pairs_app()))
        with counting(disk) as t:
            (member,) = t.cluster.members.values()
            session = WorkerSession(task, member.loop, Mailbox())
            for act in (disk.refuse, disk.heal):
                act()
                for _ in range(20):
                    step(t, range(100))
                    session.take_stock()
        refused, over = [record.getMessage() for record in caplog.records]
        assert refused.startswith("no local state written for") and FULL in refused
        assert over.startswith("local state is written again")


def real(folder: str) -> None:
    """Play a worker whose RocksDB may grow no file, and then may again; everything else is in memory."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    rocks.WRITE_BUFFER_BYTES, rocks.STUCK_AFTER_S = 16 << 10, 3.0
    with counting(LocalFolders(Home(Path(folder)))) as t:
        step(t, range(1_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
        rounds = 0
        while not problems(t):
            step(t, range(1_000))
            rounds += 1
            assert rounds < 200, "nothing was told of a disk that takes nothing"
        (problem,) = problems(t)
        print(rounds, problem["what"])
        assert "IO error" in problem["what"] and "File too large" in problem["what"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        while not t.restarts:  # RocksDB resumes by itself, or reports that it cannot
            step(t, range(1_000))
            rounds += 1
            if not problems(t):
                break
        step(t, range(1_000), 10)
        assert problems(t) == []
        t.finish()
        assert {row["n"] for row in t.rows("out")} == {rounds + 2}


@pytest.mark.skipif(sys.platform != "linux", reason="missing: RLIMIT_FSIZE as Linux has it")
class TestRocksDB:
    def test_with_a_file_size_limit_is_reported_with_its_error_until_it_is_lifted(self, tmp_path: Path) -> None:
        """In a separate process, as the limit on file sizes holds for an entire process."""
        command = [sys.executable, __file__, str(tmp_path / "local")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        status, out, errors = run(command, tmp_path, "a process with small files", environment)
        assert status == 0, out + errors


if __name__ == "__main__":
    real(sys.argv[1])
