"""What executors are told before the first task: where to find Holdfast."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark import SparkContext

from holdfast.runtime.spark.host import WorkerTask
from holdfast.runtime.spark.launch import SparkHost, executor_path


class TestTheSearchPathOfExecutors:
    def test_names_what_py_files_brings_as_it_lies_in_their_working_directory(self) -> None:
        given = "file:/home/me/holdfast.zip,hdfs://host/libs/more.egg,/home/me/alone.py"
        assert executor_path(given) == "holdfast.zip:more.egg"

    def test_is_the_drivers_own_without_py_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "/srv/code::/srv/more")
        assert executor_path("") == "/srv/code:/srv/more"

    def test_leaves_out_wheels_which_spark_does_not_put_on_the_path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", "/srv/code")
        assert executor_path("/home/me/holdfast.whl") == "/srv/code"


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

    def test_neither_stops_the_driver_nor_keeps_it_waiting_where_spark_does_not_answer(self) -> None:
        cluster = Cluster()
        self.host(cluster).warm_up(1)
        cluster.may_answer.set()
        self.wait()
        assert cluster.asked_by == ["warm-up"]

    def test_is_one_at_a_time(self) -> None:
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
