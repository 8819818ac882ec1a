"""A wide job over a backlog in small appends: two sources, 13 operators, 16 outputs, two workers without Spark.

The same records in appends of 12 and of 1,200, and in one append for what a run costs without records. The rate is that
from the first record that a worker read to the commit of the last epoch with records; CPU is that of the workers
beyond what the run with few records takes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from bench_keyed_count import Used
from harness import Bench
from wide_job import CLICKS, ORDERS, TIME

from holdfast.checkpoint.repository import Repository
from holdfast.model import ObjectRef
from holdfast.runtime.inspect.stored import read_live
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import open_objects

PARTITIONS = 2
SMALL, LARGE = 12, 1_200
FEW = 48
LOOK_EVERY_S = 0.02
BEGAN_US = 1_700_000_000_000_000


@dataclass
class Ran:
    """What one run took."""

    rows_per_s: float
    cpu_s: float
    """Of the workers."""


@pytest.mark.e2e
def bench_wide(bench: Bench, tmp_path: Path) -> None:
    """Budget: 3,000 records/s in appends of 12, and CPU for a record less than twice that in appends of 1,200."""
    rows = bench.size("records", smoke=1_200, full=24_000)
    outputs, ran = dict[int, dict[str, int]](), dict[int, Ran]()
    run(tmp_path / "first", FEW, FEW)  # compiles what is compiled once
    base = run(tmp_path / "few", FEW, FEW)
    with bench.timed():
        for append in (SMALL, LARGE):
            ran[append] = run(tmp_path / str(append), rows, append)
            outputs[append] = rows_out(tmp_path / str(append))
    assert outputs[SMALL] == outputs[LARGE], "results do not depend on appends"
    bench.report(per=2 * rows, unit="record", check=sum(outputs[SMALL].values()))
    cpu_us = {append: (each.cpu_s - base.cpu_s) / rows * 1e6 for append, each in ran.items()}
    for append, each in ran.items():
        bench.note(
            f"appends of {append:,}: {each.rows_per_s:,.0f} records/s, {cpu_us[append]:,.0f} us of CPU per record"
        )
    bench.note(f"CPU per record in appends of {SMALL} over that of {LARGE:,}: {cpu_us[SMALL] / cpu_us[LARGE]:.2f}")


def run(folder: Path, rows: int, append: int) -> Ran:
    """Write so many records, half of them to each source, in appends of this size; run the job to its end."""
    rng = np.random.default_rng(1)
    for name, schema in (("orders", ORDERS), ("clicks", CLICKS)):
        write(folder / name, schema, drawn(rng, schema, rows // 2), append)
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "run", str(Path(__file__).with_name("wide_job.py"))]
    environment = {**os.environ, "WIDE_FOLDER": str(folder), "TMPDIR": str(folder)}
    used = Used()
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen([*command, "--local"], env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        while process.poll() is None:
            used.sample([each.pid for each in children(process.pid)])
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=LOOK_EVERY_S)
    assert process.returncode == 0, (folder / "stderr.txt").read_text()[-3_000:]
    store = open_objects(str(folder / "root" / "wide"))
    repository, live = Repository(store), read_live(store)
    job = repository.read_log()
    assert job is not None and job.finished and live is not None
    cpu_s = sum(used.cpu_s[worker.pid] for worker in live.workers if worker.pid in used.cpu_s)
    began_us = min(worker.first_record_at for worker in live.workers if worker.first_record_at is not None)
    completed = [(done.at, positions(repository, done.body.manifest)) for done in job.completed]
    ended_us = min(at for at, count in completed if count == rows)
    return Ran(rows / (ended_us - began_us) * 1e6, cpu_s)


def children(pid: int) -> list[psutil.Process]:
    """Return the processes below this one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def positions(repository: Repository, manifest: ObjectRef) -> int:
    """Return how many records a checkpoint covers."""
    return sum(at.offset for at in repository.load_manifest(manifest).positions)


def drawn(rng: np.random.Generator, schema: pa.Schema, rows: int) -> pa.Table:
    """Return records whose times advance by 20 ms each on average, with up to 1.5 seconds of disorder."""
    numbers = np.arange(rows)
    times = BEGAN_US + numbers * 20_000 - rng.integers(0, 1_500_000, rows)
    made = {
        "id": numbers,
        "customer": rng.integers(0, 200, rows),
        "product": [f"product-{n}" for n in rng.integers(0, 50, rows)],
        "page": [f"/page/{n}" for n in rng.integers(0, 30, rows)],
        "amount": rng.integers(1, 1_000, rows),
        "took_ms": rng.integers(1, 400, rows),
        "at": pa.array(times).cast(TIME),
    }
    return pa.table([pa.array(made[name]) for name in schema.names], schema=schema)


def write(folder: Path, schema: pa.Schema, rows: pa.Table, append: int) -> None:
    """Write a log in appends to one partition after the other, each with its part of the time."""
    store = open_objects(str(folder))
    create_log(store, schema, PARTITIONS)
    writer = LogWriter(store)
    for partition in range(PARTITIONS):
        mine = rows.take(pa.array(np.arange(partition, rows.num_rows, PARTITIONS)))
        for first in range(0, mine.num_rows, append):
            writer.append({partition: mine.slice(first, append)})
    writer.seal()


def rows_out(folder: Path) -> dict[str, int]:
    """Return a number for the content of every output: of an upsert, that of the keys."""
    found = dict[str, int]()
    for each in sorted((folder / "out").iterdir()):
        reader = LogReader(open_objects(str(each)))
        reader.refresh()
        key = reader.meta.key
        seen, count = set[tuple[object, ...]](), 0
        for partition in range(reader.meta.partitions):
            offset = 0
            while (batch := (read := reader.read(partition, offset, 1 << 20))[0]) is not None:
                offset = read[1]
                count += batch.num_rows
                seen.update(zip(*(batch.column(name).to_pylist() for name in key), strict=True) if key else ())
        found[each.name] = len(seen) if key else count
    return found
