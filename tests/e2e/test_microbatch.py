"""A job changes between microbatches and resident workers while it reads, and is killed in both.

At each change the last checkpoint names output that no target has; the next run, in the other mode and with other
subtasks, delivers it. Every row of every target then equals that of Polars over the whole input.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from patience import run as run_command
from running import kill_task, running
from test_rescale import JOB, differences, end_with_pending_output, make_input, newest, start

ROWS = 100_000

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


TEN = [
    *(("microbatch", 2), ("continuous", 3), ("microbatch", 1), ("continuous", 2), ("microbatch", 3)),
    *(("continuous", 1), ("microbatch", 2), ("continuous", 4), ("microbatch", 4), ("continuous", 2)),
]
"""Modes and parallelisms of a run that changes both ten times."""


def flags(mode: str, parallelism: int, rate: int) -> tuple[str, ...]:
    return ("--parallelism", str(parallelism), "--mode", mode, "--max-records-per-second", str(rate))


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        pytest.param([("microbatch", 2), ("continuous", 3)], ROWS, id="two"),
        pytest.param(TEN, 4 * ROWS, id="ten", marks=[pytest.mark.slow, pytest.mark.timeout(3_600)]),
    ],
)
def test_output_is_exact_after_changes_of_mode_and_parallelism_with_kills_and_pending_output(
    tmp_path: Path, changes: list[tuple[str, int]], rows: int
) -> None:
    frame = make_input(tmp_path, rows)
    for mode, parallelism in changes:
        with running(tmp_path, *flags(mode, parallelism, 1_500), job=JOB) as run:
            start(run, parallelism)
            if mode == "microbatch":
                kill_task(run)
                assert run.lines[-1]["records_in"] < rows
            end_with_pending_output(run, tmp_path, rows)
        assert newest(tmp_path).parallelism == parallelism
    with running(tmp_path, *flags("microbatch", 1, 200_000), "--every", "1s", job=JOB) as run:
        assert run.finish() == 0, run.errors()
        assert run.lines[-1]["state"] == "finished"
    assert newest(tmp_path).parallelism == 1
    assert differences(tmp_path, frame) == []
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "audit", str(JOB), "--json"]
    environment = {**os.environ, "COUNTING_FOLDER": str(tmp_path)}
    status, out, errors = run_command(command, tmp_path, "an audit", environment)
    assert status == 0, out + errors
