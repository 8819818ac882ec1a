"""The time from the SIGKILL of a worker to the first record of its subtask and of its peer's, by the size of the state.

The peer rolls back in place. The lost subtask is taken over by a standby, or restored by a new worker of the machine:
from the local folder, or from an S3 store if the folder is gone too.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from bench_recovery import kill, spread
from harness import Bench
from patience import wait
from recovery_engines import first_record
from running import Run, running
from s3_store import S3Store, s3_store
from takeover_job import SCHEMA

from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

PARTITIONS, RATE, GOES_ON_S = 4, 20_000, 3_600
"""The rate leaves a standby on the same two cores the time to follow."""
SHARE = 1_000_000
AWAITED_S = 900.0
JOB = Path(__file__).with_name("takeover_job.py")
KEYS = {"0.16 GiB": 790_000, "1.5 GiB": 7_900_000, "4.4 GiB": 20_500_000}
"""By the state of two workers. A standby needs twice the memory: more state leaves the memory of a 24 GB machine."""
KILLS = {"0.16 GiB": 20, "1.5 GiB": 10, "4.4 GiB": 6}
"""After each of them a new standby copies the state of both workers: that takes a minute with 4.4 GiB."""
EVERY_SIZE = ["0.16 GiB", *(pytest.param(size, marks=pytest.mark.slow) for size in ("1.5 GiB", "4.4 GiB"))]
"""At smoke size they are all alike."""


@pytest.mark.e2e
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("size", EVERY_SIZE)
@pytest.mark.parametrize(
    "standbys", [pytest.param(0, id="local folder", marks=pytest.mark.slow), pytest.param(1, id="standby")]
)
def bench_takeover(bench: Bench, tmp_path: Path, size: str, standbys: int) -> None:
    """Budget: with a standby less than 0.3 s, whatever the size of the state."""
    keys = sized(bench, size)
    kills = bench.size("kills", smoke=2, full=KILLS[size] if standbys else 4)
    folder = tmp_path / "root" / "takeover"
    with bench.timed(), filled(tmp_path, keys, "--standbys", str(standbys)) as run:
        times = Times(run, folder, standbys)
        for number in range(kills):
            times.take(number % 2, kill)
        times.finish(folder)
    assert times.ways == {"promoted" if standbys else "restored"}
    report(bench, times)


@pytest.mark.e2e
@pytest.mark.s3
@pytest.mark.toxiproxy
@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("size", EVERY_SIZE)
def bench_download(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    """The local folder goes with the worker: the new one downloads the state from S3. The store is on the same disk."""
    keys = sized(bench, size)
    kills = bench.size("kills", smoke=1, full=4)
    with s3_store(tmp_path / "s3") as store:
        for name, value in {**store.environment(), "TAKEOVER_ROOT": store.url("root")}.items():
            monkeypatch.setenv(name, value)
        folder = store.files / "root" / "takeover"
        with bench.timed(), filled(tmp_path, keys) as run:
            times = Times(run, folder, 0)
            read = downloads(store)
            for number in range(kills):
                times.take(number % 2, kill_with_folder)
            assert downloads(store) >= read + kills, "a state was found elsewhere"
            times.finish(folder)
    assert times.ways == {"restored"}
    report(bench, times)


def sized(bench: Bench, size: str) -> int:
    """Return how many keys have this much state."""
    return bench.size("keys", smoke=KEYS[size] // 400, full=KEYS[size])


def downloads(store: S3Store) -> int:
    """Return how many reads of segments and bases the store has answered."""
    return store.requests("/bases/")["GetObject"] + store.requests("/segments/")["GetObject"]


@dataclass
class Times:
    """What kills of a run took, in milliseconds."""

    run: Run
    folder: Path
    """That of the job in its root."""
    standbys: int
    lost: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    ways: set[str] = field(default_factory=set)
    """How the lost subtask got its state."""
    restarts: list[dict[str, Any]] = field(default_factory=list)
    state_bytes: int = 0

    def take(self, subtask: int, kill: Callable[[Run, int], tuple[int, int]]) -> None:
        """Kill the worker of a subtask once all copies are complete."""
        self.state_bytes = await_complete(self.folder, self.standbys)
        before = len(self.run.lines[-1]["restarts"])
        killed_at, _ = kill(self.run, subtask)
        self.lost.append((first_record(self.folder, before + 1, subtask) - killed_at) / 1000)
        self.peer.append((first_record(self.folder, before + 1, 1 - subtask) - killed_at) / 1000)
        self.run.wait_for(lambda p: p["state"] == "running" and len(p["restarts"]) > before, "recovery")
        how = {worker["subtasks"][0]: worker["how"] for worker in status(self.folder)["workers"] if worker["subtasks"]}
        assert how[1 - subtask] == "rolled back", (how, status(self.folder)["restarts"])
        self.ways.add(how[subtask])

    def finish(self, folder: Path) -> None:
        """Stop the run."""
        self.restarts = status(folder)["restarts"]
        self.run.process.send_signal(signal.SIGTERM)
        assert self.run.finish() == 0, self.run.errors()


def report(bench: Bench, times: Times) -> None:
    """Report what was measured."""
    bench.report(per=len(times.lost), unit="kill", check=len(times.peer))
    for whose, took in (("the lost subtask", times.lost), ("its peer", times.peer)):
        p99 = f"99th percentile {np.percentile(took, 99):.0f} ms"
        bench.note(f"SIGKILL to first record of {whose}: {spread(took)}; {p99}")
    for part in ("logged_ms", "deployed_ms", "recovery_ms"):
        bench.note(f"{part.removesuffix('_ms')} after: {spread([each[part] for each in times.restarts])}")
    listed = ", ".join(f"{each:.0f}" for each in times.lost)
    bench.note(f"state of both workers {times.state_bytes >> 20} MiB; {listed} ms")


def kill_with_folder(run: Run, subtask: int) -> tuple[int, int]:
    """SIGKILL the worker that runs the subtask after its local folder was moved out of sight; as `kill`."""
    pid = next(worker["pid"] for worker in run.lines[-1]["workers"] if worker["subtasks"] == [subtask])
    opened = {Path(each.path) for each in psutil.Process(pid).open_files()}
    (folder,) = {path.parent for path in opened if path.name.startswith("MANIFEST-")}
    gone = folder.rename(folder.parents[3] / f"gone-{folder.name}-{len(run.lines)}")
    killed = kill(run, subtask)
    shutil.rmtree(gone)
    return killed


@contextlib.contextmanager
def filled(folder: Path, keys: int, *flags: str) -> Iterator[Run]:
    """Run the job at a fixed rate after a run that gave every key its state."""
    rate = min(RATE, keys)
    every = np.random.default_rng(1).permutation(keys)
    create_log(open_objects(str(folder / "input")), SCHEMA, PARTITIONS)
    append(folder, (every[first : first + PARTITIONS * SHARE] for first in range(0, keys, PARTITIONS * SHARE)))
    with running(folder, "--master", "local[4]", "--once", job=JOB) as run:
        assert run.finish(AWAITED_S) == 0, run.errors()
        assert run.lines[-1]["records_in"] >= keys
    append(folder, updates(keys, rate))
    flags = ("--master", "local[4]", "--max-records-per-second", str(rate), *flags)
    with running(folder, *flags, job=JOB, HOLDFAST_RESTART_FAILURES_MAX="100") as run:
        run.wait_for(lambda p: p["state"] == "running" and p["epoch"], "a running job", AWAITED_S)
        yield run


def updates(keys: int, rate: int) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Yield random keys for the rest of the run, share by share."""
    rng, left = np.random.default_rng(2), rate * GOES_ON_S
    for first in range(0, left, PARTITIONS * SHARE):
        yield rng.integers(0, keys, min(PARTITIONS * SHARE, left - first))


def append(folder: Path, shares: Iterator[np.ndarray[Any, np.dtype[np.int64]]]) -> None:
    """Append rows with these keys to the input."""
    writer, rng = LogWriter(open_objects(str(folder / "input"))), np.random.default_rng(3)
    for keys in shares:
        values = rng.integers(0, 1_000, keys.size)
        writer.append(
            {
                partition: pa.table([keys[partition::PARTITIONS], values[partition::PARTITIONS]], schema=SCHEMA)
                for partition in range(PARTITIONS)
            }
        )


def await_complete(folder: Path, standbys: int) -> int:
    """Wait until every standby has all of two further epochs in memory; return the size of the subtasks' state."""
    wanted = status(folder)["checkpoint"]["epoch"] + 2

    def complete() -> dict[str, Any] | None:
        shown = status(folder)
        copies = [worker for worker in shown["workers"] if worker["role"] == "standby"]
        behind = len(copies) < standbys or any(worker["lag_epochs"] != 0 or worker["lag_bytes"] for worker in copies)
        return None if behind or shown["checkpoint"]["epoch"] < wanted else shown

    shown = wait(complete, "standbys with complete copies")
    return sum(worker["state_bytes"] or 0 for worker in shown["workers"] if worker["role"] == "worker")


def status(folder: Path) -> dict[str, Any]:
    """Return what the driver last reported."""
    shown: dict[str, Any] = json.loads((folder / "live.json").read_text())
    return shown
