"""State is read from a job that runs on Spark, while it expires the checkpoints that are read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from running import IN_BOTH_MODES_SLOWLY, make_input, running

import holdfast as hf

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
ROWS = 400_000
"""More than the job reads at its rate before the last answer, even on a slow machine; then it reads without a limit."""
RATE = ("--max-records-per-second", "2000")
SHORT: dict[str, Any] = {"HOLDFAST_RETAINED_CHECKPOINTS": "1", "HOLDFAST_RETAINED_FOR_MS": "0"}
READS = 4


def holdfast(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", *arguments, "--json", "--root", str(folder / "root")]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


@IN_BOTH_MODES_SLOWLY
@pytest.mark.usefixtures("mode")
class TestStateOfARunningJob:
    def test_every_read_covers_the_records_up_to_the_offsets_of_its_epoch(self, tmp_path: Path) -> None:
        frame = make_input(tmp_path, ROWS)
        answers: dict[int, tuple[int, int]] = {}
        epochs = set()
        with running(tmp_path, *RATE, **SHORT) as run:
            run.wait_until_running(1_000)
            for number in range(READS):
                # A savepoint keeps the offsets of its epoch until they are compared; the other reads take the newest.
                name = f"s{number}"
                holdfast(tmp_path, "savepoint", "counting", name)
                named = holdfast(tmp_path, "state", "scan", "counting", "users", "--epoch", name)
                shown = holdfast(tmp_path, "checkpoints", "show", "counting", name)
                answers[named["epoch"]] = (
                    sum(row["n"] for row in named["rows"]),
                    sum(shown["offsets"]["visits"].values()),
                )
                newest = holdfast(tmp_path, "state", "scan", "counting", "users")
                assert newest["epoch"] >= named["epoch"]
                epochs.add(newest["epoch"])
            run.process.send_signal(signal.SIGTERM)
            assert run.finish() == 0, run.errors()
        assert len(answers) == READS and len(epochs) > 1
        assert all(found == read > 0 for found, read in answers.values())
        with running(tmp_path) as rest:
            assert rest.finish() == 0, rest.errors()
        last = hf.state("counting", "users", root=str(tmp_path / "root")).sort("user")
        wanted = frame.group_by("user").agg(n=pl.len().cast(pl.Int64), total=pl.col("amount").sum())
        assert last.select("user", "n", "total").equals(wanted.sort("user"))
