"""How a worker's part of an epoch becomes an object."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.repository import open_verified
from holdfast.errors import Unavailable
from holdfast.model import Epoch, Generation, JobUuid, Subtask, Timeline, Uploaded, WorkerId
from holdfast.runtime.worker.seal import SealJob
from holdfast.runtime.worker.uploads import REFUSED_PARTS, Uploads
from holdfast.sinks.contract.target import Upload
from holdfast.sinks.memory.sink import MemorySink
from holdfast.sinks.protocol.staging import Stage
from holdfast.state.changelog import SegmentHeader, seal, unseal
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.delta import OperatorDelta
from holdfast.storage.objects import LocalObjects, MemoryObjects

HEADER = SegmentHeader(JobUuid("1" * 32), Generation(2), Timeline(1), Epoch(3), Epoch(2), WorkerId("w"))
KEY = KeyType(("k",), (pa.int64(),))
ROWS = 300_000
PATH = "segments/00000002/000000000003/w.segment"


def delta() -> OperatorDelta:
    numbers = np.arange(ROWS)
    random = np.random.default_rng(1).integers(0, 1 << 62, ROWS)
    return OperatorDelta(Epoch(3), Epoch(2), 1, 8, KEY.from_ints(numbers), np.ones(ROWS, bool), {"n": random})


class TestSealing:
    def test_stores_the_segment_under_the_reference_that_it_returns(self, tmp_path: Path) -> None:
        store, given = LocalObjects(tmp_path), delta()
        segment = SealJob(HEADER, [given], {}).run(store).segment
        assert segment is not None and (segment.epoch, segment.follows) == (3, 2)
        data = store.get(PATH)
        assert data == seal(HEADER, [given])
        assert (segment.object.path, segment.object.size) == (PATH, len(data))
        assert segment.object.sha256 == hashlib.sha256(data).hexdigest()
        with open_verified(store, segment.object) as file:
            assert len(unseal(file)[1][0]) == ROWS

    def test_shows_no_part_of_the_segment_before_all_of_it_is_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, sizes = LocalObjects(tmp_path), list[int]()
        durable = os.fsync

        def full(file: int) -> None:
            sizes.append(os.fstat(file).st_size)
            if sizes[-1] > 1 << 20:
                raise OSError(28, "No space left on device")
            durable(file)

        monkeypatch.setattr(os, "fsync", full)
        job = SealJob(HEADER, [delta()], {})
        with pytest.raises(Unavailable, match="full"):
            job.run(store)
        assert max(sizes) > 1 << 20, "the segment is written before it is durable"
        assert store.list("") == []
        monkeypatch.undo()
        assert job.run(store).segment == SealJob(HEADER, [delta()], {}).run(MemoryObjects()).segment

    def test_sealing_an_empty_delta_stores_nothing(self) -> None:
        store = MemoryObjects()
        sealed = SealJob(HEADER, [delta().empty()], {}).run(store)
        assert sealed.segment is None and store.list("") == []


class Uploading:
    """A sink whose uploads are kept here, or refused."""

    def __init__(self) -> None:
        self.kept, self.refuses = dict[Upload, int](), False

    def upload(self, upload: Upload, batches: Iterable[pa.RecordBatch]) -> str:
        if self.refuses:
            raise Unavailable("the target is unreachable", next_step="try again")
        self.kept[upload] = sum(batch.num_rows for batch in batches)
        return "named"

    def sweep(self, job_uuid: str, sink: str, timeline: int, after: int, before: int) -> None:
        raise AssertionError("only a deployment sweeps")


class TestUploads:
    SCHEMA = pa.schema([("n", pa.int64())])

    def job(self, uploading: Uploading, rows: int, least: int = 2_000, paused: Counter[str] | None = None) -> SealJob:
        class Target(MemorySink):
            @property
            def uploads(self) -> Uploading:  # type: ignore[override]
                return uploading

        app = hf.App("words")
        app.source("in", hf.Generator(self.SCHEMA, lambda n: (n,))).sink("out", Target(commits_once=True))
        stage = Stage(self.SCHEMA, None)
        stage.add(pa.record_batch([np.random.default_rng(1).integers(0, 1 << 62, rows)], schema=self.SCHEMA))
        return SealJob(HEADER, [], {"out": stage}, uploads=Uploads(app.plan(), least, paused), subtask=Subtask(4))

    def test_large_output_is_staged_and_uploaded_under_names_of_its_own(self) -> None:
        uploading, store = Uploading(), MemoryObjects()
        staged = self.job(uploading, 1_000).run(store).staged["out"]
        (path,) = store.list("staged")
        assert staged.uploads == (Uploaded(path, "named"),)
        assert uploading.kept == {Upload("1" * 32, "out", 1, 3, 2, "w", 4): 1_000}

    def test_a_refusal_is_remembered_by_the_process_over_the_tasks_of_a_microbatch(self) -> None:
        paused, refusing, later = Counter[str](), Uploading(), Uploading()
        refusing.refuses = True
        self.job(refusing, 1_000, paused=paused).run(MemoryObjects())
        for _ in range(REFUSED_PARTS):
            self.job(later, 1_000, paused=paused).run(MemoryObjects())
        assert later.kept == {}
        assert self.job(later, 1_000, paused=paused).run(MemoryObjects()).staged["out"].uploads

    def test_small_output_is_not_uploaded(self) -> None:
        uploading = Uploading()
        assert self.job(uploading, 10).run(MemoryObjects()).staged["out"].uploads == ()
        assert uploading.kept == {}

    def test_an_unreachable_target_does_not_keep_the_epoch_waiting(self) -> None:
        uploading, store = Uploading(), MemoryObjects()
        uploading.refuses = True
        staged = self.job(uploading, 1_000).run(store).staged["out"]
        assert (staged.uploads, staged.rows) == ((), 1_000)
        assert [part.path for part in staged.parts] == store.list("staged")

    def test_a_target_that_refused_is_left_alone_for_some_parts(self) -> None:
        """Its refusals may be slow, and acks would wait for each of them."""
        uploading = Uploading()
        uploading.refuses = True
        job = self.job(uploading, 1_000)
        job.run(MemoryObjects())
        uploading.refuses = False
        uploaded = [bool(job.run(MemoryObjects()).staged["out"].uploads) for _ in range(REFUSED_PARTS + 1)]
        assert uploaded == [False] * REFUSED_PARTS + [True]
