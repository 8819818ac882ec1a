"""Keyed count and sum over many keys: embedded log, two workers, exchange, an epoch a second.

Runs the job as users do and reads its rate off the job log: records between the first and the last full epoch, by the
times at which they were committed. State is restored from the last checkpoint and checked against NumPy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from harness import Bench
from keyed_job import ROW_BYTES, SCHEMA, make
from keyed_parts import parts_ns

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.recovery import handles_for
from holdfast.checkpoint.repository import Repository, read_verified
from holdfast.model import Generation, WorkerId
from holdfast.ports import ObjectStore
from holdfast.state.store import Identity, StateStore
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

PARTITIONS = 4


@dataclass
class Used:
    """The resources of the worker processes, by process id: highest CPU seconds and bytes seen."""

    cpu_s: dict[int, float] = field(default_factory=dict)
    rss: dict[int, int] = field(default_factory=dict)

    def sample(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                self.cpu_s[pid] = times.user + times.system
                self.rss[pid] = max(self.rss.get(pid, 0), process.memory_info().rss)
            except psutil.NoSuchProcess:
                continue


@pytest.mark.e2e
def bench_keyed_count(bench: Bench, tmp_path: Path) -> None:
    """Budget: 8 M rows/s over 1 M keys on two cores."""
    rows = bench.size("rows", smoke=400_000, full=128_000_000)
    keys = bench.size("keys", smoke=10_000, full=1_000_000)
    wanted = write_input(tmp_path, rows, keys)
    used = Used()
    with bench.timed():
        run_job(tmp_path, used, "keyed")
    store = open_objects(str(tmp_path / "root" / "keyed"))
    repository = Repository(store)
    job = repository.read_log()
    assert job is not None and job.finished
    manifests = [repository.load_manifest(done.body.manifest) for done in job.completed]
    assert restored_sums(tmp_path, store, manifests[-1]) == wanted
    bench.report(per=rows, unit="row", check=wanted[0])
    note_steady_state(bench, repository)
    cpu_us = sum(used.cpu_s.values()) / rows * 1e6
    bench.note(f"CPU: {cpu_us:.3f} us per row of {ROW_BYTES} bytes, both workers together")
    bench.note(f"memory: {', '.join(f'{size >> 20} MiB' for size in used.rss.values())} resident per worker")
    parts = parts_ns(tmp_path, bench.size("rows taken apart", smoke=100_000, full=8_000_000))
    bench.note("CPU ns per row, each part alone: " + ", ".join(f"{part} {ns:.0f}" for part, ns in parts.items()))
    bench.note("  (freeze and seal: per changed key and epoch)")
    durations = sorted(done.body.duration_ms for done in job.completed)
    bench.note(f"checkpoints: {len(durations)}, median {durations[len(durations) // 2]} ms, longest {durations[-1]} ms")


def write_input(folder: Path, rows: int, keys: int) -> tuple[int, int]:
    """Write the log; return the number of rows and the sum of all values."""
    store = open_objects(str(folder / "input"))
    create_log(store, SCHEMA, PARTITIONS)
    writer, rng, total = LogWriter(store), np.random.default_rng(1), 0
    share = min(rows // PARTITIONS, 4_000_000)
    for _ in range(rows // (share * PARTITIONS)):
        parts = drawn(rng, share, keys)
        total += sum_of(parts)
        writer.append(parts)
    writer.seal()
    return rows // (share * PARTITIONS) * share * PARTITIONS, total


def drawn(rng: np.random.Generator, share: int, keys: int) -> dict[int, pa.Table]:
    """Return so many random rows for every partition."""
    return {
        partition: pa.table([rng.integers(0, keys, share), rng.integers(0, 1_000, share)], schema=SCHEMA)
        for partition in range(PARTITIONS)
    }


def sum_of(parts: dict[int, pa.Table]) -> int:
    """Return the sum of all values."""
    return sum(int(np.sum(part["v"].to_numpy())) for part in parts.values())


def run_job(folder: Path, used: Used, job: str, *flags: str) -> None:
    """Run a job of these benchmarks to its end, and record the resources of its workers."""
    path = Path(__file__).with_name(f"{job}_job.py")
    run_file(path, folder, used, {f"{job.upper()}_FOLDER": str(folder)}, *flags)


def run_file(path: Path, folder: Path, used: Used, variables: Mapping[str, str], *flags: str) -> None:
    """Run the job of a file to its end, and record the resources of its workers."""
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "run", str(path), "--progress", "json", *flags]
    environment = {**os.environ, **variables, "TMPDIR": str(folder)}
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(
            [*command, "--master", "local[3]"], env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        for progress in objects(process):
            used.sample([worker["pid"] for worker in progress["workers"]])
    assert process.wait() == 0, (folder / "stderr.txt").read_text()[-3_000:]


def note_steady_state(bench: Bench, repository: Repository) -> None:
    """Note the rate between the first and the last full epoch, by the times at which they were committed."""
    job = repository.read_log()
    assert job is not None
    full = [(done.at / 1e6, records(repository.load_manifest(done.body.manifest))) for done in job.completed][:-1]
    if len(full) > 2:
        (first_s, first), (last_s, last) = full[0], full[-1]
        rate = (last - first) / (last_s - first_s) / 1e6
        bench.note(f"steady state: {rate:.2f} M rows/s over {len(full) - 1} epochs")


def objects(process: subprocess.Popen[str]) -> Iterator[dict[str, list[dict[str, int]]]]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def records(manifest: Manifest) -> int:
    """Return how many rows the checkpoint covers."""
    return sum(at.offset for at in manifest.positions if at.source == "rows")


def restored_sums(folder: Path, store: ObjectStore, manifest: Manifest) -> tuple[int, int]:
    """Restore all state from the checkpoint; return the sum of all counts and of all sums."""
    (operator,) = make(folder).plan().operators
    (handle,) = handles_for(manifest, [(0, manifest.key_groups)])
    identity = Identity(manifest.job_uuid, Generation(manifest.generation), manifest.timeline, WorkerId("bench"))
    state = StateStore(identity, [operator.table], manifest.key_groups, (0, manifest.key_groups))
    state.restore(manifest.epoch, (read_verified(store, segment.object) for segment in handle.segments))
    table = state.table(operator.id)
    names = [column.name for column in operator.table.columns]
    n, total = (int(table.column(name)[table.present()].sum()) for name in names)
    return n, total
