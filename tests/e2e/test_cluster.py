"""A job on a real Spark cluster of several JVMs, killed in every way: the output equals that of an oracle.

As in test_kills.py, each test checks that its kills fired. One cluster serves all tests of this module.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from patience import run
from running import IN_BOTH_MODES_SLOWLY, JOB, differences, kill_task, make_input
from standalone import (
    PACKAGE,
    SPARK_SUBMIT,
    Standalone,
    lose_driver,
    lose_executor,
    lose_tasks_executor,
    lose_worker,
    make_environment,
    pids,
    python_without_holdfast,
    running_on,
    standalone,
    without_daemon,
)

from holdfast.runtime.config.settings import CONTINUOUS, MODES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROWS = 120_000
RATE, SLOWER = "20000", "6000"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster whose daemons cannot find Holdfast, as on machines where it is not installed."""
    with standalone(tmp_path_factory.mktemp("cluster"), PYTHONPATH="") as cluster:
        yield cluster


class TestStandaloneCluster:
    def test_a_job_that_loses_a_worker_an_executor_and_its_driver_loses_no_record(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, ROWS)
        with running_on(cluster, tmp_path, RATE) as run:
            run.wait_until_running(ROWS // 10)
            assert len(cluster.executors()) == 2
            # Otherwise the first worker on an executor would wait for its Python daemon.
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

    def test_a_job_that_loses_a_task_an_executor_and_its_driver_loses_no_record(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, 3 * ROWS)  # more than is read before the last kill
        with running_on(cluster, tmp_path, SLOWER, HOLDFAST_MODE="microbatch") as run:
            run.wait_until_running(ROWS // 10)
            kill_task(run, cluster.tasks)
            run.wait_until_running(ROWS // 6)
            lose_tasks_executor(cluster, run)
            before = run.wait_until_running(ROWS // 4)
            lose_driver(run)
            with running_on(cluster, tmp_path, "1000000", HOLDFAST_MODE="microbatch") as again:
                after = again.wait_until_running()
                assert after["generation"] > before["generation"] and after["epoch"] >= before["epoch"]
                assert again.finish() == 0, again.errors()
        assert differences(tmp_path, frame) == []


class TestWithoutAnInstallation:
    @pytest.mark.usefixtures("mode")
    @IN_BOTH_MODES_SLOWLY
    def test_a_zip_given_to_spark_submit_supplies_holdfast_to_driver_and_executors(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        frame = make_input(tmp_path, ROWS // 4)
        python = python_without_holdfast(tmp_path)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        alone = [str(python), "-c", "import holdfast"]
        without = subprocess.run(alone, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        assert "No module named 'holdfast'" in without.stderr
        # As docs/deploy/spark.md has it.
        subprocess.run([sys.executable, "-m", "zipfile", "-c", "holdfast.zip", str(PACKAGE)], cwd=tmp_path, check=True)
        submit(cluster, tmp_path, "--py-files", "holdfast.zip", PYSPARK_PYTHON=str(python))
        assert differences(tmp_path, frame) == []

    @pytest.mark.slow  # the zip above shows that executors get what spark-submit is given
    @pytest.mark.parametrize("mode", MODES, indirect=True)
    def test_a_packed_environment_given_to_spark_submit_is_used_by_executors(
        self, cluster: Standalone, tmp_path: Path, mode: str
    ) -> None:
        frame = make_input(tmp_path, ROWS // 4)
        make_environment(tmp_path / "env")
        subprocess.run(["tar", "-czf", "env.tar.gz", "-C", "env", "bin", "lib"], cwd=tmp_path, check=True)
        # As docs/deploy/spark.md has it.
        flags = ["--archives", "env.tar.gz#env", "--conf", "spark.pyspark.python=./env/bin/python"]
        flags += ["--conf", f"spark.pyspark.driver.python={tmp_path}/env/bin/python"]
        submit(cluster, tmp_path, *flags)
        assert differences(tmp_path, frame) == []
        module = "host" if mode == CONTINUOUS else "batch_jobs"
        here = list(cluster.folder.glob("work-*/app-*/*/env/lib/holdfast/runtime/spark/__pycache__/"))
        compiled = [path for folder in here for path in folder.glob(f"{module}.*")]
        assert compiled, "no executor has imported Holdfast from the environment that it was sent"


class TestSecrets:
    def test_secrets_of_a_run_are_in_no_file_command_line_or_environment(
        self, cluster: Standalone, tmp_path: Path
    ) -> None:
        """The run's own driver writes its secrets to a file outside the folders that are searched."""
        folder, reported = tmp_path / "run", tmp_path / "secrets.txt"
        folder.mkdir()
        make_input(folder, ROWS)
        users = "0b7e1c9d5a3f48e2"
        environment = {"SECRETS_TOLD_TO": str(reported), "AWS_SECRET_ACCESS_KEY": users}
        with running_on(cluster, folder, RATE, job=Path(__file__).with_name("telling_job.py"), **environment) as run:
            run.wait_until_running(ROWS // 10)
            lose_worker(run)
            run.wait_until_running(ROWS // 6)
            secrets = [bytes.fromhex(line) for line in reported.read_text().split()]
            assert len(secrets) == 2, "a secret and a private key"
            driver = psutil.Process(run.process.pid)
            processes = [driver, *driver.children(recursive=True), *cluster.processes()]
            assert len(processes) > 8
            of_processes = b"".join(read_of(each, "cmdline") + read_of(each, "environ") for each in processes)
            lines = b"".join(read_of(each, "cmdline") for each in processes)
            run.process.send_signal(signal.SIGTERM)
            assert run.finish() == 0, run.errors()
        paths = [path for root in (folder, cluster.folder) for path in root.rglob("*") if path.is_file()]
        files = {path: path.read_bytes() for path in paths}
        assert any(b"GenerationStarted" in data for data in files.values()), "the job log is among them"
        for secret in secrets:
            for form in forms(secret):
                assert form not in of_processes
                assert [path for path, data in files.items() if form in data] == []
        # Values that users pass in an environment variable stay there, where the search found them.
        assert users.encode() in of_processes
        assert users.encode() not in lines
        assert [path for path, data in files.items() if users.encode() in data] == []


def read_of(process: psutil.Process, what: str) -> bytes:
    """Return what the system shows users about a process; empty if the process has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/{what}").read_bytes()
    return b""


def forms(secret: bytes) -> list[bytes]:
    """Return the forms in which a secret might be written: plain, hexadecimal, base64; for PEM, its first lines."""
    if secret.startswith(b"-----"):
        return secret.splitlines()[1:3]
    return [secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"=")]


def submit(cluster: Standalone, folder: Path, *flags: str, **environment: str) -> None:
    """Run the job by spark-submit, without this process's settings for finding Holdfast."""
    command = [str(SPARK_SUBMIT), "--master", cluster.url, *flags, str(JOB), "--progress", "plain"]
    ours = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HOLDFAST_LOCAL")}
    environment = ours | cluster.environment | environment
    environment |= {"COUNTING_FOLDER": str(folder), "TMPDIR": str(folder)}
    status, out, errors = run(command, folder, "a run of spark-submit", environment)
    assert status == 0, out[-3_000:] + errors[-6_000:]
