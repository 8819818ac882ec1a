"""An unreachable Spark master is reported within seconds, before Spark is started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext

from holdfast.errors import ConfigError, Unavailable
from holdfast.runtime.cli.start.doctor_cluster import cluster
from holdfast.runtime.spark import launch, reach


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port that takes none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class TestAddresses:
    @pytest.mark.parametrize(
        ("master", "found"),
        [
            ("spark://host:7077", [("host", 7077)]),
            ("spark://one:7077,two:7078", [("one", 7077), ("two", 7078)]),
            ("spark://[::1]:7077", [("::1", 7077)]),
            ("k8s://https://api:6443", [("api", 6443)]),
            ("k8s://api", [("api", 443)]),
            ("k8s://http://api/path", [("api", 80)]),
            ("yarn", None),
            ("local[2]", None),
            ("local-cluster[2,1,1024]", None),
        ],
    )
    def test_are_those_of_the_url(self, master: str, found: list[tuple[str, int]] | None) -> None:
        assert reach.addresses(master) == found

    @pytest.mark.parametrize("master", ["spark://", "spark://host", "spark://host:port", "spark://a:1,b", "spark://:1"])
    def test_master_urls_without_host_and_port_are_refused(self, master: str) -> None:
        with pytest.raises(ConfigError, match="does not name the host and port"):
            reach.check(master)


class TestAMaster:
    def test_a_master_that_accepts_connections_is_reachable(self, listening: int) -> None:
        reach.check(f"spark://127.0.0.1:{listening}")

    def test_is_reachable_if_one_of_several_addresses_is(self, listening: int, closed: int) -> None:
        reach.check(f"spark://127.0.0.1:{closed},127.0.0.1:{listening}")

    def test_a_master_that_refuses_connections_is_unavailable_before_spark_starts(
        self, closed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class NoJvm(SparkConf):
            def __init__(self) -> None:
                super().__init__(loadDefaults=False)

        def start(conf: Any) -> Any:
            raise AssertionError("Spark was started")

        monkeypatch.setattr(SparkContext, "_active_spark_context", None)
        monkeypatch.setattr(launch, "start_jvm", lambda: None)
        monkeypatch.setattr(SparkContext, "getOrCreate", start)
        monkeypatch.setattr(launch, "SparkConf", NoJvm)
        with pytest.raises(Unavailable, match=f"127.0.0.1:{closed}: Connection refused"):
            launch.start_context("hot", f"spark://127.0.0.1:{closed}", 2)

    def test_a_master_that_fails_while_executors_are_awaited_is_unavailable(self) -> None:
        class Stopped:
            master = "spark://host:7077"

            @property
            def defaultParallelism(self) -> int:
                raise ConnectionRefusedError(111, "Connection refused")

        with pytest.raises(Unavailable, match="Spark did not start"):
            launch.check_slots(Stopped(), 2)  # type: ignore[arg-type]


class Cluster:
    """A Spark whose executors register one after the other."""

    def __init__(self, master: str, *slots: int) -> None:
        self.master, self._slots = master, list(slots)

    @property
    def defaultParallelism(self) -> int:
        return self._slots.pop(0) if len(self._slots) > 1 else self._slots[0]


class TestSlots:
    def test_are_awaited_until_all_executors_have_registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        noted: list[str] = []
        monkeypatch.setattr(launch, "SLOTS_NOTED_S", 0.0)
        cluster: Any = Cluster("spark://host:7077", 2, 2, 2, 4, 5)
        assert launch.check_slots(cluster, 3, 2, noted.append) == 2
        assert noted == ["waiting for Spark's executors: 2 task slots, 5 wanted"]

    @pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,2,1024]"])
    def test_slots_that_spark_can_never_provide_are_refused_without_waiting(
        self, master: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(launch, "SLOTS_WAIT_S", 1e9)
        with pytest.raises(ConfigError, match="needs 3 task slots at the same time, but Spark at local.* has 2"):
            launch.check_slots(Cluster(master, 2), 3)  # type: ignore[arg-type]

    def test_for_standbys_are_not_required(self) -> None:
        assert launch.check_slots(Cluster("local[4]", 4), 3, 2) == 1  # type: ignore[arg-type]


class TestDoctor:
    def state(self, master: str) -> tuple[str, str]:
        check = next(each for each in cluster(master, {}, {}) if each.name == "spark master")
        return check.state, check.found

    def test_connects_to_the_master(self, listening: int, closed: int) -> None:
        assert self.state(f"spark://127.0.0.1:{listening}")[0] == "ok"
        state, found = self.state(f"spark://127.0.0.1:{closed}")
        assert state == "fail" and "Connection refused" in found

    def test_reports_a_url_that_names_no_address(self) -> None:
        assert self.state("spark://host")[0] == "fail"
