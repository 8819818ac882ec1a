"""Python functions that end their worker or hold its interpreter are named; a slow function does not count as lost."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from running import IN_BOTH_MODES_SLOWLY, Run, running

from holdfast.runtime.cli.main import main
from holdfast.runtime.config.settings import CONTINUOUS

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("holding_job.py")
FLAGS = ("--parallelism", "2", "--max-records-per-second", "1000")
STEP = "the Python function of step 'map parse'"


def reported(run: Run, command: str) -> Any:
    """Return the JSON that a command reports about the job.

    It runs in this process: on a busy machine the start of another one may last longer than what it is to see.
    """
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main([command, "holding", "--json", "--root", str(run.folder / "root")]) == 0
    return json.loads(said.getvalue())


def numbers(folder: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(folder / "out.db")) as database:
        return sorted(n for (n,) in database.execute("SELECT n FROM items"))


class TestAFunctionThatHoldsTheInterpreter:
    @pytest.mark.usefixtures("mode")
    @IN_BOTH_MODES_SLOWLY
    def test_for_longer_than_the_silence_limit_is_named_and_not_restarted(self, tmp_path: Path) -> None:
        environment = {
            "HOLDING_HOW": "hold",
            "HOLDING_ONCE": "1",
            "HOLDING_S": "12",
            "HOLDFAST_SILENT_AFTER_MS": "2000",
        }
        with running(tmp_path, *FLAGS, job=JOB, **environment) as run:
            run.wait_until_running()
            named = False
            while run.process.poll() is None and not named:
                named = any(STEP in finding["what"] for finding in reported(run, "explain")["findings"])
            assert named
            assert run.finish() == 0, run.errors()
            assert run.lines[-1]["restarts"] == []
        assert numbers(tmp_path) == list(range(1_000))

    @IN_BOTH_MODES_SLOWLY
    def test_for_longer_than_the_hang_limit_is_replaced_and_named(self, tmp_path: Path, mode: str) -> None:
        environment = {"HOLDING_HOW": "hold", "HOLDING_ONCE": "1", "HOLDING_S": "40", "HOLDFAST_HUNG_AFTER_MS": "3000"}
        with running(tmp_path, *FLAGS, job=JOB, **environment) as run:
            assert run.finish() == 0, run.errors()
            if mode == CONTINUOUS:
                (restart,) = run.lines[-1]["restarts"]
                assert "held its interpreter for 3 s, while it ran " + STEP in restart["cause"]
            else:
                assert "one call lasted longer than hung_after_ms, while it ran " + STEP in run.errors()
                assert run.lines[-1]["restarts"] == [], "Spark's job runs again, and the generation goes on"
        assert numbers(tmp_path) == list(range(1_000))


class TestAFunctionThatEndsItsProcess:
    def test_is_named_by_a_warning_if_its_task_runs_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOLDFAST_MODE", "microbatch")
        with running(tmp_path, *FLAGS, job=JOB, HOLDING_HOW="exit", HOLDING_ONCE="1") as run:
            assert run.finish() == 0, run.errors()
            assert "the Python process of a task ended unexpectedly, while it ran " + STEP in run.errors()
        assert numbers(tmp_path) == list(range(1_000))

    def test_is_named_by_events(self, tmp_path: Path) -> None:
        with running(tmp_path, *FLAGS, job=JOB, HOLDING_HOW="exit", HOLDING_ONCE="1") as run:
            assert run.finish() == 0, run.errors()
            (restart,) = [event for event in reported(run, "events") if event["event"] == "restarted"]
            assert STEP in restart["cause"]
        assert numbers(tmp_path) == list(range(1_000))
