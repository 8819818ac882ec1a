"""The time from the SIGKILL of a worker to the reassigned subtask's first record, and to the next completed epoch."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from harness import Bench, wait
from running import Run, make_input, pid_gone, running
from standalone import lose_driver, lose_executor, lose_worker, running_on, standalone

from holdfast.checkpoint.repository import Repository
from holdfast.storage.objects import open_objects

ROWS_PER_SECOND = 50_000


@pytest.mark.e2e
def bench_recovery(bench: Bench, tmp_path: Path) -> None:
    """Budget: less than 1 s to the first record on local[4]."""
    kills = bench.size("kills", smoke=1, full=10)
    rows = bench.size("rows", smoke=400_000, full=2_400_000)
    make_input(tmp_path, rows)
    repository = Repository(open_objects(str(tmp_path / "root" / "counting")))
    flags = ("--master", "local[4]", "--max-records-per-second", str(ROWS_PER_SECOND))
    first_ms, epoch_ms = [], []
    with bench.timed(), running(tmp_path, *flags, HOLDFAST_RESTART_FAILURES_MAX="100") as run:
        run.wait_until_running(50_000)
        for number in range(kills):
            before = len(run.lines[-1]["restarts"])
            killed_at, subtask = kill(run, number % 2)
            taken_at = first_record(tmp_path, before + 1, subtask)
            first_ms.append((taken_at - killed_at) / 1000)
            epoch_ms.append((next_epoch(repository, killed_at) - killed_at) / 1000)
            run.wait_for(lambda p, n=before: p["state"] == "running" and len(p["restarts"]) > n, "recovery")  # type: ignore[misc]
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 0, run.errors()
    assert len(first_ms) == kills
    bench.report(per=kills, unit="kill", check=len(epoch_ms))
    bench.note(f"SIGKILL to first record of the reassigned subtask: {spread(first_ms)}")
    bench.note(f"SIGKILL to next completed epoch (one every 500 ms): {spread(epoch_ms)}")


@pytest.mark.e2e
@pytest.mark.slow
def bench_cluster_recovery(bench: Bench, tmp_path: Path) -> None:
    """The same on a standalone cluster with two executors; and a killed driver whose command is run again."""
    rounds = bench.size("kills of each kind", smoke=1, full=3)
    make_input(tmp_path, bench.size("rows", smoke=400_000, full=4_000_000))
    repository = Repository(open_objects(str(tmp_path / "root" / "counting")))
    first: dict[str, list[float]] = {"worker": [], "executor": []}
    epoch: dict[str, list[float]] = {"worker": [], "executor": [], "driver": []}
    (tmp_path / "cluster").mkdir()
    with bench.timed(), standalone(tmp_path / "cluster", PYTHONPATH="") as cluster:
        for _ in range(rounds):
            with running_on(cluster, tmp_path, str(ROWS_PER_SECOND)) as run:
                run.wait_until_running()
                for kind, lose in (("worker", lose_worker), ("executor", lose_executor)):
                    before = len(run.lines[-1]["restarts"])
                    at = lose(run)
                    first[kind].append(first_record(tmp_path, before + 1, 0) / 1000 - at * 1000)
                    epoch[kind].append(next_epoch(repository, round(at * 1e6)) / 1000 - at * 1000)
                    run.wait_until_running()
                at = lose_driver(run)
            with running_on(cluster, tmp_path, str(ROWS_PER_SECOND)) as again:
                again.wait_until_running()
                epoch["driver"].append(next_epoch(repository, round(at * 1e6)) / 1000 - at * 1000)
                again.process.send_signal(signal.SIGTERM)
                assert again.finish() == 0, again.errors()
    bench.report(per=3 * rounds, unit="kill", check=sum(map(len, epoch.values())))
    bench.note(f"{'killed':<9} {'first record of its subtask':<42} next completed epoch (one every 500 ms)")
    for kind, times in epoch.items():
        bench.note(f"{kind:<9} {spread(first[kind]) if kind in first else '-':<42} {spread(times)}")


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


def first_record(folder: Path, restarts: int, subtask: int) -> int:
    """Return when the subtask took its first record after this many restarts."""

    def found() -> Any:
        status = json.loads((folder / "root" / "counting" / "live.json").read_text())
        if len(status["restarts"]) < restarts:
            return None
        at = [w["first_record_at"] for w in status["workers"] if w["subtasks"] == [subtask] and w["how"]]
        return at[0] if at else None

    return int(wait(found, "the first record"))


def next_epoch(repository: Repository, after_us: int) -> int:
    """Return when the first epoch after this moment was completed, by the job log."""

    def found() -> Any:
        job = repository.read_log()
        done = [c for c in job.completed if c.at > after_us and c.generation == job.generation] if job else []
        return done[0].at if done else None

    return int(wait(found, "the next epoch"))
