"""A source that cannot be read while a job runs: the job waits, and the status says for what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import Unavailable
from holdfast.runtime.job.explain import findings
from holdfast.runtime.job.live import Status
from holdfast.runtime.job.status import SOURCE_REFUSED, of_run
from holdfast.runtime.plan.ahead import Read
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.sources.log import OpenLog
from holdfast.runtime.testing.cluster import Cluster
from holdfast.runtime.worker.subtask import REFUSED_AFTER_S
from holdfast.sinks.memory.sink import MemorySink
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects

AWAY = Unavailable("the registry answers with HTTP 500", not_done="nothing was read", next_step="look at its log")


@dataclass
class Word:
    n: int


class Job:
    """Copies a log of two partitions."""

    def __init__(self, folder: Path) -> None:
        create_log(LocalObjects(folder), schema_of(Word), partitions=2)
        self._writer, self._out = LogWriter(LocalObjects(folder)), MemorySink(None)
        app = hf.App("words", checkpoint_every="1s")
        app.source("rows", hf.Log(folder, Word)).sink("out", self._out)
        self.cluster = Cluster(app.plan(), 2, 0, MemoryObjects(), 1.0, {"rows": (0, 1)})
        self.cluster.begin()
        self.cluster.pass_time(2)

    def say(self, n: int) -> None:
        self._writer.append({partition: pa.table({"n": [n]}, schema_of(Word)) for partition in range(2)})

    def status(self) -> Status:
        return of_run(self.cluster.driver.state, "root", "continuous", None)

    def rows(self) -> list[int]:
        return sorted(row["n"] for row in self._out.rows())


def refused(shown: Status) -> list[str]:
    return [f"{each.source}: {each.what} / {each.next}" for each in shown.problems if each.code == SOURCE_REFUSED]


def test_a_source_that_cannot_be_read_is_reported_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away, fetch = [False], OpenLog._fetch

    def fetched(opened: OpenLog, partition: int, offset: int, max_bytes: int) -> Read:
        if away[0]:
            raise AWAY
        return fetch(opened, partition, offset, max_bytes)

    monkeypatch.setattr(OpenLog, "_fetch", fetched)
    job = Job(tmp_path / "log")
    away[0] = True
    job.say(1)
    job.cluster.pass_time(REFUSED_AFTER_S - 1)
    assert refused(job.status()) == [], "a short pause is no problem"
    job.cluster.pass_time(4)
    shown = job.status()
    what = "source rows cannot be read: the registry answers with HTTP 500. Reading waits, and no record is skipped"
    assert refused(shown) == [f"rows: {what} / look at its log"]
    assert [each.what for each in findings(shown) if each.code == SOURCE_REFUSED] == [what]
    assert job.cluster.driver.outcome is None and job.rows() == []
    away[0] = False
    job.cluster.pass_time(4)
    assert refused(job.status()) == [] and job.rows() == [1, 1]
