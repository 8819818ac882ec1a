"""A job on real Spark, killed in every way: each kill fires, and afterwards the output equals that of an oracle.

Each test checks that its kills fired: the process is gone, a new generation began, and the surviving worker
rolled back in place instead of restarting. In microbatch mode no generation ends: Spark's log tells of the lost tasks.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import WALL_S, wait
from running import (
    IN_BOTH_MODES_SLOWLY,
    Run,
    differences,
    executors_of,
    kill_task,
    make_input,
    pid_gone,
    running,
    spark_log,
)

from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH

pytestmark = pytest.mark.e2e

LOCAL = ("--master", "local[4]")
CLUSTER = ("--master", "local-cluster[2,2,1024]")
RATE = ("--max-records-per-second", "25000")
ROWS = 200_000


def worker_pids(progress: dict[str, Any]) -> dict[int, int]:
    """Return process ids by subtask."""
    return {worker["subtasks"][0]: worker["pid"] for worker in progress["workers"] if worker["subtasks"]}


def kill_worker(run: Run, subtask: int) -> dict[str, Any]:
    """SIGKILL one worker; return the progress once a new generation runs, having checked that the kill fired."""
    before = run.lines[-1]
    pid = worker_pids(before)[subtask]
    os.kill(pid, signal.SIGKILL)
    after = run.wait_for(
        lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a new generation"
    )
    assert pid_gone(pid)
    assert worker_pids(after)[subtask] != pid
    survivors = [worker for worker in after["workers"] if worker["subtasks"] != [subtask]]
    assert [worker["how"] for worker in survivors] == ["rolled back"]
    assert survivors[0]["pid"] == worker_pids(before)[1 - subtask]
    return after


class TestKilledWorkers:
    def test_a_killed_worker_is_replaced_and_its_peer_rolls_back_in_place(self, tmp_path: Path) -> None:
        frame = make_input(tmp_path, ROWS)
        with running(tmp_path, *LOCAL, *RATE) as run:
            run.wait_until_running(ROWS // 4)
            after = kill_worker(run, 0)
            assert [worker["how"] for worker in after["workers"] if worker["subtasks"] == [0]] == ["restored"]
            assert run.finish() == 0, run.errors()
        assert differences(tmp_path, frame) == []

    @pytest.mark.parametrize(
        ("mode", "wanted"),
        [
            (CONTINUOUS, 5),
            pytest.param(CONTINUOUS, 20, marks=pytest.mark.slow),
            pytest.param(MICROBATCH, 20, marks=pytest.mark.slow),
        ],
        indirect=["mode"],
    )
    def test_random_kills_in_one_run_lose_and_duplicate_nothing(self, tmp_path: Path, mode: str, wanted: int) -> None:
        # More than a job can read before the last kill, even on a slow machine; it reads the rest without a limit.
        frame = make_input(tmp_path, 12 * ROWS)
        rng = random.Random(20)
        kills = 0
        rate = RATE if mode == CONTINUOUS else ("--max-records-per-second", "6000")  # a kill takes two epochs
        with running(tmp_path, *rate, HOLDFAST_RESTART_FAILURES_MAX="100") as run:
            progress = run.wait_until_running(10_000)
            while kills < wanted:
                run.wait_until_running(progress["records_in"] + rng.randint(0, 8_000))
                progress = kill_worker(run, rng.randrange(2)) if mode == CONTINUOUS else kill_task(run)
                kills += 1
            lost = spark_log(run).count("Python worker exited")
            os.killpg(run.process.pid, signal.SIGTERM)  # as `timeout` and service managers do; the JVM must not end
            assert run.finish() == 0, run.errors()
            assert run.lines[-1]["state"] == "stopped"
            if mode == CONTINUOUS:
                assert len(run.lines[-1]["restarts"]) >= kills
            else:  # others of the killed processes waited for a task
                assert lost > kills // 4
        with running(tmp_path) as rest:
            assert rest.finish() == 0, rest.errors()
            assert rest.lines[-1]["state"] == "finished"
        assert differences(tmp_path, frame) == []


@pytest.mark.slow  # test_cluster.py kills executors, with a driver, in each test run
class TestKilledExecutor:
    def test_tasks_of_a_killed_executor_run_again_on_another_executor(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOLDFAST_MODE", "microbatch")
        frame = make_input(tmp_path, ROWS)
        with running(tmp_path, *CLUSTER, *RATE) as run:
            before = run.wait_until_running(ROWS // 4)
            executor = executors_of(run)[0]
            executor.kill()
            run.wait_for(lambda p: p["epoch"] >= before["epoch"] + 2, "epochs after the kill")
            assert pid_gone(executor.pid)
            assert "Lost executor" in spark_log(run)
            assert run.finish() == 0, run.errors()
        assert differences(tmp_path, frame) == []

    def test_workers_of_a_killed_executor_resume_on_another_executor(self, tmp_path: Path) -> None:
        frame = make_input(tmp_path, ROWS)
        with running(tmp_path, *CLUSTER, *RATE) as run:
            before = run.wait_until_running(ROWS // 4)
            pid = worker_pids(before)[0]
            daemon = psutil.Process(pid).parent()
            assert daemon is not None
            executor = daemon.parent()
            assert executor is not None and "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
            executor.kill()
            run.wait_for(lambda p: p["state"] == "running" and p["generation"] > before["generation"], "recovery")
            assert pid_gone(executor.pid) and pid_gone(pid)
            assert run.finish() == 0, run.errors()
        assert differences(tmp_path, frame) == []


class TestKilledDriver:
    @IN_BOTH_MODES_SLOWLY
    @pytest.mark.usefixtures("mode")
    def test_the_same_command_resumes_the_job_after_its_driver_was_killed(self, tmp_path: Path) -> None:
        frame = make_input(tmp_path, ROWS)
        with running(tmp_path, *RATE) as run:
            before = run.wait_until_running(ROWS // 4)
            os.kill(run.process.pid, signal.SIGKILL)
            assert run.process.wait(WALL_S) == -signal.SIGKILL
            with running(tmp_path, *RATE) as again:
                after = again.wait_until_running()
                assert after["generation"] > before["generation"]
                assert after["epoch"] >= before["epoch"]
                assert again.finish() == 0, again.errors()
        assert differences(tmp_path, frame) == []


class TestStoppedProcesses:
    def test_a_worker_that_was_silent_too_long_is_fenced_when_it_resumes(self, tmp_path: Path) -> None:
        frame = make_input(tmp_path, 2 * ROWS)
        with running(tmp_path, *RATE, HOLDFAST_SILENT_AFTER_MS="2000") as run:
            before = run.wait_until_running(ROWS // 4)
            pid = worker_pids(before)[0]
            os.kill(pid, signal.SIGSTOP)
            after = run.wait_for(
                lambda p: p["state"] == "running" and p["generation"] > before["generation"], "a take-over"
            )
            assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
            assert pid not in worker_pids(after).values()
            assert "silent" in after["restarts"][-1]["cause"]
            os.kill(pid, signal.SIGCONT)
            wait(lambda: pid_gone(pid) or _idle_python(pid), "the fenced worker to leave")
            assert run.finish() == 0, run.errors()
        assert differences(tmp_path, frame) == []

    @IN_BOTH_MODES_SLOWLY
    @pytest.mark.usefixtures("mode")
    def test_a_driver_that_was_replaced_while_stopped_is_fenced_when_it_resumes(self, tmp_path: Path) -> None:
        frame = make_input(tmp_path, 2 * ROWS)
        with running(tmp_path, *RATE) as first:
            before = first.wait_until_running(ROWS // 4)
            first.kill_group(signal.SIGSTOP)
            with running(tmp_path, *RATE) as second:
                after = second.wait_until_running()
                assert after["generation"] > before["generation"]
                first.kill_group(signal.SIGCONT)
                assert first.finish() == 6, first.errors()
                assert "took over" in first.errors()
                assert second.finish() == 0, second.errors()
        assert differences(tmp_path, frame) == []

    @IN_BOTH_MODES_SLOWLY
    @pytest.mark.usefixtures("mode")
    def test_a_second_run_of_a_running_job_is_refused(self, tmp_path: Path) -> None:
        make_input(tmp_path, 2 * ROWS)
        with running(tmp_path, *RATE) as first:
            before = first.wait_until_running()
            with running(tmp_path, *RATE) as second:
                assert second.finish() == 6
                assert "is running on" in second.errors()
            assert first.lines[-1]["generation"] == before["generation"]


def _idle_python(pid: int) -> bool:
    """Return whether a worker process left its loop, returned to Spark's daemon and waits there for a task."""
    try:
        return not [t for t in psutil.Process(pid).net_connections("tcp") if t.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:
        return True
