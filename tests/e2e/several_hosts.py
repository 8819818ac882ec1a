"""A Spark standalone cluster of several hosts, each in namespaces of its own, and jobs whose driver is on yet another.

The root and the targets are in one folder that all hosts mount; everything else is on the disk of each host.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pyarrow as pa
import pyspark
from hosts import Host, Network, network
from patience import WALL_S, wait
from running import JOB, Run, running

from holdfast.chaos.live.cluster import MASTER_OPTIONS, QUICK_JAVA
from holdfast.chaos.live.folders import java_options
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import open_objects

HEAD, DRIVER = "head", "driver"
PARTITIONS = 4
_TYPES = {"user": pa.string(), "page": pa.int64(), "amount": pa.int64(), "part": pa.int64()}
CHUNK_ROWS, CHUNK_EVERY_S = 2_000, 0.2
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEFAULTS = """\
spark.driver.host {driver}
spark.driver.extraJavaOptions {java}
spark.executor.extraJavaOptions {java}
spark.executor.memory 512m
"""


class SparkHosts:
    """A Spark master on the host `head`, and an executor on every host but that and the driver's.

    Args:
        folder: What all hosts share: the job's files, the configuration and the logs of Spark.
        slots: Tasks that each executor runs at the same time.
    """

    def __init__(self, net: Network, folder: Path, slots: int) -> None:
        self.network, self.folder, self._slots = net, folder, slots
        self.workers = {name: host for name, host in net.hosts.items() if name not in (HEAD, DRIVER)}
        self.url = f"spark://{HEAD}:7077"
        java = f"{QUICK_JAVA} {java_options(net.disk)}"
        (folder / "conf").mkdir()
        (folder / "conf" / "spark-defaults.conf").write_text(_DEFAULTS.format(driver=DRIVER, java=java))
        own = {name: str(net.disk) for name in ("TMPDIR", "SPARK_LOCAL_DIRS", "SPARK_WORKER_DIR")}
        path = os.pathsep.join([str(net.disk / "python"), os.environ.get("PYTHONPATH", "")])
        self.environment = {"SPARK_CONF_DIR": str(folder / "conf"), "PYTHONPATH": path, **own}
        daemons = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": java, "SPARK_MASTER_OPTS": MASTER_OPTIONS}
        self._daemons = {**os.environ, **self.environment, **daemons, "PYSPARK_PYTHON": sys.executable}
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the master and every worker daemon; return once all are registered."""
        self._spawn(HEAD, "master.Master", "--port", "7077")
        wait(lambda: "I have been elected" in self.log(HEAD), "the Spark master")
        for name in self.workers:
            self.join(name)
        for name in self.workers:
            self.await_joined(name, 1)

    def join(self, name: str) -> None:
        """Start the worker daemon of a host."""
        self._spawn(name, "worker.Worker", "-c", str(self._slots), "-m", "1g", self.url)

    def await_joined(self, name: str, times: int) -> None:
        """Wait until the master has registered the host so many times."""
        wait(lambda: self.joined(name) >= times, f"{name} to join")

    def joined(self, name: str) -> int:
        """Return how often the master has registered the host."""
        return len(re.findall(rf"Registering worker {name}:\d+ ", self.log(HEAD)))

    def log(self, name: str) -> str:
        """Return what the Spark daemon of a host has logged."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def close(self) -> None:
        """Wait for the daemons, which have ended with their hosts."""
        for process in self._started:
            process.wait(WALL_S)

    def _spawn(self, name: str, daemon: str, *flags: str) -> None:
        command = [str(_SPARK_CLASS), f"org.apache.spark.deploy.{daemon}", "--host", name, *flags]
        with (self.folder / f"{name}.log").open("ab") as said:
            self._started.append(self.network.hosts[name].popen(command, said, self._daemons))


@contextlib.contextmanager
def spark_hosts(folder: Path, clocks: Mapping[str, int], slots: int = 1) -> Iterator[SparkHosts]:
    """Start these hosts with Spark; all of it ends with the block.

    Args:
        clocks: How many seconds the clock of each host with an executor is ahead, by name.
    """
    (folder / "shared").mkdir()
    with network(folder, {HEAD: 0, DRIVER: 0, **clocks}) as net:
        cluster = SparkHosts(net, folder / "shared", slots)
        try:
            cluster.start()
            yield cluster
        finally:
            net.close()
            cluster.close()


@contextlib.contextmanager
def running_on(cluster: SparkHosts, *flags: str, **environment: str) -> Iterator[Run]:
    """Start the job, with its driver on the driver's host."""
    own = {"HOLDFAST_SHARED_PATHS": "true", **cluster.environment, **environment}
    there = cluster.network.hosts[DRIVER].command(())
    with running(cluster.folder, "--master", cluster.url, *flags, job=JOB, on=there, **own) as run:
        yield run


def status(cluster: SparkHosts) -> dict[str, Any]:
    """Return the status that the driver publishes."""
    found: dict[str, Any] = json.loads((cluster.folder / "root" / "counting" / "live.json").read_text())
    return found


def host_of(cluster: SparkHosts, worker: Mapping[str, Any]) -> Host:
    """Return the host of a worker of the status."""
    return cluster.network.hosts[worker["host"]]


def process_of(cluster: SparkHosts, worker: Mapping[str, Any]) -> psutil.Process:
    """Return the process of a worker of the status."""
    return host_of(cluster, worker).process(worker["pid"])


def active(shown: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the workers that run subtasks, by subtask."""
    return {worker["subtasks"][0]: worker for worker in shown["workers"] if worker["subtasks"]}


def standbys(shown: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the standbys whose copies hold the last epoch."""
    return [worker for worker in shown["workers"] if worker["role"] == "standby" and worker["lag_epochs"] == 0]


def epoch_of(shown: Mapping[str, Any]) -> int:
    """Return the last completed epoch; 0: none yet."""
    return 0 if shown["checkpoint"] is None else int(shown["checkpoint"]["epoch"])


def await_status(run: Run, cluster: SparkHosts, true: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
    """Wait until this holds for the published status of the running job; return it."""
    seen: dict[str, Any] = {}

    def holds() -> bool:
        assert run.process.poll() is None, run.errors()
        seen.clear()
        seen.update(status(cluster))
        return bool(true(seen))

    try:
        wait(holds, what, run.process.pid)
    except AssertionError as error:
        raise AssertionError(f"{error}; the last status was {seen}\n{run.errors()}") from error
    return seen


class Feed:
    """Appends to the input of the counting job until it is told to end it."""

    def __init__(self, folder: Path) -> None:
        self._rows, self._over = 0, threading.Event()
        self._schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in _TYPES.items()])
        store = open_objects(f"{folder}/input")
        create_log(store, self._schema, PARTITIONS)
        self._writer = LogWriter(store)
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def end(self) -> pl.DataFrame:
        """Seal the input; return its rows, those of each partition in order."""
        self.stop()
        self._writer.seal()
        return self._frame(0, self._rows)

    def stop(self) -> None:
        """Append nothing more."""
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        while not self._over.is_set():
            frame = self._frame(self._rows, CHUNK_ROWS)
            parts = ((part, frame.filter(pl.col("part") == part)) for part in range(PARTITIONS))
            self._writer.append({part: rows.to_arrow().cast(self._schema) for part, rows in parts})
            self._rows += CHUNK_ROWS
            self._over.wait(CHUNK_EVERY_S)

    def _frame(self, first: int, rows: int) -> pl.DataFrame:
        index = pl.int_range(first, first + rows, eager=True)
        return pl.DataFrame(
            {
                "user": "user-" + ((index * 7919) % 5_003).cast(pl.String),
                "page": (index * 104_729) % 997,
                "amount": (index * 31) % 1_000 - 300,
                "part": index % PARTITIONS,
            }
        )


@contextlib.contextmanager
def fed(folder: Path) -> Iterator[Feed]:
    """Feed the job while the block runs; the block ends the input."""
    feed = Feed(folder)
    try:
        yield feed
    finally:
        feed.stop()
