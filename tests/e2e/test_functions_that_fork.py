"""A function may fork: no child goes on as a second worker, and what is stored and delivered is as without it."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from running import running

from holdfast.runtime.cli.main import main
from holdfast.runtime.wire.processes import is_gone

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("forking_job.py")


def is_alive(pid: int) -> bool:
    try:
        return not is_gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder for the job; the process that its function leaves behind is ended."""
    yield tmp_path
    for path in tmp_path.glob("sleeps-*"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.name.removeprefix("sleeps-")), signal.SIGKILL)


def test_children_of_a_function_never_come_back_as_workers(folder: Path) -> None:
    with running(folder, "--parallelism", "1", job=JOB) as run:
        assert run.finish() == 0, run.errors()
        assert run.errors().count("a process that a function forked came back from the function, and was ended") == 3
        assert run.lines[-1]["restarts"] == []
    pids = [int(path.name.removeprefix("pids-")) for path in folder.glob("pids-*")]
    assert len(pids) == 4, "the worker, and a child of each of three records"
    assert [pid for pid in pids if is_alive(pid)] == []
    with contextlib.closing(sqlite3.connect(folder / "out.db")) as database:
        assert sorted(n for (n,) in database.execute("SELECT n FROM items")) == list(range(300))
    assert main(["checkpoints", "verify", "forking", "--root", str(folder / "root")]) == 0
