"""Keyed count and sum over many keys in microbatch mode, in continuous mode, and in Spark Structured Streaming.

All three read the same rows on two cores, ours from an hf.Log, the peer from as many Parquet files. The rates are those
between the first and the last full epoch, so without the starts of Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from bench_keyed_count import PARTITIONS, Used, drawn, records, restored_sums, run_job, sum_of
from harness import Bench
from keyed_job import SCHEMA

from holdfast.checkpoint.repository import Repository
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

EPOCHS = 8
MODES = ("microbatch", "continuous")


@pytest.mark.e2e
@pytest.mark.timeout(1_800)
def bench_microbatch(bench: Bench, tmp_path: Path) -> None:
    """Budget: 15 times the steady rate of Structured Streaming, over 1 M keys on two cores."""
    rows = bench.size("rows", smoke=200_000, full=64_000_000)
    peer_rows = bench.size("rows of the peer", smoke=40_000, full=8_000_000)
    keys = bench.size("keys", smoke=10_000, full=1_000_000)
    wanted = write_rows(tmp_path, rows, peer_rows, keys)
    rates = dict[str, float]()
    with bench.timed():
        for mode in MODES:
            rates[mode] = run_mode(bench, tmp_path, mode, wanted)
    rates["peer"] = run_peer(bench, tmp_path, peer_rows)
    bench.report(per=2 * rows, unit="row", check=wanted[0])
    if rates["peer"]:
        shares = ", ".join(f"{mode} {rates[mode] / rates['peer']:.1f}" for mode in MODES)
        bench.note(f"times the steady rate of Structured Streaming: {shares}")


def write_rows(folder: Path, rows: int, peer_rows: int, keys: int) -> tuple[int, int]:
    """Write the log, and its first rows as files for the peer; return the number of rows and the sum of all values."""
    store = open_objects(str(folder / "input"))
    create_log(store, SCHEMA, PARTITIONS)
    (folder / "files").mkdir()
    writer, rng, total, written = LogWriter(store), np.random.default_rng(1), 0, 0
    share = rows // EPOCHS // PARTITIONS
    for _ in range(EPOCHS):
        parts = drawn(rng, share, keys)
        total += sum_of(parts)
        writer.append(parts)
        peer_share = peer_rows // EPOCHS // PARTITIONS
        for part in parts.values():
            pq.write_table(part.slice(0, peer_share), folder / "files" / f"{written:06d}.parquet")
            written += 1
    writer.seal()
    return EPOCHS * PARTITIONS * share, total


def run_mode(bench: Bench, folder: Path, mode: str, wanted: tuple[int, int]) -> float:
    """Run our job in a mode, check its state, and return its steady rate."""
    used = Used()
    run_job(folder, used, "keyed_job.py", "--mode", mode, "--parallelism", "2")
    store = open_objects(str(folder / "root" / "keyed"))
    repository = Repository(store)
    job = repository.read_log()
    assert job is not None and job.finished
    manifests = [repository.load_manifest(done.body.manifest) for done in job.completed]
    assert restored_sums(folder, store, manifests[-1]) == wanted
    full = [(done.at / 1e6, records(manifest)) for done, manifest in zip(job.completed, manifests, strict=True)][:-1]
    durations = sorted(done.body.duration_ms for done in job.completed)
    (folder / "root").rename(folder / f"root-{mode}")
    bench.note(
        f"{mode}: {len(durations)} epochs, median {durations[len(durations) // 2]} ms, longest {durations[-1]} ms"
    )
    if len(full) < 3:
        return 0.0
    (first_s, first), (last_s, last) = full[0], full[-1]
    rate = (last - first) / (last_s - first_s)
    bench.note(f"{mode}: {rate / 1e6:.2f} M rows/s, steady")
    return rate


def run_peer(bench: Bench, folder: Path, rows: int) -> float:
    """Run the peer, and return its steady rate."""
    program = str(Path(__file__).with_name("microbatch_peer.py"))
    command = [sys.executable, program, str(folder / "files"), str(PARTITIONS), str(folder / "checkpoints")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(folder)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3_000:]
    epochs = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert sum(each["rows"] for each in epochs) == rows // EPOCHS // PARTITIONS * EPOCHS * PARTITIONS
    steady = epochs[1:]
    rate: float = sum(each["rows"] for each in steady) / sum(each["ms"] for each in steady) * 1e3
    bench.note(f"Structured Streaming: {rate / 1e6:.3f} M rows/s, steady, {len(epochs)} epochs")
    return rate
