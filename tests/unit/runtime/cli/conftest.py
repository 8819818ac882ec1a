"""Histories of jobs on disk, written record by record as a driver writes them, and the command line run in-process."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import UNSET
from orders_job import Orders

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Confirmed, Manifest, OperatorState
from holdfast.checkpoint.repository import Repository
from holdfast.model import (
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SegmentRef,
    SnapshotHandle,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    WorkerId,
    Writer,
)
from holdfast.runtime.cli.main import main
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.delta import OperatorDelta
from holdfast.storage.local import LocalObjects

NOW_US = time.time_ns() // 1000
KEY_GROUPS = 128
UUID = JobUuid("5f6c3a")
KEY = KeyType.of([pa.field("word", pa.int64(), nullable=False)])


class History:
    """One job below a root; each method appends the records that a driver would."""

    def __init__(self, root: Path, name: str) -> None:
        self.name, self.folder = name, root / name
        self.store = LocalObjects(self.folder)
        self.repository = Repository(self.store)
        self._seq, self.generation = 0, Generation(0)
        self._epochs: list[Epoch] = []
        self._segments: tuple[SegmentRef, ...] = ()

    def create(self) -> History:
        self._append(joblog.JobCreated(self.name, KEY_GROUPS))
        return self

    def start(self, cause: str = "started", at_us: int = NOW_US) -> History:
        job = self.repository.read_log()
        assert job is not None
        self.generation = Generation(job.generation + 1)
        self._append(joblog.GenerationStarted(joblog.next_first_epoch(job), job.base_epoch, "far-away", cause), at_us)
        return self

    def checkpoint(self, epoch: int, *, torn: bool = False, shape: dict[str, Any] | None = None) -> None:
        """Complete an epoch: a segment, staged output of it, a manifest, the log record.

        Args:
            torn: The segment lacks its last byte, and the manifest holds the hash of just that.
            shape: What the manifest holds of the job's code.
        """
        number = Epoch(epoch)
        follows = self._epochs[-1] if self._epochs else Epoch(0)
        header = SegmentHeader(UUID, self.generation, Timeline(1), number, follows, WorkerId("w1"))
        keys = KEY.from_ints(np.array([1, 2, number], dtype=np.int64))
        delta = OperatorDelta(
            number, follows, 1, KEY_GROUPS, keys, np.ones(3, bool), {"rows.count": np.full(3, number)}
        )
        sealed = seal(header, [delta])[: -1 if torn else None]
        segment = self._object(f"segments/{self.generation:08d}/{number:012d}/w1.segment", sealed)
        staged = self._object(f"staged/{self.generation:08d}/{number:012d}/w1-out.arrow", b"rows %d" % number)
        self._segments = (*self._segments, SegmentRef(number, follows, segment))
        out = Writer("out", Subtask(0))
        manifest = Manifest(
            UUID,
            self.generation,
            Timeline(1),
            number,
            follows,
            1,
            KEY_GROUPS,
            shape=UNSET if shape is None else shape,
            positions=(SourcePosition("words", 0, 100 * number), SourcePosition("words", 1, 50 * number)),
            state=(SnapshotHandle(Subtask(0), (0, KEY_GROUPS), (), Epoch(0), self._segments),),
            pending=(Pending(out, Tag(Timeline(1), number), Staged((staged,), 3)),),
            confirmed=(Confirmed(out, Tag(Timeline(1), follows)),) if follows else (),
            operators=(OperatorState("counts", 1, {"key": [["word", "int64"]], "columns": [["rows.count", "int64"]]}),),
        )
        ref = self.repository.store_manifest(manifest, f"owner{self.generation}")
        size = sum(each.object.size for each in self._segments)
        self._append(joblog.CheckpointCompleted(number, follows, ref, 35, segment.size, size))
        self._epochs.append(number)

    def stop(self) -> History:
        self._append(joblog.Stopped(self._epochs[-1]))
        return self

    def finish(self) -> History:
        self._append(joblog.Finished(self._epochs[-1]))
        return self

    def live(self, state: str = "running", *, at_us: int | None = None, **changed: Any) -> History:
        """Write `live.json` as the driver of the newest generation would, by this very process."""
        at = NOW_US + 3_600_000_000 if at_us is None else at_us  # fresh for as long as the test runs
        driver = {"host": socket.gethostname(), "pid": os.getpid(), "seen_ms": 0, "at": at}
        said = {
            "schema": 1,
            "job": self.name,
            "root": str(self.folder),
            "state": state,
            "reason": None,
            "mode": "continuous",
            "generation": self.generation,
            "timeline": 1,
            "checkpoint": None,
            "driver": driver,
            "workers": [
                {
                    "id": "w1",
                    "host": "vm",
                    "pid": 7,
                    "role": "worker",
                    "subtasks": [0],
                    "rss_bytes": None,
                    "lag_epochs": 0,
                    "how": "restored",
                    "first_record_ms": None,
                },
            ],
            "sources": [
                {
                    "name": "words",
                    "partition": 0,
                    "offset": 700,
                    "end_offset": 1_000,
                    "lag": 300,
                    "oldest_offset": None,
                    "watermark": None,
                    "idle_ms": None,
                },
            ],
            "sinks": [],
            "operators": [],
            "restarts": [],
            "rewind_horizon": None,
            "problems": [],
        }
        self.store.put("live.json", json.dumps(said | changed).encode())
        return self

    def damage(self, path: str) -> None:
        """Flip one bit in the middle of an object."""
        file = self.folder / path
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)

    def _append(self, body: joblog.Body, at_us: int = NOW_US) -> None:
        self._seq += 1
        self.repository.create_record(
            joblog.Record(self._seq, UUID, self.generation, Timeline(1), f"owner{self.generation}", at_us, body)
        )

    def _object(self, path: str, data: bytes) -> ObjectRef:
        self.store.put(path, data)
        return ObjectRef(path, len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit status and its output."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root that every command of this test uses."""
    monkeypatch.setenv("HOLDFAST_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def history(root: Path) -> Callable[[str], History]:
    """Begins the history of a job: created and started once."""
    return lambda name: History(root, name).create().start()


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs a command in this process."""

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        status = main(arguments)
        out, err = capsys.readouterr()
        return Ended(status, out, err)

    return run


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """A job that has run and was stopped."""
    job = Orders(tmp_path)
    job.start()
    job.order(a=1, b=2)
    job.stop()
    return job
