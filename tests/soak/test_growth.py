"""A job that runs for hours at full speed needs no more resources at the end than in the middle.

HOURS sets the duration of the long run (0.5), RATE its records per second (as many as it can read). Its root is in a
slow S3 store if HOLDFAST_S3_SERVER names the server (slow_store.py), else in a folder. Samples and plot are left in
`growth-soak/`.

Half an hour is the least that can be judged: the job log starts over every 200 records, about every three minutes, and
the quantities rise and fall with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import growing_job
import numpy as np
import psutil
import pytest
from growth import Sample, growing, table, write_csv, write_plot
from running import Run, running
from slow_store import Root, root_of

JOB = Path(__file__).with_name("growing_job.py")
OUT = Path("growth-soak")
PERIOD = 500
"""After this many records of a partition, users and amounts repeat."""


def under(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of every file below a folder; files may disappear meanwhile."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.stat(os.path.join(parent, name))


def memory_of(driver: psutil.Process) -> dict[str, int]:
    """Return the resident memory of the driver, the JVMs and the other Python processes."""
    memory = {"driver": driver.memory_info().rss, "jvm": 0, "worker": 0}
    for process in driver.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            memory["jvm" if "java" in process.name() else "worker"] += process.memory_info().rss
    return memory


def reported(job: Path) -> Any:
    """Return the job's own report."""
    return json.loads((job / "live.json").read_bytes())


def sample(folder: Path, job: Path, run: Run, began: float) -> Sample:
    """Measure everything once."""
    with contextlib.closing(sqlite3.connect(folder / "out.db", timeout=60)) as database:
        undo = database.execute("SELECT count(*) FROM holdfast_undo").fetchone()[0]
    memory, stored = memory_of(psutil.Process(run.process.pid)), list(under(job))
    return Sample(
        at_s=time.monotonic() - began,
        records=run.lines[-1]["records_in"] or 0,
        root_bytes=sum(each.st_size for each in stored),
        root_objects=len(stored),
        log_records=len(list((job / "log").iterdir())),
        local_bytes=sum(each.st_size for each in under(folder / f"holdfast-{os.getuid()}")),
        undo_rows=undo,
        state_bytes=sum(each["state_bytes"] or 0 for each in reported(job)["workers"]),
        worker_bytes=memory["worker"],
        driver_bytes=memory["driver"],
        jvm_bytes=memory["jvm"],
    )


def sampled(folder: Path, root: Root, seconds: float) -> list[Sample]:
    """Run the job for this long, and stop it; return a sample per second."""
    samples: list[Sample] = []
    pause, job = threading.Event(), root.files / "growing"
    retained = {"HOLDFAST_RETAINED_FOR_MS": f"{int(seconds * 1000 / 40)}"}
    environment = {**root.environment, **retained, "GROWING_ROOT": root.url}
    rate = ("--max-records-per-second", os.environ["RATE"]) if os.environ.get("RATE") else ()
    with running(folder, "--master", "local[2]", *rate, job=JOB, **environment) as run:
        run.wait_until_running()
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            assert run.process.poll() is None, run.errors()
            samples.append(sample(folder, job, run, began))
            pause.wait(1.0)
        run.process.send_signal(signal.SIGINT)
        assert run.finish(600) == 0, run.errors()
    return samples


def expected(offsets: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Return count and sum of every user, for the records before these offsets."""
    counts, totals = np.zeros(growing_job.USERS, np.int64), np.zeros(growing_job.USERS, np.int64)
    for partition, end in offsets.items():
        rows = growing_job.visits_of(np.arange(PERIOD) * growing_job.PARTITIONS + partition)
        times = end // PERIOD + (np.arange(PERIOD) < end % PERIOD)
        np.add.at(counts, rows["user"], times)
        np.add.at(totals, rows["user"], rows["amount"] * times)
    return {user: (int(counts[user]), int(totals[user])) for user in np.flatnonzero(counts).tolist()}


def differing(folder: Path, root: Root) -> list[int]:
    """Return the users whose totals are wrong after the run."""
    with contextlib.closing(sqlite3.connect(folder / "out.db")) as database:
        found = {user: (n, total) for user, n, total in database.execute("SELECT user, n, total FROM users")}
    wanted = expected({row["partition"]: row["offset"] for row in reported(root.files / "growing")["sources"]})
    assert wanted
    return sorted(user for user in found.keys() | wanted.keys() if found.get(user) != wanted.get(user))


def leave(samples: list[Sample], out: Path) -> None:
    """Write the samples and the plot."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    write_csv(samples, out / "growth.csv")
    write_plot(samples, out / "growth.svg")


@pytest.mark.e2e
@pytest.mark.slow
def test_resources_of_a_long_run_are_bounded(tmp_path: Path) -> None:
    with root_of(tmp_path) as root:
        samples = sampled(tmp_path, root, 3_600 * float(os.environ.get("HOURS") or 0.5))
        leave(samples, OUT)
        print(f"\n{table(samples)}\nroot: {root.url}, plot: {OUT / 'growth.svg'}")
        assert differing(tmp_path, root) == []
    assert growing(samples) == []


@pytest.mark.e2e
def test_a_short_run_measures_every_quantity(tmp_path: Path) -> None:
    """Too short for a line through the samples: it shows that the long run can be judged."""
    with root_of(tmp_path) as root:
        samples = sampled(tmp_path, root, 5)
        assert differing(tmp_path, root) == []
    leave(samples, tmp_path / "out")
    last = samples[-1]
    assert [name for name, value in vars(last).items() if not value] == []
    assert len((tmp_path / "out" / "growth.csv").read_text().splitlines()) == len(samples) + 1


class TestTheLimit:
    """Made samples of half an hour: a sawtooth of 45 s, noise, and what is added to it."""

    def made(self, **leaks: float) -> list[Sample]:
        noise = np.random.default_rng(0)
        flat = Sample(0, 0, 40 << 20, 600, 200, 200 << 20, 20_000, 30 << 20, 900 << 20, 300 << 20, 1 << 30)

        def at(second: int) -> Sample:
            level = (1 + 0.3 * (second % 45 / 45)) * (1 + 0.1 * noise.random())
            values = {name: int(value * level) for name, value in vars(flat).items() if name not in ("at_s", "records")}
            leaked = {name: values[name] + int(rate * second) for name, rate in leaks.items()}
            return Sample(at_s=second, records=second * 100_000, **(values | leaked))

        return [at(second) for second in range(1_800)]

    def test_allows_a_sawtooth(self) -> None:
        assert growing(self.made()) == []

    def test_allows_growth_that_ends_in_the_first_half(self) -> None:
        rising = [replace(each, worker_bytes=int(each.worker_bytes * min(1, each.at_s / 600))) for each in self.made()]
        assert growing(rising) == []

    @pytest.mark.parametrize(
        ("name", "per_second"),
        [
            ("worker_bytes", 150e3),
            ("driver_bytes", 60e3),
            ("log_records", 0.1),
            ("root_objects", 0.3),
            ("state_bytes", 8e3),
        ],
    )
    def test_fails_for_a_leak(self, name: str, per_second: float) -> None:
        (problem,) = growing(self.made(**{name: per_second}))
        assert problem.startswith(f"{name} rose by ")
