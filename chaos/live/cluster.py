"""A Spark standalone cluster on this machine, from the pyspark package, for a job under faults.

A master and worker daemons ("hosts"), each a process. Unlike with `local[N]`, no part of it runs in the driver: it
survives a killed driver, and daemons that are independent of the job start its executors.

Invariants
    - Every process listens on 127.0.0.1 only, on ports that the system chooses.
    - `close` ends every daemon and all its children.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyspark

from holdfast.chaos.live.folders import java_options, temporary
from holdfast.errors import Unavailable
from holdfast.runtime.wire.processes import is_gone, signal_all

START_LIMIT_S = 90.0
POLL_S = 0.05
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVM options for processes that live for minutes."""
_DEFAULTS = """\
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.extraJavaOptions {java}
spark.executor.extraJavaOptions {java}
spark.executor.memory 512m
"""
# Executors die on purpose here; Spark gives up on an application after ten of them.
# Its REST server, which is not used, takes port 6066 or the next free one, for any setting.
MASTER_OPTIONS = "-Dspark.deploy.maxExecutorRetries=-1 -Dspark.master.rest.enabled=false"
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_DEPLOY = "org.apache.spark.deploy"


class LiveCluster:
    """One master and a number of hosts.

    Args:
        folder: For configuration, work folders and the daemons' logs; temporary files go into the run's, beside it.
        environment: Added to this process's environment for daemons, and so for executors.
    """

    def __init__(self, folder: Path, hosts: int, cores: int, environment: Mapping[str, str]) -> None:
        self._folder, self._cores = folder, cores
        (folder / "conf").mkdir(parents=True)
        java = f"{QUICK_JAVA} {java_options(temporary(folder.parent))}"
        (folder / "conf" / "spark-defaults.conf").write_text(_DEFAULTS.format(java=java))
        self.environment = {"SPARK_CONF_DIR": str(folder / "conf"), "SPARK_LOCAL_IP": "127.0.0.1"}
        """The Spark settings that a driver on this cluster needs."""
        daemons = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": java}
        daemons["SPARK_MASTER_OPTS"] = MASTER_OPTIONS
        self._environment = {**os.environ, **self.environment, **daemons, **environment}
        self._master: subprocess.Popen[bytes] | None = None
        self._hosts: list[subprocess.Popen[bytes] | None] = [None] * hosts
        self.url = ""

    def start(self) -> None:
        """Start the cluster; return once every host is registered. Raises Unavailable."""
        log = self._start_master(0)
        self.url = self._awaited(log, r"Starting Spark master at (spark://\S+)", 1)[0]
        for number in range(len(self._hosts)):
            self._start_host(number)
        self._awaited(log, r"Registering worker ([\d.]+:\d+)", len(self._hosts))

    def hosts(self) -> list[psutil.Process]:
        """Return the running worker daemons."""
        running = [host for host in self._hosts if host is not None and host.poll() is None]
        return [psutil.Process(host.pid) for host in running]

    def daemons(self) -> set[int]:
        """Return the process ids of master and hosts."""
        return {process.pid for process in (*self._hosts, self._master) if process is not None}

    def revive(self) -> str:
        """Restart hosts that have ended, as a supervisor would; return a description of the action."""
        dead_hosts = []
        for number, host in enumerate(self._hosts):
            # A JVM whose first thread has ended must not be waited for before its last thread has ended.
            if host is not None and (host.poll() is not None or is_gone(psutil.Process(host.pid))):
                host.wait()
                dead_hosts.append(number)
                self._start_host(number)
        return f"{len(dead_hosts)} worker daemons were started again"

    def close(self) -> None:
        """End every daemon."""
        for process in (*self._hosts, self._master):
            if process is None:
                continue
            signal_all(process, signal.SIGKILL)
            process.wait()

    def _start_master(self, port: int) -> Path:
        """Start the master on this port, 0 for one that the system chooses; return its log."""
        log = self._folder / "master.log"
        self._master = self._spawn(log, "master.Master", "--port", str(port), "--webui-port", "0")
        return log

    def _start_host(self, number: int) -> None:
        log, work = self._folder / f"host-{number}.log", self._folder / f"work-{number}"
        flags = ("-c", str(self._cores), "-m", "1g", "-d", str(work), "--port", "0", "--webui-port", "0", self.url)
        self._hosts[number] = self._spawn(log, "worker.Worker", *flags)

    def _spawn(self, log: Path, daemon: str, *flags: str) -> subprocess.Popen[bytes]:
        command = [str(_SPARK_CLASS), f"{_DEPLOY}.{daemon}", "--host", "127.0.0.1", *flags]
        with log.open("ab") as said:
            return subprocess.Popen(
                command, stdout=said, stderr=subprocess.STDOUT, env=self._environment, start_new_session=True
            )

    def _awaited(self, log: Path, pattern: str, count: int) -> list[str]:
        """Return the pattern's matches in the log, once there are enough."""
        deadline = time.monotonic() + START_LIMIT_S
        matches: list[str] = []
        while time.monotonic() < deadline:
            matches = re.findall(pattern, log.read_text(errors="replace"))
            if len(matches) >= count:
                return matches
            self._check_alive()
            time.sleep(POLL_S)
        raise Unavailable(
            f"the Spark cluster did not come up within {START_LIMIT_S:.0f} s; see {log}",
            not_done="the job was not started",
            next_step="check Java with holdfast doctor, or use a local[N] platform",
        )

    def _check_alive(self) -> None:
        """Raise Unavailable if a daemon that was just started has ended."""
        names = ["master", *(f"host-{number}" for number in range(len(self._hosts)))]
        for name, process in zip(names, (self._master, *self._hosts), strict=True):
            if process is not None and process.poll() is not None:
                said = (self._folder / f"{name}.log").read_text(errors="replace")[-500:].strip()
                raise Unavailable(
                    f"a daemon of the Spark cluster, {name}, ended with status {process.returncode}: {said}",
                    not_done="the job was not started",
                    next_step="check Java with holdfast doctor, or use a local[N] platform",
                )
