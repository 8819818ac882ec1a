"""A job on a real Spark cluster of several JVMs, killed in every way: the output equals that of an oracle.

As in test_kills.py every kill must be seen to have fired. One cluster serves all tests of this module.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import JOB, TIMEOUT_S, differences, make_input
from standalone import (
    SPARK_SUBMIT,
    Standalone,
    lose_driver,
    lose_executor,
    lose_worker,
    pids,
    python_without_holdfast,
    running_on,
    standalone,
    without_daemon,
)

import holdfast

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROWS = 120_000
RATE = "20000"
PACKAGE = str(Path(holdfast.__file__).parent)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster whose daemons do not know where Holdfast is, as on machines of somebody else."""
    with standalone(tmp_path_factory.mktemp("cluster"), PYTHONPATH="") as cluster:
        yield cluster


class TestStandaloneCluster:
    def test_a_job_on_two_executors_loses_a_worker_an_executor_and_its_driver_and_no_record(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, ROWS)
        with running_on(cluster, tmp_path, RATE) as run:
            run.wait_until_running(ROWS // 10)
            assert len(cluster.executors()) == 2
            # Else the first worker that comes up on an executor waits for its Python daemon.
            run.wait_for(lambda _: not without_daemon(cluster), "a Python daemon in each executor")
            lose_worker(run)
            run.wait_until_running(ROWS // 6)
            lose_executor(run)
            before = run.wait_until_running(ROWS // 4)
            lose_driver(run)
            with running_on(cluster, tmp_path, RATE) as again:
                after = again.wait_until_running()
                assert after["generation"] > before["generation"] and after["epoch"] >= before["epoch"]
                assert not set(pids(before).values()) & set(pids(after).values())
                assert again.finish() == 0, again.errors()
        assert differences(tmp_path, frame) == []


class TestWithoutAnInstallation:
    def test_a_zip_given_to_spark_submit_is_all_that_driver_and_executors_need_of_holdfast(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, ROWS // 4)
        python = python_without_holdfast(tmp_path)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        alone = [str(python), "-c", "import holdfast"]
        without = subprocess.run(alone, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        assert "No module named 'holdfast'" in without.stderr
        # As the README has it.
        subprocess.run([sys.executable, "-m", "zipfile", "-c", "holdfast.zip", PACKAGE], cwd=tmp_path, check=True)
        command = [str(SPARK_SUBMIT), "--master", cluster.url, "--py-files", "holdfast.zip"]
        command += [str(JOB), "--progress", "plain"]
        environment |= {**cluster.environment, "PYSPARK_PYTHON": str(python)}
        environment |= {"COUNTING_FOLDER": str(tmp_path), "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-6_000:]
        assert differences(tmp_path, frame) == []
