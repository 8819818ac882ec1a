"""A job whose source voids records that the job has read fails with that reason, wherever it is detected."""

from __future__ import annotations

from pathlib import Path

import pytest
from words_job import ROWS, Words

from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.log import LogWriter
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import LocalObjects

WRITER = "another-job/out/0"


@pytest.fixture
def words(tmp_path: Path) -> Words:
    """A job that has read the output of another job, which is then rewound to an earlier epoch."""
    job = Words(tmp_path)
    log = LogWriter(LocalObjects(str(tmp_path / "rows")))
    for epoch in (1, 2):
        rows = ROWS.empty_table().from_pylist([{"word": "a", "n": epoch}], schema=ROWS)
        log.append_tagged({0: rows}, WRITER, Tag(Timeline(1), Epoch(epoch)))
    job.cluster.pass_time(3.0)
    log.take_back(TakeBack(Tag(Timeline(2), Epoch(1)), (WRITER,), lambda _: False))
    return job


class TestVoidRecords:
    def test_fail_the_run_when_a_heartbeat_detects_them(self, words: Words) -> None:
        for member in words.cluster.members.values():
            member.loop.take_stock()
        reported = [member.loop.heartbeat() for member in words.cluster.members.values()]
        assert any(beat.broken and beat.generation == words.job.generation for beat in reported)
        self.ends_with_the_cause(words)

    def test_fail_the_run_when_a_read_detects_them(self, words: Words) -> None:
        words.cluster.settle()
        self.ends_with_the_cause(words)

    def ends_with_the_cause(self, words: Words) -> None:
        words.cluster.pass_time(3.0)
        assert words.cluster.driver.outcome is not None
        kind, error = words.cluster.driver.outcome
        assert (kind, error and error.kind) == ("failed", "damaged")
        assert error is not None and "were removed by a rewind" in error.what
