"""The processes of a real run's job: starts drivers, reads their progress, and finds possible victims.

Only a process with the token of the run (owned.py) is struck.

Invariant
    - After `close` no process of the job is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from holdfast.chaos.judge.kinds import Victim
from holdfast.chaos.live import owned
from holdfast.chaos.live.faults.strikes import BEATS
from holdfast.chaos.live.folders import keeps_temporary_below

EXECUTOR = "CoarseGrainedExecutorBackend"
GONE_WITHIN_S = 10.0
OVER = frozenset({"Finished", "Stopped"})
"""Records after which a driver has nothing left to do."""
HEARD_OUT_WITHIN_S = 2.0


class LiveJob:
    """One job; a new driver process whenever the previous one has ended.

    Args:
        job: The file of the job.
        out: Folder of the run, for root, temporary files and drivers' messages.
        flags: Further flags of `holdfast run`.
        environment: Added to this process's own environment.
        token: The token of the run; known to no other process.
    """

    def __init__(
        self, job: Path, out: Path, flags: tuple[str, ...], environment: Mapping[str, str], token: str
    ) -> None:
        self.token = token
        self.root = out / "root"
        self._out = out
        self._folder: Path | None = None
        base = [sys.executable, "-m", "holdfast.runtime.cli.main", "run", str(job), "--root", str(self.root)]
        self._command = [*base, "--progress", "json", *flags]
        self.environment = {**os.environ, **keeps_temporary_below(out), **environment, **owned.marks(token)}
        self.driver: subprocess.Popen[str] | None = None
        self._hearing: threading.Thread | None = None
        self.drivers = 0
        self.progress: dict[str, Any] = {}
        """The newest progress of the present driver; empty until it reports any."""
        self.asked_to_end = False

    def start(self) -> int:
        """Start a driver; return its process id."""
        self.drivers += 1
        self.progress = {}
        with self.log_path.open("w", encoding="utf-8") as errors:
            self.driver = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment,
                text=True,
                start_new_session=True,
            )
        self._hearing = threading.Thread(
            target=self._hear, args=(self.driver, self.drivers), name="progress", daemon=True
        )
        self._hearing.start()
        return self.driver.pid

    @property
    def log_path(self) -> Path:
        """Return the file of the newest driver's messages."""
        return self._out / f"driver-{self.drivers}.log"

    def _hear(self, driver: subprocess.Popen[str], number: int) -> None:
        assert driver.stdout is not None
        with driver.stdout as lines:
            for text in lines:
                if text.startswith("{"):
                    with contextlib.suppress(ValueError):  # a killed driver's last line may be incomplete
                        reported = json.loads(text)
                        if number == self.drivers:
                            self.progress = reported

    def hear_out(self) -> None:
        """Read the last output of a driver that has ended, with a time limit: its children may hold the pipe open."""
        if self._hearing is not None and self.ended() is not None:
            self._hearing.join(HEARD_OUT_WITHIN_S)

    def ended(self) -> int | None:
        """Return the exit status of the driver, None while it runs."""
        assert self.driver is not None
        return self.driver.poll()

    def terminate(self) -> None:
        """Ask the driver to take a last checkpoint and exit."""
        assert self.driver is not None
        if self.driver.poll() is None and not self.is_over():
            self.asked_to_end = True
            self.driver.send_signal(signal.SIGTERM)

    @property
    def lag(self) -> int | None:
        """Return how many records wait to be read; None if unknown."""
        lag: int | None = self.progress.get("lag")
        return lag

    def reads_no_more(self) -> bool:
        """Return whether every source has ended, so that the job will finish; False if unknown."""
        folder = self.folder()
        try:
            live = {} if folder is None else json.loads((folder / "live.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return False
        ended = {(each["source"], each["partition"]) for each in live.get("ended", ())}
        rows = live.get("sources", ())
        return bool(rows) and all((row["name"], row["partition"]) in ended for row in rows)

    def is_over(self) -> bool:
        """Return whether the job log ends with a record that the job finished or stopped."""
        folder = self.folder()
        newest = [] if folder is None else sorted((folder / "log").glob("[0-9]*.json"))[-1:]
        try:
            return any(json.loads(path.read_bytes())["body"]["kind"] in OVER for path in newest)
        except (FileNotFoundError, ValueError):
            return False

    def ours(self, pid: int) -> psutil.Process | None:
        """Return the process if it is alive and belongs to the job."""
        return owned.owned(pid, self.token, owned.JOB)

    def all(self) -> list[psutil.Process]:
        """Return every live process of the job, including the platform it runs on."""
        return owned.living(self.token, owned.JOB)

    def victim(self, kind: Victim) -> list[psutil.Process]:
        """Return the possible victims of a fault, in an order that does not depend on process ids."""
        if kind == "driver":
            assert self.driver is not None
            driver = self.ours(self.driver.pid)
            return [] if driver is None else [driver]
        with_work = sorted((w for w in self.progress.get("workers", ()) if w["subtasks"]), key=lambda w: w["subtasks"])
        workers = [process for w in with_work if w["pid"] and (process := self.ours(w["pid"])) is not None]
        if kind == "worker":
            return workers
        daemons = _distinct(self._parent(worker) for worker in workers)
        if kind == "daemon":
            return daemons
        assert kind == "executor", f"{kind} names no processes of the job"
        above = _distinct(self._parent(daemon) for daemon in daemons)
        return [process for process in above if EXECUTOR in _command_line(process)]

    def folder(self) -> Path | None:
        """Return the job's folder, the only one below the root of the run; None until it exists."""
        if self._folder is None:
            self._folder = next((path.parent for path in self.root.glob("*/log")), None)
        return self._folder

    def written(self) -> list[float]:
        """Return when the newest records of the job log were written, in order."""
        folder = self.folder()
        newest = [] if folder is None else sorted((folder / "log").glob("[0-9]*.json"))[-BEATS - 1 :]
        return [path.stat().st_mtime for path in newest]

    def rss_bytes(self) -> int | None:
        """Return the memory of all workers with a subtask; None if none is known."""
        sizes = []
        for process in self.victim("worker"):
            with contextlib.suppress(psutil.Error):
                sizes.append(process.memory_info().rss)
        return sum(sizes) if sizes else None

    def close(self) -> None:
        """End every process of the job."""
        owned.end_all(self.token, owned.JOB)
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait(GONE_WITHIN_S)

    def _parent(self, process: psutil.Process) -> psutil.Process | None:
        try:
            parent = process.parent()
        except psutil.NoSuchProcess:
            return None
        return None if parent is None else self.ours(parent.pid)


def _distinct(processes: Any) -> list[psutil.Process]:
    return list(dict.fromkeys(process for process in processes if process is not None))


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
