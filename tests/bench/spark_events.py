"""Reads what Spark reports about its newest application: which jobs run, and which tasks and executors were lost.

Spark writes its event log at the start and at the end of every job. Drivers write it if `spark-defaults.conf` says so.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

SETTINGS = """\
spark.eventLog.enabled true
spark.eventLog.rolling.enabled false
spark.eventLog.compress false
spark.eventLog.dir {folder}
"""
_WANTED = tuple(
    f'{{"Event":"SparkListener{kind}"'.encode() for kind in ("JobStart", "JobEnd", "TaskEnd", "ExecutorRemoved")
)


class SparkEvents:
    """The events of the newest application of a cluster.

    Args:
        folder: For the event logs.
        defaults: The cluster's file of settings; drivers that start from now on write event logs.
    """

    def __init__(self, folder: Path, defaults: Path) -> None:
        self._folder = folder
        folder.mkdir()
        with defaults.open("a") as settings:
            settings.write(SETTINGS.format(folder=folder))
        self._app, self._read = "", 0
        self._jobs = set[int]()
        self.tasks_failed = self.executors_lost = 0

    def job_runs(self) -> bool:
        """Return whether a job of the newest application runs now."""
        self.look()
        return bool(self._jobs)

    def look(self) -> SparkEvents:
        """Read what was written since the last call."""
        path = max(self._folder.iterdir(), default=None)
        if path is None:
            return self
        if path.stem != self._app:
            self._app, self._read, self._jobs, self.tasks_failed, self.executors_lost = path.stem, 0, set(), 0, 0
        with (
            contextlib.suppress(FileNotFoundError),
            path.open("rb") as log,
        ):
            log.seek(self._read)
            self._take_whole(log.read())
        return self

    def _take_whole(self, data: bytes) -> None:
        """Take the lines that are complete."""
        whole = data.rfind(b"\n") + 1
        self._read += whole
        for line in data[:whole].splitlines():
            if line.startswith(_WANTED):
                self._take(json.loads(line))

    def _take(self, event: dict[str, object]) -> None:
        match event:
            case {"Event": "SparkListenerJobStart", "Job ID": int(job)}:
                self._jobs.add(job)
            case {"Event": "SparkListenerJobEnd", "Job ID": int(job)}:
                self._jobs.discard(job)
            case {"Event": "SparkListenerTaskEnd", "Task End Reason": {"Reason": str(reason)}}:
                self.tasks_failed += reason not in ("Success", "TaskKilled")
            case {"Event": "SparkListenerExecutorRemoved"}:
                self.executors_lost += 1
