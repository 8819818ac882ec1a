"""Two jobs in microbatch mode, in continuous mode, and in Spark Structured Streaming: keyed sums, and windows.

All three read the same rows on two cores, ours from an hf.Log, the peer the first of them from Parquet files. The rates
are those between the first and the last full epoch, so without the starts of Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import bench_windowed
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench_keyed_count import PARTITIONS, Used, drawn, records, restored_sums, run_job, sum_of
from harness import Bench
from keyed_job import SCHEMA

from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

EPOCHS = 8
MODES = {"microbatch": "5s", "continuous": "1s"}
"""The interval of each mode: as microbatches less than an epoch of the peer takes, which reads fewer rows in one."""


@dataclass
class PeerInput:
    """The rows of the peer: a file of each partition is an epoch.

    Args:
        rows: How many there are.
        epoch_rows: How many of them an epoch reads.
    """

    folder: Path
    rows: int
    epoch_rows: int
    written: int = 0

    def write(self, parts: dict[int, pa.Table]) -> None:
        """Write the first of these rows, as far as any are wanted."""
        share = self.epoch_rows // PARTITIONS
        for first in range(0, min(part.num_rows for part in parts.values()) - share + 1, share):
            if self.written + self.epoch_rows > self.rows:
                return
            for number, part in parts.items():
                name = f"{self.written // self.epoch_rows:06d}-{number}.parquet"
                pq.write_table(part.slice(first, share), self.folder / name)
            self.written += self.epoch_rows


@pytest.mark.e2e
@pytest.mark.timeout(1_800)
def bench_microbatch(bench: Bench, tmp_path: Path) -> None:
    """Budget: 15 times the steady rate of Structured Streaming, over 1 M keys on two cores."""
    rows = bench.size("rows", smoke=200_000, full=24_000_000)
    keys = bench.size("keys", smoke=10_000, full=1_000_000)
    peer = peer_input(bench, tmp_path, smoke=5_000)
    wanted = write_rows(tmp_path, rows, keys, peer)

    def check(manifest: Manifest) -> None:
        assert restored_sums(tmp_path, open_objects(str(tmp_path / "root" / "keyed")), manifest) == wanted
        (tmp_path / "out.db").unlink()  # each mode is a new job, and a target keeps the rows of one

    compare(bench, tmp_path, "keyed", check, peer)
    bench.report(per=2 * rows, unit="row", check=wanted[0])


def peer_input(bench: Bench, folder: Path, smoke: int) -> PeerInput:
    """Return the input of the peer, not written yet."""
    epoch_rows = bench.size("rows per epoch of the peer", smoke=smoke, full=1_000_000)
    (folder / "files").mkdir()
    return PeerInput(folder / "files", bench.size("epochs of the peer", smoke=EPOCHS, full=12) * epoch_rows, epoch_rows)


def write_rows(folder: Path, rows: int, keys: int, peer: PeerInput) -> tuple[int, int]:
    """Write the log and the input of the peer; return the number of rows and the sum of all values."""
    store = open_objects(str(folder / "input"))
    create_log(store, SCHEMA, PARTITIONS)
    writer, rng, total = LogWriter(store), np.random.default_rng(1), 0
    share = rows // EPOCHS // PARTITIONS
    for _ in range(EPOCHS):
        parts = drawn(rng, share, keys)
        total += sum_of(parts)
        writer.append(parts)
        peer.write(parts)
    writer.seal()
    return EPOCHS * PARTITIONS * share, total


def compare(bench: Bench, folder: Path, job: str, check: Callable[[Manifest], None], peer: PeerInput) -> None:
    """Run a job in both modes and the peer, and note their steady rates.

    Args:
        check: Compares the results of a run with the input; receives its last manifest.
    """
    with bench.timed():
        rates = {mode: run_mode(bench, folder, job, mode, check) for mode in MODES}
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


def run_mode(bench: Bench, folder: Path, name: str, mode: str, check: Callable[[Manifest], None]) -> float:
    """Run our job in a mode, check its results, and return its steady rate."""
    run_job(folder, Used(), name, "--mode", mode, "--every", MODES[mode], "--parallelism", "2")
    repository = Repository(open_objects(str(folder / "root" / name)))
    job = repository.read_log()
    assert job is not None and job.finished
    check(repository.load_manifest(job.completed[-1].body.manifest))
    rate = steady_rate(repository, job)
    durations = sorted(done.body.duration_ms for done in job.completed)
    (folder / "root").rename(folder / f"root-{mode}")
    bench.note(
        f"{mode}: {len(durations)} epochs, median {durations[len(durations) // 2]} ms, longest {durations[-1]} ms"
    )
    bench.note(f"{mode}: {rate / 1e6:.2f} M rows/s, steady, an epoch every {MODES[mode]}")
    return rate


def steady_rate(repository: Repository, job: Job) -> float:
    """Return the records per second between the first and the last full epoch; 0 if there are too few."""
    full = [(done.at / 1e6, records(repository.load_manifest(done.body.manifest))) for done in job.completed][:-1]
    if len(full) < 3:
        return 0.0
    (first_s, first), (last_s, last) = full[0], full[-1]
    return (last - first) / (last_s - first_s)


def run_peer(bench: Bench, query: str, peer: PeerInput) -> float:
    """Run the peer, and return its steady rate."""
    program, checkpoints = str(Path(__file__).with_name("microbatch_peer.py")), peer.folder.with_name("checkpoints")
    command = [sys.executable, program, query, str(peer.folder), str(PARTITIONS), str(checkpoints)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(peer.folder.parent)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3_000:]
    epochs = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert sum(each["rows"] for each in epochs) == peer.written
    steady = [each for each in epochs if each["rows"]][1:]
    rate: float = sum(each["rows"] for each in steady) / sum(each["ms"] for each in steady) * 1e3
    late = sum(each["late"] for each in epochs)
    took_s = sum(each["ms"] for each in steady) / len(steady) / 1e3
    bench.note(f"Structured Streaming: {rate / 1e6:.3f} M rows/s, steady, {len(epochs)} epochs, {late} rows late")
    bench.note(f"Structured Streaming: an epoch of {peer.epoch_rows:,} rows takes {took_s:.1f} s, one follows another")
    return rate
