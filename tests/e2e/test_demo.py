"""The demo, as a user runs it: a worker dies under SIGKILL, and every row of every output is right."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import patience
import pytest

RATE = 60_000


@pytest.mark.e2e
@pytest.mark.slow
def test_the_demo_kills_a_worker_and_verifies_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "demo", "--json", "--folder", str(tmp_path / "demo")]
    command += ["--max-records-per-second", str(RATE)]
    status, out, errors = patience.run(command, tmp_path, "the demo", dict(os.environ))
    assert status == 0, out + errors
    result = json.loads(out)
    assert result["verified"] and result["problems"] == []
    assert result["killed"]["gone"] and result["killed"]["recovered"]
    assert result["generation"] > result["killed"]["generation"]
    rows = result["rows_out"]
    assert (result["records_in"], rows["tails"], rows["routes"]) == (664_839, 4_044, 224)
    assert rows["hours"] == rows["hours-log"] > 200_000
    assert 0 < result["late"] < 10_000
    assert result["unknown_airports"] == 7_560


@pytest.mark.e2e
@pytest.mark.slow
def test_the_demo_kills_a_task_of_a_microbatch_and_verifies_every_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "demo", "--json", "--mode", "microbatch"]
    command += ["--folder", str(tmp_path / "demo"), "--max-records-per-second", str(RATE)]
    status, out, errors = patience.run(command, tmp_path, "the demo", dict(os.environ))
    assert status == 0, out + errors
    result = json.loads(out)
    assert result["verified"] and result["problems"] == []
    assert result["killed"]["what"] == "a task" and result["killed"]["gone"] and result["killed"]["recovered"]
    assert (result["records_in"], result["rows_out"]["tails"]) == (664_839, 4_044)
