"""Checks before a run: a locked target stops a new job, but not one that has used it before."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.errors import ConfigError, Unavailable
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, Timeline
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution import admission
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.plan.model import SinkSpec

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("n", pa.int64(), nullable=False)])
NEW = joblog.Job(JobUuid("job"), "counts", 128, 0, 2)
DONE = joblog.CheckpointCompleted(Epoch(1), Epoch(0), ObjectRef("m", 1, "0"), 1, 1, 1)
USED = replace(NEW, completed=(joblog.Completed(DONE, Generation(1), Timeline(1), 0),))


class TestLockedTarget:
    def spec(self, path: Path) -> SinkSpec:
        return SinkSpec("out", hf.SQLite(str(path), table="t", key=["k"]), 0, SCHEMA, ("k",))

    def test_fails_a_job_that_never_used_it(self, tmp_path: Path) -> None:
        with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(Unavailable):
                admission.prepare_sink(self.spec(tmp_path / "out.db"), None)

    def test_does_not_fail_a_job_that_has_used_it_before(self, tmp_path: Path) -> None:
        """P24: processing does not wait for a target, each writer's delivery does."""
        spec = self.spec(tmp_path / "out.db")
        admission.prepare_sink(spec, None)
        with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            admission.prepare_sink(spec, USED)


class TestPathInTheMemoryOfOneProcess:
    """Every worker is a separate process: no other process sees its writes there."""

    def app(self, root: str, log: str, out: str) -> hf.App:
        app = hf.App("words", root=root)
        app.source("rows", hf.Log(log, SCHEMA)).sink("out", hf.Log(out))
        return app

    @pytest.mark.parametrize(
        ("place", "named"), [(0, "the root"), (1, "source 'rows'"), (2, "sink 'out'")], ids=["root", "source", "sink"]
    )
    def test_is_refused_before_anything_is_opened(self, tmp_path: Path, place: int, named: str) -> None:
        places = [str(tmp_path / name) for name in ("root", "rows", "out")]
        places[place] = "memory://here"
        app = self.app(*places)
        with pytest.raises(ConfigError, match=f"^{named} is memory://here") as caught:
            prepare(app.plan(), resolve(app))
        assert "separate processes" in caught.value.what and "folder" in caught.value.next_step
        assert list(tmp_path.iterdir()) == []


class TestAllDelivered:
    """Only a stopped run records it; some records after its checkpoint invalidate it."""

    START = joblog.GenerationStarted(Epoch(1), Epoch(0), "host", "started")
    STOP = joblog.Stopped(Epoch(7))

    def completed(self, epoch: int) -> joblog.CheckpointCompleted:
        return joblog.CheckpointCompleted(Epoch(epoch), Epoch(0), ObjectRef("m", 1, "0"), 1, 1, 1)

    def reported(self, *bodies: joblog.Body) -> bool:
        records = [
            joblog.Record(seq, JobUuid("job"), Generation(1), Timeline(1), "owner", 0, body)
            for seq, body in enumerate(bodies, 1)
        ]
        return admission.delivered_through(records, Epoch(7))

    def test_is_true_after_a_stop_at_the_checkpoint(self) -> None:
        assert self.reported(self.START, self.completed(7), self.STOP)
        assert self.reported(self.START, self.completed(7), self.STOP, self.START)

    def test_is_unknown_without_a_stop(self) -> None:
        assert not self.reported(self.START, self.completed(7))
        assert not self.reported(self.START, self.completed(6), joblog.Stopped(Epoch(6)), self.START, self.completed(7))

    def test_is_not_implied_by_the_end_of_a_rewind(self) -> None:
        rewound = joblog.Rewound(Epoch(7), Epoch(200), "host", "rewound")
        assert not self.reported(self.START, self.completed(7), self.STOP, rewound)
        assert not self.reported(self.START, self.completed(7), self.STOP, rewound, self.STOP)
        assert not self.reported(self.START, self.completed(7), rewound, self.STOP, self.START)
