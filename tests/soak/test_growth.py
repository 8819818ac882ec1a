"""A job whose input grows at a steady rate for hours needs no more resources at the end than after its first quarter.

HOURS sets the duration (2). Samples and plot are left in `growth-soak/`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
import psutil
import pyarrow as pa
import pytest
from growth import Sample, growing, table, write_csv, write_plot
from running import Run, running

from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

JOB = Path(__file__).with_name("growing_job.py")
OUT = Path("growth-soak")
RECORDS_PER_SECOND, USERS, PAGES, PARTITIONS = 2_000, 10_000, 100, 4
SCHEMA = pa.schema(
    [pa.field(name, pa.int64(), nullable=False) for name in ("user", "page", "amount")]
    + [pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False)]
)


class Input:
    """Appends records at a steady rate, and keeps the expected totals of each user."""

    def __init__(self, path: Path) -> None:
        store = open_objects(str(path))
        create_log(store, SCHEMA, PARTITIONS)
        self._writer, self._random = LogWriter(store), np.random.default_rng(0)
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._run)
        self.counts, self.totals = np.zeros(USERS, np.int64), np.zeros(USERS, np.int64)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop appending, and seal the log."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        began, written = time.monotonic(), 0
        while not self._stop.wait(0.5):
            due = int((time.monotonic() - began) * RECORDS_PER_SECOND) - written
            self._append(due)
            written += due
        self._writer.seal()

    def _append(self, rows: int) -> None:
        users, pages = self._random.integers(0, USERS, rows), self._random.integers(0, PAGES, rows)
        amounts = self._random.integers(-500, 500, rows)
        at = np.full(rows, int(datetime.now(UTC).timestamp() * 1e6))
        columns = [pa.array(users), pa.array(pages), pa.array(amounts), pa.array(at).view(SCHEMA.field("at").type)]
        batch = pa.Table.from_arrays(columns, schema=SCHEMA)
        cuts = np.linspace(0, rows, PARTITIONS + 1).astype(int)
        self._writer.append({p: batch.slice(cuts[p], cuts[p + 1] - cuts[p]) for p in range(PARTITIONS)})
        self.counts += np.bincount(users, minlength=USERS)
        np.add.at(self.totals, users, amounts)


def under(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of every file below a folder; files may disappear meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.stat(os.path.join(parent, name))


def sample(folder: Path, run: Run, began: float) -> Sample:
    """Measure everything once."""
    job = folder / "root" / "growing"
    with contextlib.closing(sqlite3.connect(folder / "out.db", timeout=60)) as database:
        undo = database.execute("SELECT count(*) FROM holdfast_undo").fetchone()[0]
    memory = {"java": 0, "python": 0}
    driver = psutil.Process(run.process.pid)
    for process in [driver, *driver.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            memory["java" if "java" in process.name() else "python"] += process.memory_info().rss
    stored = list(under(job))
    return Sample(
        at_s=time.monotonic() - began,
        records=run.lines[-1]["records_in"] or 0,
        root_bytes=sum(each.st_size for each in stored),
        root_objects=len(stored),
        log_records=len(list((job / "log").iterdir())),
        local_bytes=sum(each.st_size for each in under(folder / f"holdfast-{os.getuid()}")),
        undo_rows=undo,
        python_bytes=memory["python"],
        jvm_bytes=memory["java"],
    )


def totals(folder: Path) -> dict[int, tuple[int, int]]:
    """Return the job's output for every user."""
    with contextlib.closing(sqlite3.connect(folder / "out.db")) as database:
        return {user: (n, total) for user, n, total in database.execute("SELECT user, n, total FROM users")}


@pytest.mark.e2e
@pytest.mark.slow
def test_resources_of_a_long_run_are_bounded(tmp_path: Path) -> None:
    seconds = 3_600 * float(os.environ.get("HOURS") or 2)
    flags: tuple[str, ...] = ("--master", "local[2]")
    samples: list[Sample] = []
    pause = threading.Event()
    with (
        Input(tmp_path / "input") as source,
        running(tmp_path, *flags, job=JOB, HOLDFAST_RETAINED_FOR_MS=f"{int(seconds * 1000 / 40)}") as run,
    ):
        run.wait_until_running()
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            assert run.process.poll() is None, run.errors()
            samples.append(sample(tmp_path, run, began))
            pause.wait(min(10.0, seconds / 200))
        source.end()
        assert run.finish(600) == 0, run.errors()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    write_csv(samples, OUT / "growth.csv")
    write_plot(samples, OUT / "growth.svg")
    print(f"\n{table(samples)}\nplot: {OUT / 'growth.svg'}")
    seen = np.flatnonzero(source.counts).tolist()
    assert totals(tmp_path) == {user: (int(source.counts[user]), int(source.totals[user])) for user in seen}
    assert growing(samples) == []
