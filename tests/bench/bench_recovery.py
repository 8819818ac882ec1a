"""The time from the SIGKILL of a worker to the reassigned subtask's first record, and to the next completed epoch.

On a cluster also from that of an executor or the driver; while its master is down, the time between two epochs.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
from harness import Bench
from patience import wait
from recovery_engines import (
    Continuous,
    Engine,
    Microbatch,
    StructuredStreaming,
    first_done,
    first_record,
    living,
    next_epoch,
    settled,
)
from running import Run, differences, make_input, pid_gone, running
from spark_events import SparkEvents
from standalone import Standalone, remembering, standalone

from holdfast.checkpoint.repository import Repository
from holdfast.storage.objects import open_objects

ROWS_PER_SECOND = 50_000
KINDS = ("worker", "executor", "driver", "master")
Times = dict[str, list[float]]
"""By what was killed, and for some of them what was measured besides: seconds."""


@pytest.mark.e2e
@pytest.mark.parametrize("place", [pytest.param((), id="local"), pytest.param(("--master", "local[4]"), id="Spark")])
def bench_recovery(bench: Bench, tmp_path: Path, place: tuple[str, ...]) -> None:
    """Budget: less than 1 s to the first record, as local processes and on Spark."""
    kills = bench.size("kills", smoke=1, full=10)
    rows = bench.size("rows", smoke=400_000, full=2_400_000)
    make_input(tmp_path, rows)
    repository = Repository(open_objects(str(tmp_path / "root" / "counting")))
    flags = (*place, "--max-records-per-second", str(ROWS_PER_SECOND))
    first_ms, epoch_ms = [], []
    with bench.timed(), running(tmp_path, *flags, HOLDFAST_RESTART_FAILURES_MAX="100") as run:
        run.wait_until_running(50_000)
        for number in range(kills):
            before = len(run.lines[-1]["restarts"])
            killed_at, subtask = kill(run, number % 2)
            taken_at = first_record(tmp_path / "root" / "counting", before + 1, subtask)
            first_ms.append((taken_at - killed_at) / 1000)
            epoch_ms.append((epoch_after(repository, killed_at) - killed_at) / 1000)
            run.wait_for(lambda p, n=before: p["state"] == "running" and len(p["restarts"]) > n, "recovery")  # type: ignore[misc]
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 0, run.errors()
    assert len(first_ms) == kills
    bench.report(per=kills, unit="kill", check=len(epoch_ms))
    bench.note(f"SIGKILL to first record of the reassigned subtask: {spread(first_ms)}")
    bench.note(f"SIGKILL to next completed epoch (one every 500 ms): {spread(epoch_ms)}")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(3_600)
def bench_cluster_recovery(bench: Bench, tmp_path: Path) -> None:
    """On a standalone cluster with two executors: both modes beside Structured Streaming, killed in four ways.

    Epochs are one second apart. The output of all is then compared with the input.
    """
    rounds = bench.size("kills of each kind", smoke=1, full=3)
    frame = make_input(tmp_path, bench.size("rows", smoke=3_000_000, full=9_000_000))
    tables = dict[str, Times]()
    (tmp_path / "cluster").mkdir()
    environment = remembering(tmp_path / "master")
    with bench.timed(), standalone(tmp_path / "cluster", PYTHONPATH="", **environment) as cluster:
        events = SparkEvents(tmp_path / "events", cluster.folder / "conf" / "spark-defaults.conf")
        engines: list[Engine] = [
            Continuous(cluster, tmp_path / "continuous"),
            Microbatch(cluster, events, tmp_path / "microbatch"),
            StructuredStreaming(cluster, events, tmp_path / "peer"),
        ]
        for engine in engines:
            shutil.copytree(tmp_path / "input", engine.folder / "input")
            engine.prepare(frame)
            tables[engine.name] = killed(engine, cluster, rounds)
            engine.finish()
            assert differences(engine.folder, frame, ("users",)) == []
            assert_nothing_is_left(engine, cluster)
    check = sum(len(times[kind]) for times in tables.values() for kind in KINDS)
    assert check == len(engines) * len(KINDS) * rounds
    bench.report(per=check, unit="kill", check=check)
    for line in table(tables):
        bench.note(line)


def assert_nothing_is_left(engine: Engine, cluster: Standalone) -> None:
    """Fail if a process of the job goes on, or if a file is left that the next driver does not need."""
    wait(lambda: cluster.is_idle() and not living(engine.folder), "the end of every process of the job")
    left = {path.name for path in engine.folder.iterdir() if not path.name.startswith("stderr-")}
    assert left - {*engine.keeps, "input", "out.db"} == set()


def table(tables: dict[str, Times]) -> list[str]:
    """Return a line per measure, with a column per engine: median and range in seconds."""
    lines = [f"{'seconds':<32}" + "".join(f"{name:<26}" for name in tables)]
    for measure in dict.fromkeys(measure for times in tables.values() for measure in times):
        cells = [times.get(measure) for times in tables.values()]
        shown = (f"{median(c):.1f} ({min(c):.1f} to {max(c):.1f})" if c else "-" for c in cells)
        lines.append(f"{measure:<32}" + "".join(f"{cell:<26}" for cell in shown))
    return lines


def killed(engine: Engine, cluster: Standalone, rounds: int) -> Times:
    """Kill everything in turn: every other time while a job runs, else between two."""
    times: Times = {}
    for number in range(rounds):
        during = number % 2 == 0
        with engine.running(python=True):
            settled(engine)
            replaced(engine, times, "worker", engine.lose_worker())
            settled(engine)
            apps, processes = cluster.seen_by_master()[2], [*cluster.executors(), *cluster.tasks()]
            at = engine.lose_driver(during=during)
            with engine.running():
                times.setdefault("driver", []).append(first_done(engine, at) - at)
                assert not set(apps) & set(cluster.seen_by_master()[2])
                await_end(processes)
                settled(engine)
                replaced(engine, times, "executor", engine.lose_executor(during=during))
                settled(engine)
                ride_out(engine, cluster, times, during=during)
    return times


def await_end(processes: list[psutil.Process]) -> None:
    """Wait until all these processes have ended."""
    wait(lambda: all(pid_gone(each.pid) for each in processes), "the end of the old processes")


def replaced(engine: Engine, times: Times, kind: str, at: float) -> None:
    """Record how long the next epoch took, and the first record of what was replaced."""
    first = engine.first_record(at)
    if first is not None:
        times.setdefault(f"{kind}, first record", []).append(first - at)
    times.setdefault(kind, []).append(next_epoch(engine, at).done - at)


def ride_out(engine: Engine, cluster: Standalone, times: Times, *, during: bool) -> None:
    """Kill the master; record the longest time between two epochs around that, and before."""
    from_s = time.time()
    settled(engine, 5)
    at = cluster.lose_master(partial(engine.at_moment, during=during))
    settled(engine, 5)
    done = [epoch.done for epoch in engine.epochs() if epoch.done > from_s]
    gaps = list(pairwise(done))
    times.setdefault("master", []).append(max(b - a for a, b in gaps if b > at))
    times.setdefault("longest wait without a kill", []).append(max(b - a for a, b in gaps if b <= at))


def spread(values_ms: list[float]) -> str:
    """Return median and range."""
    return f"median {median(values_ms):.0f} ms, {min(values_ms):.0f} to {max(values_ms):.0f} ms of {len(values_ms)}"


def kill(run: Run, subtask: int) -> tuple[int, int]:
    """SIGKILL the worker that runs the subtask; return the time in microseconds, and the subtask."""
    pid = next(worker["pid"] for worker in run.lines[-1]["workers"] if worker["subtasks"] == [subtask])
    at = time.time_ns() // 1000
    os.kill(pid, signal.SIGKILL)
    wait(lambda: pid_gone(pid), "the worker to be gone")
    return at, subtask


def epoch_after(repository: Repository, after_us: int) -> int:
    """Return when the first epoch after this moment was completed, by the job log."""

    def found() -> Any:
        job = repository.read_log()
        done = [c for c in job.completed if c.at > after_us and c.generation == job.generation] if job else []
        return done[0].at if done else None

    return int(wait(found, "the next epoch"))
