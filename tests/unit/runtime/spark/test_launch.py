"""Settings for executors before the first task: where to find Holdfast."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import SparkConf, SparkContext

from holdfast.errors import Unavailable
from holdfast.runtime.processes.host import WorkerTask
from holdfast.runtime.spark import launch
from holdfast.runtime.spark.launch import SparkHost, check_java, elsewhere, executor_path


class TestExecutorSearchPath:
    def test_contains_files_of_py_files_by_their_name_in_the_working_directory(self) -> None:
        given = "file:/home/me/holdfast.zip,hdfs://host/libs/more.egg,/home/me/alone.py"
        assert executor_path(given) == "holdfast.zip:more.egg"

    def test_is_that_of_the_driver_without_py_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "/srv/code::/srv/more")
        assert executor_path("") == "/srv/code:/srv/more"

    def test_leaves_out_wheels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "/srv/code")
        assert executor_path("/home/me/holdfast.whl") == "/srv/code"


class TestHostsElsewhere:
    """Where a worker should start if it should not start in some places, the worst of them first."""

    HOSTS = ("h1", "h2.net", "10.0.0.3")

    def resolve(self, host: str) -> str:
        known = {"h1": "10.0.0.1", "h2.net": "10.0.0.2", "10.0.0.3": "10.0.0.3"}
        if host not in known:
            raise socket.gaierror(f"{host} is unknown")
        return known[host]

    def left(self, *avoid: tuple[str, str]) -> list[str]:
        return elsewhere(self.HOSTS, avoid, self.resolve)

    def test_are_those_with_neither_the_name_nor_the_address_of_such_a_place(self) -> None:
        assert self.left(("h1", "192.168.0.1")) == ["h2.net", "10.0.0.3"]
        assert self.left(("h2", "10.0.0.2"), ("a pod", "10.0.0.3")) == ["h1"]

    def test_are_the_lesser_evil_where_all_are_such_places(self) -> None:
        assert self.left(("h1", "10.0.0.1"), ("h2", "10.0.0.2"), ("h3", "10.0.0.3")) == ["10.0.0.3"]

    def test_are_none_without_a_choice(self) -> None:
        assert self.left(("h9", "10.0.0.9")) == []
        assert elsewhere(["h1"], [("h1", "10.0.0.1")], self.resolve) == []

    def test_include_a_host_whose_name_is_unknown_here(self) -> None:
        assert elsewhere(["h7", "h1"], [("h1", "10.0.0.1")], self.resolve) == ["h7"]


class Cluster:
    """What a warm-up asks a Spark context for; it answers another thread when it may."""

    master = "spark://here:7077"

    def __init__(self) -> None:
        self.may_answer, self.asked_by = threading.Event(), list[str]()

    @property
    def defaultParallelism(self) -> int:
        self.asked_by.append(threading.current_thread().name)
        if threading.current_thread() is not threading.main_thread():
            self.may_answer.wait()
        raise ConnectionError("the context was stopped")


class TestWarmUp:
    def host(self, cluster: Cluster) -> SparkHost:
        task = SimpleNamespace(plan=SimpleNamespace(app="hot"))
        return SparkHost(cast(SparkContext, cluster), cast(WorkerTask, task), lambda _number, _error: None)

    def wait(self) -> None:
        for thread in threading.enumerate():
            if thread.name == "warm-up":
                thread.join()

    def test_does_not_block_the_driver_if_spark_does_not_answer(self) -> None:
        cluster = Cluster()
        self.host(cluster).warm_up(1)
        cluster.may_answer.set()
        self.wait()
        assert cluster.asked_by == ["warm-up"]

    def test_runs_only_once_at_a_time(self) -> None:
        cluster = Cluster()
        host = self.host(cluster)
        host.warm_up(1)
        host.warm_up(1)
        cluster.may_answer.set()
        self.wait()
        assert cluster.asked_by == ["warm-up"]
        host.warm_up(1)
        self.wait()
        assert cluster.asked_by == ["warm-up", "warm-up"]


class NoJvm(SparkConf):
    """A configuration that needs no JVM."""

    def __init__(self) -> None:
        super().__init__(loadDefaults=False)


class TestContext:
    @pytest.fixture(autouse=True)
    def no_jvm(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SparkContext, "_active_spark_context", None)
        monkeypatch.setattr(launch, "start_jvm", lambda: None)
        monkeypatch.setattr(launch, "SparkConf", NoJvm)

    def test_is_created_completely_before_an_interrupt_is_raised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Half created, it would live in the JVM alone, and every later run of the process would be refused."""
        waiting, created = threading.Event(), threading.Event()

        def create(conf: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            waiting.wait(0.2)  # the main thread handles the signal meanwhile
            created.set()

        monkeypatch.setattr(SparkContext, "getOrCreate", create)
        with pytest.raises(KeyboardInterrupt):
            launch.start_context("hot", "local[2]", 2)
        assert created.is_set()

    @pytest.mark.parametrize(
        ("cause", "advice"),
        [
            ("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.", "install Java 17"),
            (
                "calling None.org.apache.spark.api.java.JavaSparkContext: memory must be at least",
                "see the mess",
            ),
        ],
    )
    def test_a_failed_context_is_blamed_on_java_only_if_no_jvm_started(
        self, cause: str, advice: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(conf: Any) -> None:
            raise RuntimeError(cause)

        monkeypatch.setattr(SparkContext, "getOrCreate", fail)
        with pytest.raises(Unavailable, match="Spark did not start") as refused:
            launch.start_context("hot", "local[2]", 2)
        assert refused.value.next_step.startswith(advice)


class TestCauses:
    def test_the_cause_of_a_lost_executor_is_the_reason_reported_by_spark(self) -> None:
        report = (
            "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, "
            "most recent failure: Lost task 0.0 in stage 4.0 (TID 6) (h3 executor 1): ExecutorLostFailure (executor 1 "
            "exited caused by one of the running tasks) Reason: Remote RPC client disassociated.\nDriver stacktrace:"
        )
        found = launch.first_line(RuntimeError(report))
        assert found == "its executor was lost: Remote RPC client disassociated."

    def test_the_cause_of_a_worker_error_is_the_last_line_of_its_traceback(self) -> None:
        raised = (
            "Traceback (most recent call last):\n"
            '  File "/job/state_types.py", line 66, in state_type\n'
            "    decode = msgspec.msgpack.Decoder(declared).decode\n"
            "             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
            '  File "<string>", line 1, in <module>\n'
            "NameError: name 'datetime' is not defined\n"
        )
        report = (
            "An error occurred while calling o45.collect.\n"
            ": org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python "
            f"worker: {raised} SQLSTATE: 38000\n"
            "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(Runner.scala:1097)"
        )
        assert launch.first_line(RuntimeError(report)) == "NameError: name 'datetime' is not defined"
        cut = RuntimeError(report[: report.index("NameError")] + "    a()\n" * 10_000)
        assert "PythonException" in launch.first_line(cut)  # and soon: a long traceback that was cut off


class TestJava:
    def test_missing_java_is_detected_before_spark_starts_and_local_mode_is_suggested(self, tmp_path: Path) -> None:
        for environment in ({"JAVA_HOME": str(tmp_path)}, {"PATH": str(tmp_path)}):
            with pytest.raises(Unavailable, match="Spark needs Java") as raised:
                check_java(environment)
            assert "--local" in raised.value.next_step

    def test_is_found_in_its_home_or_on_the_path_and_not_needed_below_spark_submit(self, tmp_path: Path) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/java").write_text("#!/bin/sh\n")
        (tmp_path / "bin/java").chmod(0o755)
        check_java({"JAVA_HOME": str(tmp_path)})
        check_java({"PATH": str(tmp_path / "bin")})
        check_java({"PYSPARK_GATEWAY_PORT": "1", "PATH": ""})
