"""A job that cron runs in microbatch mode with `--once`; every third run is killed. Records arrive between two runs.

Every other kill hits only the process that cron started, as the kernel does when memory is short: Spark's JVM, its
Python daemon and the tasks must end by themselves. After every run that ended by itself, all targets hold all records
once. At the end no process, temporary file or object of a killed run is left, and the audit proves every target.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from patience import WALL_S, wait_for_end
from running import is_daemon
from words_job import FILE, ROWS, log_rows

from holdfast.runtime.wire.processes import signal_all
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3_600)]

ROWS_PER_RUN = 300
ORPHANS_LIMIT_S = 60.0
KEPT = {"HOLDFAST_RETAINED_CHECKPOINTS": "2", "HOLDFAST_RETAINED_FOR_MS": "1"}
"""So that every epoch is followed by a sweep."""
OBJECTS = ("segments", "base", "merged", "staged", "manifests")


class Cron:
    """The job in its folder, and the records that were appended so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.words = folder, list[tuple[str, int]]()
        create_log(LocalObjects(folder / "rows"), ROWS)
        (folder / "job.py").write_text(FILE.format(folder=str(folder)))
        (folder / "tmp").mkdir()

    def append(self) -> None:
        """Append records to all partitions."""
        first = len(self.words)
        rows = [(f"word-{(n * 7919) % 101}", n % 13) for n in range(first, first + ROWS_PER_RUN)]
        parts = {
            p: pa.table({"word": [w for w, _ in rows[p::4]], "n": [n for _, n in rows[p::4]]}, schema=ROWS)
            for p in range(4)
        }
        LogWriter(LocalObjects(self.folder / "rows")).append(parts)
        self.words += rows

    def run(self, killed_after_s: float | None, alone: bool = False) -> tuple[int, float]:
        """Run once; return the exit status, below 0 if killed, and how long it took.

        Args:
            alone: Kill only the command; whatever it has started must end by itself.
        """
        command = [sys.executable, "-m", "holdfast.runtime.cli.main", "run", str(self.folder / "job.py")]
        command += ["--once", "--mode", "microbatch", "--every", "300ms", "--master", "local[2]", "--progress", "json"]
        environment = {**os.environ, **KEPT, "TMPDIR": str(self.folder / "tmp")}
        began = time.monotonic()
        with (self.folder / "errors.txt").open("w") as errors:
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            try:
                if killed_after_s is None:
                    wait_for_end(process, f"a run of cron: {self.folder / 'errors.txt'}")
                else:
                    process.wait(killed_after_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if alone:
                    self._kill_with_tasks(process)
                else:
                    signal_all(process, signal.SIGKILL)
                process.wait(WALL_S)
        if alone:
            assert self.left() == [], "outlived the command that started them"
        return process.returncode, time.monotonic() - began

    def _kill_with_tasks(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL a command as soon as Spark has a Python process for tasks, unless it ends before."""
        while process.poll() is None:
            if any(is_daemon(each) for each in self._processes()):
                process.kill()
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)

    def differences(self) -> list[str]:
        """Compare every target with the records that were appended."""
        totals: dict[str, tuple[int, int]] = {}
        for word, n in self.words:
            rows, total = totals.get(word, (0, 0))
            totals[word] = rows + 1, total + n
        expected = sorted((word, *sums) for word, sums in totals.items())
        every = sorted(self.words)
        found = {
            "out": sorted(self._select("out", "SELECT word, rows, total FROM totals")),
            "tagged": sorted(self._select("tagged", "SELECT word, rows, total FROM totals")),
        }
        wrong = [f"{name} differs" for name, rows in found.items() if rows != expected]
        if sorted(self._select("said", "SELECT word, n FROM said")) != every:
            wrong.append("said: rows are missing or doubled")
        if log_rows(self.folder / "log") != [list(row) for row in every]:
            wrong.append("log: rows are missing or doubled")
        return wrong

    def _select(self, name: str, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as db:
            return db.execute(query).fetchall()

    def unnamed(self) -> list[str]:
        """Return the objects in the root that no retained manifest names."""
        root = self.folder / "root" / "words"
        objects = {
            str(path.relative_to(root)) for name in OBJECTS for path in (root / name).rglob("*") if path.is_file()
        }
        records = [json.loads(path.read_bytes())["body"] for path in sorted((root / "log").glob("*.json"))]
        expired = max((body["through"] for body in records if body["kind"] == "Expired"), default=0)
        kept = [b for b in records if b["kind"] == "CheckpointCompleted" and b["epoch"] > expired]
        named = {body["manifest"]["path"] for body in kept}
        text = "".join((root / path).read_text() for path in named)
        return sorted(path for path in objects if path not in named and path not in text)

    def folders(self) -> set[str]:
        """Return the names of the folders for temporary files that are Holdfast's."""
        return {path.name for path in (self.folder / "tmp").glob("holdfast-*")}

    def images(self) -> list[str]:
        """Return, for every image of state, of which key groups and operators it is."""
        kept = (self.folder / "tmp").glob("holdfast-*/*/*/*/images/*")
        return [path.name.rpartition("-")[0] for path in kept]

    def left(self) -> list[str]:
        """Return the command lines of the processes that have not ended by themselves; they are ended here."""
        end = time.monotonic() + ORPHANS_LIMIT_S
        while (found := self._processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return [_ended(each) for each in found]

    def _processes(self) -> list[psutil.Process]:
        """Return the processes that work for this job: all inherit its TMPDIR, though few have it in their command."""
        return [each for each in psutil.process_iter() if _works_in(each, str(self.folder / "tmp"))]


def _works_in(process: psutil.Process, folder: str) -> bool:
    try:
        return process.environ().get("TMPDIR") == folder
    except psutil.Error:  # it has ended, or is another user's
        return False


def _ended(process: psutil.Process) -> str:
    try:
        text = f"{process.pid}: {' '.join(process.cmdline())[-200:]}"
        process.kill()
    except psutil.Error:
        return f"{process.pid}: ended late"
    return text


def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("runs", [pytest.param(4, id="some"), pytest.param(50, id="many", marks=pytest.mark.slow)])
def test_a_job_of_cron_loses_doubles_and_leaves_nothing(tmp_path: Path, runs: int) -> None:
    cron, chance, killed, took = Cron(tmp_path), random.Random(7), 0, 20.0
    for number in range(runs):
        cron.append()
        kills = number % 3 == 1
        status, seconds = cron.run(chance.uniform(0.3, 1.0) * took if kills else None, alone=kills and killed % 2 == 0)
        if status < 0:
            killed += 1
            continue
        assert status == 0, (tmp_path / "errors.txt").read_text()
        assert cron.differences() == [], f"after run {number}"
        took = seconds
    assert killed >= runs // 4, "most of the kills came too late"
    if runs % 3 == 2:  # the last run was to be killed
        assert cron.run(None)[0] == 0
        assert cron.differences() == []
    assert cron.unnamed() == []
    assert cron.left() == []
    assert cron.folders() == {f"holdfast-{os.getuid()}"}, "Spark's log folders are removed"
    images = cron.images()
    assert images and len(images) == len(set(images)), "each kept once, for the next run"
    audited = holdfast("audit", str(tmp_path / "job.py"), "--json")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert "differs" not in audited.stdout
