"""Standbys on real Spark: they take over in place, and their own loss changes nothing; output equals an oracle's."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from patience import wait
from running import Run, differences, executors_of, make_input, pid_gone, running
from test_kills import RATE, ROWS, worker_pids

pytestmark = pytest.mark.e2e

STANDBY = ("--standbys", "1")
KINDS = ("worker", "standby", "executor")


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "root" / "counting" / "live.json").read_text())
    return found


def complete_standby(run: Run, folder: Path, after: int | None = None) -> int:
    """Wait for a standby with complete copies, other than this process; return its process."""

    complete = list[int]()

    def found(_: dict[str, Any]) -> bool:
        copies = [w for w in status(folder)["workers"] if w["role"] == "standby" and w["pid"] != after]
        complete.extend(w["pid"] for w in copies if w["lag_epochs"] == 0)
        return bool(complete)

    run.wait_for(found, "a standby with complete copies")
    return complete[0]


def killed(run: Run, folder: Path, rng: random.Random) -> tuple[dict[str, Any], str, int] | None:
    """SIGKILL a random process; return the status before, its kind and id. None: it had already ended by itself."""
    before = status(folder)
    by_role = {role: [w["pid"] for w in before["workers"] if w["role"] == role] for role in KINDS}
    kind = rng.choice([kind for kind in KINDS if by_role[kind] or kind == "executor"])
    victims = [each.pid for each in executors_of(run)] if kind == "executor" else by_role[kind]
    pid = rng.choice(victims)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return before, kind, pid


class TestStandbys:
    def test_a_killed_worker_is_taken_over_by_the_standby(self, tmp_path: Path) -> None:
        frame = make_input(tmp_path, 2 * ROWS)
        with running(tmp_path, *RATE, *STANDBY) as run:
            run.wait_until_running(ROWS // 10)
            for subtask in (0, 1, 0):
                standby, before = complete_standby(run, tmp_path), run.lines[-1]
                killed = worker_pids(before)[subtask]
                os.kill(killed, signal.SIGKILL)
                after = run.wait_for(
                    lambda p, n=before["generation"]: p["state"] == "running" and p["generation"] > n,  # type: ignore[misc]
                    "a new generation",
                )
                assert pid_gone(killed) and worker_pids(after)[subtask] == standby
                how = {worker["subtasks"][0]: worker["how"] for worker in after["workers"] if worker["subtasks"]}
                assert how == {subtask: "promoted", 1 - subtask: "rolled back"}
                assert complete_standby(run, tmp_path, after=standby) not in (standby, killed)
            assert run.finish() == 0, run.errors()
        assert differences(tmp_path, frame) == []

    def test_a_killed_standby_is_replaced_and_no_generation_ends(self, tmp_path: Path) -> None:
        frame = make_input(tmp_path, ROWS)
        with running(tmp_path, *RATE, *STANDBY, HOLDFAST_RESTART_FAILURES_MAX="0") as run:
            run.wait_until_running(ROWS // 10)
            standby = complete_standby(run, tmp_path)
            os.kill(standby, signal.SIGKILL)
            assert complete_standby(run, tmp_path, after=standby) != standby
            assert run.lines[-1]["generation"] == 1
            assert run.finish() == 0, run.errors()
        assert pid_gone(standby)
        assert differences(tmp_path, frame) == []

    def test_more_standbys_than_slots_are_reported_and_the_run_goes_on(self, tmp_path: Path) -> None:
        make_input(tmp_path, ROWS // 10)
        with running(tmp_path, "--master", "local[3]", "--standbys", "4") as run:
            assert run.finish() == 0, run.errors()
            assert "4 standbys were requested, and Spark has free slots for 1" in run.errors()

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_twenty_random_kills_of_workers_standbys_and_executors_lose_and_duplicate_nothing(
        self, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, 12 * ROWS)
        rng, kills = random.Random(54), dict.fromkeys(KINDS, 0)
        # So slowly that input is left after the last kill, on a busy machine too; the rest is read without a limit.
        flags = ("--master", "local-cluster[3,2,1024]", "--max-records-per-second", "6000", *STANDBY)
        with running(tmp_path, *flags, HOLDFAST_RESTART_FAILURES_MAX="100") as run:
            run.wait_until_running(ROWS // 10)
            for number in range(20):
                if number % 2:
                    complete_standby(run, tmp_path)
                before, kind, pid = wait(lambda: killed(run, tmp_path, rng), "a process to kill")
                kills[kind] += 1
                epoch = before["checkpoint"]["epoch"]
                run.wait_for(
                    lambda p, n=epoch, pid=pid: p["state"] == "running" and p["epoch"] > n + 1 and pid_gone(pid),  # type: ignore[misc]
                    "epochs after a kill",
                )
            recovered = sum(restart["recovery_ms"] is not None for restart in status(tmp_path)["restarts"])
            run.process.send_signal(signal.SIGTERM)
            assert run.finish() == 0, run.errors()
        assert all(kills.values()) and recovered >= kills["worker"]
        with running(tmp_path) as rest:
            assert rest.finish() == 0, rest.errors()
        assert differences(tmp_path, frame) == []
