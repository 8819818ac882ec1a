"""The time from the SIGKILL of a worker to the reassigned subtask's first record, by the size of the state.

Without a standby, another worker of the machine restores the local folder; with one, the standby takes over its copy.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bench_recovery import kill, spread
from harness import Bench, wait
from recovery_engines import first_record
from running import running
from takeover_job import SCHEMA

from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

PARTITIONS, RATE, GOES_ON_S = 4, 100_000, 240
"""The rate leaves a standby on the same two cores the time to follow."""
SHARE = 1_000_000
AWAITED_S = 120.0


@pytest.mark.e2e
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("keys", [1_000_000, 4_000_000, 16_000_000], ids=["1 M keys", "4 M keys", "16 M keys"])
@pytest.mark.parametrize("standbys", [0, 1])
def bench_takeover(bench: Bench, tmp_path: Path, keys: int, standbys: int) -> None:
    """Budget: with a standby less than 0.3 s at 1 M keys a worker, whatever the size of the state."""
    if not bench.full and keys > 1_000_000:
        keys = 2_000_000
    keys = bench.size("keys", smoke=keys // 100, full=keys)
    kills = bench.size("kills", smoke=2, full=10)
    rate = min(RATE, keys)
    write_input(tmp_path, keys, rate * GOES_ON_S)
    flags = ("--master", "local[4]", "--max-records-per-second", str(rate), "--standbys", str(standbys))
    job = Path(__file__).with_name("takeover_job.py")
    folder, first_ms, came_by = tmp_path / "root" / "takeover", [], set[str]()
    with bench.timed(), running(tmp_path, *flags, job=job, HOLDFAST_RESTART_FAILURES_MAX="100") as run:
        run.wait_until_running(keys)
        for number in range(kills):
            size = await_complete(folder, standbys)
            before = len(run.lines[-1]["restarts"])
            killed_at, subtask = kill(run, number % 2)
            first_ms.append((first_record(folder, before + 1, subtask) - killed_at) / 1000)
            run.wait_for(lambda p, n=before: p["state"] == "running" and len(p["restarts"]) > n, "recovery")  # type: ignore[misc]
            came_by |= {w["how"] for w in _status(folder)["workers"] if w["subtasks"] == [subtask] and w["how"]}
        restarts = _status(folder)["restarts"]
        run.process.send_signal(signal.SIGTERM)
        assert run.finish() == 0, run.errors()
    assert came_by == {"promoted" if standbys else "restored"}
    bench.report(per=kills, unit="kill", check=len(first_ms))
    bench.note(f"SIGKILL to first record: {spread(first_ms)}; 99th percentile {np.percentile(first_ms, 99):.0f} ms")
    for part in ("logged_ms", "deployed_ms", "recovery_ms"):
        bench.note(f"{part.removesuffix('_ms')} after: {spread([each[part] for each in restarts])}")
    bench.note(f"state of both workers {size >> 20} MiB; {', '.join(f'{each:.0f}' for each in first_ms)} ms")


def await_complete(folder: Path, standbys: int) -> int:
    """Wait until every standby has all of two further epochs; return the size of the subtasks' state."""
    wanted = _status(folder)["checkpoint"]["epoch"] + 2

    def complete() -> dict[str, Any] | None:
        shown = _status(folder)
        copies = [worker for worker in shown["workers"] if worker["role"] == "standby"]
        behind = len(copies) < standbys or any(worker["lag_epochs"] != 0 for worker in copies)
        return None if behind or shown["checkpoint"]["epoch"] < wanted else shown

    shown = wait(complete, "standbys with complete copies", AWAITED_S)
    return sum(worker["state_bytes"] or 0 for worker in shown["workers"] if worker["role"] == "worker")


def _status(folder: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads((folder / "live.json").read_text())
    return status


def write_input(folder: Path, keys: int, further: int) -> None:
    """Write a log with every key once, and then so many rows of random keys."""
    store = open_objects(str(folder / "input"))
    create_log(store, SCHEMA, PARTITIONS)
    writer, rng = LogWriter(store), np.random.default_rng(1)
    every = rng.permutation(keys)
    for first in range(0, keys, PARTITIONS * SHARE):
        writer.append(_parts(rng, every[first : first + PARTITIONS * SHARE]))
    for first in range(0, further, PARTITIONS * SHARE):
        writer.append(_parts(rng, rng.integers(0, keys, min(PARTITIONS * SHARE, further - first))))


def _parts(rng: np.random.Generator, keys: np.ndarray[Any, np.dtype[np.int64]]) -> dict[int, pa.Table]:
    values = rng.integers(0, 1_000, keys.size)
    return {
        partition: pa.table([keys[partition::PARTITIONS], values[partition::PARTITIONS]], schema=SCHEMA)
        for partition in range(PARTITIONS)
    }
