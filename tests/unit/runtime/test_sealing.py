"""How a worker's part of an epoch becomes an object."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.checkpoint.repository import open_verified
from holdfast.errors import Unavailable
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.runtime.worker.seal import SealJob
from holdfast.state.changelog import SegmentHeader, seal, unseal
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.delta import Delta
from holdfast.storage.objects import LocalObjects, MemoryObjects

HEADER = SegmentHeader(JobUuid("1" * 32), Generation(2), Timeline(1), Epoch(3), Epoch(2), WorkerId("w"))
KEY = KeyType(("k",), (pa.int64(),))
ROWS = 300_000
PATH = "segments/00000002/000000000003/w.segment"


def delta() -> Delta:
    numbers = np.arange(ROWS)
    random = np.random.default_rng(1).integers(0, 1 << 62, ROWS)
    return Delta(Epoch(3), Epoch(2), 1, 8, KEY.from_ints(numbers), np.ones(ROWS, bool), {"n": random})


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

    def test_of_nothing_stores_nothing(self) -> None:
        store = MemoryObjects()
        sealed = SealJob(HEADER, [delta().empty()], {}).run(store)
        assert sealed.segment is None and store.list("") == []
