"""The time from a record's append to the input log to its row in the target, at a fixed rate with ten epochs a second.

Every record carries the time at which it was appended. A reader of each target looks for new rows again and again and
takes the difference when a row is seen first; looking adds about `LOOK_S`. The commit's share is read off the job log.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench
from latency_job import SCHEMA
from numpy.typing import NDArray
from patience import Patience, wait_for_end

from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError
from holdfast.runtime.worker.subtask import READ_BYTES_MAX
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import open_objects

PARTITIONS, APPENDS_PER_SECOND, LOOK_S = 2, 20, 0.005


@pytest.mark.e2e
def bench_latency(bench: Bench, tmp_path: Path) -> None:
    """Budget: p99 below 250 ms with 100 ms epochs."""
    rate = bench.size("rows per second", smoke=2_000, full=50_000)
    seconds = bench.size("seconds", smoke=2, full=30)
    create_log(open_objects(str(tmp_path / "input")), SCHEMA, PARTITIONS)
    (tmp_path / "out").mkdir()
    seen = {"SQLite": Seen(Table(tmp_path / "out.db").new), "hf.Log": Seen(Appended(tmp_path / "out").new)}
    job = Path(__file__).with_name("latency_job.py")
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "run", str(job), "--master", "local[3]"]
    environment = {**os.environ, "LATENCY_FOLDER": str(tmp_path), "TMPDIR": str(tmp_path)}
    with (tmp_path / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        feed = Feed(tmp_path / "input", rate // APPENDS_PER_SECOND // PARTITIONS)
        try:
            with bench.timed():
                watch(process, feed, list(seen.values()), seconds)
        finally:
            feed.end()
            process.terminate()
            wait_for_end(process, "the end of the job")
    assert process.returncode == 0, (tmp_path / "stderr.txt").read_text()[-3_000:]
    for target in seen.values():
        target.look()
        assert target.rows == feed.rows
    bench.report(per=feed.rows, unit="row", check=sum(target.rows for target in seen.values()))
    bench.note(f"record in to epoch committed: {spread(committed_us(tmp_path, feed), feed.measured_from_us)}")
    for name, target in seen.items():
        bench.note(
            f"record in to row visible in {name}, delivered at commit: "
            f"{spread(target.latencies(), feed.measured_from_us)}"
        )
    bench.note(f"load average of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


def watch(process: subprocess.Popen[bytes], feed: Feed, targets: list[Seen], seconds: float) -> None:
    """Look for new rows until the job has ended; the feed ends `seconds` after every target has shown rows."""
    patience = Patience(process.pid)
    while process.poll() is None:
        assert not patience.over, f"rows seen: {[target.rows for target in targets]}"
        for target in targets:
            target.look()
        if all(target.rows for target in targets):
            feed.end_after(seconds)
        feed.pause.wait(LOOK_S)


class Feed:
    """Appends records at a fixed rate until it is given an end; later appends compensate for a late one."""

    def __init__(self, folder: Path, rows_per_append: int) -> None:
        self._writer, self._each = LogWriter(open_objects(str(folder))), rows_per_append
        self.rows, self.measured_from_us = 0, 0
        self.sent_us: list[int] = []
        self.pause = threading.Event()
        self._end: float | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def end_after(self, seconds: float) -> None:
        """Continue for this long, and measure from one second from now."""
        if self._end is None:
            self.measured_from_us = time.time_ns() // 1_000 + 1_000_000
            self._end = time.monotonic() + 1.0 + seconds

    def end(self) -> None:
        """End now, if it has not ended."""
        self._end = time.monotonic() if self._end is None else self._end
        self.thread.join()

    def _run(self) -> None:
        start, appends = time.monotonic(), 0
        while self._end is None or time.monotonic() < self._end:
            sent_us = time.time_ns() // 1_000
            rows = pa.table([np.full(self._each, sent_us)], schema=SCHEMA)
            self._writer.append(dict.fromkeys(range(PARTITIONS), rows))
            self.sent_us.append(sent_us)
            self.rows += PARTITIONS * self._each
            appends += 1
            threading.Event().wait(max(0.0, start + appends / APPENDS_PER_SECOND - time.monotonic()))
        self._writer.seal()

    def appended_before(self, rows: int) -> int:
        """Return how many appends made up the first rows of a partition."""
        return rows // self._each


class Seen:
    """When the rows of a target were first seen: pairs of (sent, seen) in microseconds.

    Args:
        new: Returns when the rows that are new since its last call were sent.
    """

    def __init__(self, new: Callable[[], NDArray[np.int64]]) -> None:
        self._new, self.rows = new, 0
        self._pairs: list[NDArray[np.int64]] = []

    def look(self) -> None:
        """Look for new rows."""
        sent = self._new()
        if len(sent):
            self.rows += len(sent)
            self._pairs.append(np.stack([sent, np.full(len(sent), time.time_ns() // 1_000)]))

    def latencies(self) -> NDArray[np.int64]:
        """Return all pairs."""
        return np.concatenate(self._pairs, axis=1)


class Table:
    """The SQLite table."""

    def __init__(self, path: Path) -> None:
        self._path, self._row = path, 0

    def new(self) -> NDArray[np.int64]:
        """Return when the new rows were sent."""
        if not self._path.exists():
            return np.empty(0, np.int64)
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=30)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'passed'").fetchall():
                return np.empty(0, np.int64)
            found = connection.execute("SELECT rowid, sent_us FROM passed WHERE rowid > ?", (self._row,)).fetchall()
        self._row = max((row for row, _ in found), default=self._row)
        return np.array([sent for _, sent in found], np.int64)


class Appended:
    """The log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader: LogReader | None = None
        self._offsets: dict[int, int] = {}

    def new(self) -> NDArray[np.int64]:
        """Return when the new rows were sent."""
        if self._reader is None:
            try:
                self._reader = LogReader(open_objects(str(self._folder)))
            except ConfigError:
                return np.empty(0, np.int64)  # the job has not created it yet
        self._reader.refresh()
        found = []
        for partition, end in self._reader.end_offsets().items():
            while (offset := self._offsets.get(partition, 0)) < end:
                batch, self._offsets[partition] = self._reader.read(partition, offset, READ_BYTES_MAX)
                assert batch is not None
                found.append(batch.column("sent_us").to_numpy())
        return np.concatenate(found) if found else np.empty(0, np.int64)


def committed_us(folder: Path, feed: Feed) -> NDArray[np.int64]:
    """Return, per append, when it was sent and when its epoch was committed."""
    repository = Repository(open_objects(str(folder / "root" / "latency")))
    job = repository.read_log()
    assert job is not None
    pairs, done = [], 0
    for completed in job.completed:
        positions = repository.load_manifest(completed.body.manifest).positions
        through = feed.appended_before(min(at.offset for at in positions))
        pairs += [(sent, completed.at) for sent in feed.sent_us[done:through]]
        done = max(done, through)
    return np.array(pairs, np.int64).T


def spread(pairs: NDArray[np.int64], from_us: int) -> str:
    """Return the percentiles for records sent after the warm-up."""
    sent, seen = pairs
    ms = (seen - sent)[sent >= from_us] / 1_000
    p50, p99 = np.percentile(ms, [50, 99])
    return f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {ms.max():.0f} ms of {len(ms):,}"
