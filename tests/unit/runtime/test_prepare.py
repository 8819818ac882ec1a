"""Checks before a run: a locked target stops a new job, but not one that has used it before."""

from __future__ import annotations

import json
import socket
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, Timeline
from holdfast.runtime.cli.start.plan import obstacles
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution import targets
from holdfast.runtime.execution.checks.targets.undelivered import delivered_through
from holdfast.runtime.execution.prepare import prepare
from holdfast.runtime.plan.compiler import describe, render
from holdfast.runtime.plan.model import SinkSpec
from holdfast.runtime.plan.shape import shape_of
from holdfast.sinks.contract.sink import Sink
from holdfast.traits import SinkTraits

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
            with pytest.raises(Unavailable) as caught:
                targets.create_target(self.spec(tmp_path / "out.db"), None)
        assert caught.value.not_done == "the job was not started"

    def test_does_not_fail_a_job_that_has_used_it_before(self, tmp_path: Path) -> None:
        """P24: processing does not wait for a target, each writer's delivery does."""
        spec = self.spec(tmp_path / "out.db")
        targets.create_target(spec, None)
        with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            targets.create_target(spec, USED)


class TestTargetThatDoesNotAdmitTheUser:
    """P18: a job waits for a target that refuses it, as for one that is unreachable; at first it is a mistake."""

    def spec(self) -> SinkSpec:
        return SinkSpec("out", cast(Sink, Refusing()), 0, SCHEMA, None)

    def test_fails_a_job_that_never_used_it_as_wrongly_configured(self) -> None:
        for job in (None, NEW):
            with pytest.raises(ConfigError, match="^not this user") as caught:
                targets.create_target(self.spec(), job)
            assert (caught.value.exit_status, caught.value.next_step) == (2, "ask the administrator")
            assert caught.value.not_done == "the job was not started"

    def test_does_not_fail_a_job_that_has_used_it_before(self) -> None:
        targets.create_target(self.spec(), USED)


class Refusing:
    """A target that does not let its user in."""

    traits = SinkTraits(kind="Refusing", local_paths=())

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        raise NotAdmitted("not this user", next_step="ask the administrator")


class TestUnreachableTarget:
    @pytest.mark.parametrize(
        ("said", "told"),
        [("no action needed: delivery retries", targets.AGAIN), ("raise maxmemory", "raise maxmemory")],
        ids=["by itself", "by the reader"],
    )
    def test_promises_no_retry_at_a_first_start(self, said: str, told: str) -> None:
        seen = targets.at_a_start(Unavailable("away", not_done="it is not known", next_step=said))
        assert type(seen) is Unavailable
        assert (seen.what, seen.not_done, seen.next_step) == ("away", "the job was not started", told)


class TestSecrets:
    def app(self, folder: Path, secret: str) -> hf.App:
        app = hf.App("words", root=str(folder / "root"))
        rows = app.source("rows", hf.Log(folder / "rows", SCHEMA))
        rows.sink("out", hf.Postgres("postgresql://app@127.0.0.1:1/x", "t", password=hf.secret(secret)))
        return app

    @pytest.mark.parametrize("kind", ["env:SECRET_OF_A_TEST", "file:"])
    def test_a_missing_secret_refuses_the_start_before_any_source_is_opened(self, tmp_path: Path, kind: str) -> None:
        secret = f"{kind}{tmp_path}/secret" if kind == "file:" else kind
        app = self.app(tmp_path, secret)
        with pytest.raises(ConfigError, match="^sink 'out': the ") as caught:
            prepare(app.plan(), resolve(app))
        assert secret.partition(":")[2] in caught.value.what and socket.gethostname() in caught.value.what
        assert caught.value.not_done == "the job was not started; state and output are untouched"

    def test_are_not_needed_for_a_plan_which_reports_that_they_are_missing(self, tmp_path: Path) -> None:
        app = self.app(tmp_path, "env:SECRET_OF_A_TEST")
        found = obstacles(app.plan(), resolve(app))
        assert next(each["what"].partition(" on ")[0] for each in found) == (
            "sink 'out': the environment variable SECRET_OF_A_TEST, which a secret names, is not set"
        )

    def test_are_in_no_part_of_a_plan(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_OF_A_TEST", "open sesame")
        plan = self.app(tmp_path, "env:SECRET_OF_A_TEST").plan()
        for shown in (json.dumps(describe(plan)), render(plan), json.dumps(shape_of(plan))):
            assert "sesame" not in shown
        assert b"sesame" not in cloudpickle.dumps(plan)  # type: ignore[no-untyped-call]


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
        return delivered_through(records, Epoch(7))

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
