"""Dead letters that a rewind of the job took back: listed no more, and no record appended a second time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import Unavailable
from holdfast.model import Epoch, Tag, Timeline
from holdfast.runtime.job.redrive import Redrive, newest_letters, open_dlq, sources_in
from holdfast.runtime.rows.dead_letters import DEAD_LETTERS, encode_row
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import LocalObjects

LINES = pa.schema([("n", pa.int64())])
LETTERS_OF = "job/dlq/0"


def lines(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)}, LINES)


class Rewound:
    """A log of ten records, number n at offset n, and dead letters of some in two partitions of a DLQ."""

    def __init__(self, folder: Path) -> None:
        self.dlq, self.source = LocalObjects(folder / "dead"), LocalObjects(folder / "source")
        create_log(self.dlq, DEAD_LETTERS, partitions=2)
        create_log(self.source, LINES, partitions=1)
        LogWriter(self.source).append({0: lines(*range(10))})
        self._timeline = 1

    def fail(self, epoch: int, numbers: list[int], form: str = "record", to: int = 0) -> None:
        """Deliver the letters of an epoch."""
        raw = [encode_row(lines(n).to_batches()[0]) for n in numbers]
        rows = [
            {"operator": "f", "source": "s", "partition": 0, "offset": n, "error": "e", "form": form, "raw": r}
            for n, r in zip(numbers, raw, strict=True)
        ]
        tag = Tag(Timeline(self._timeline), Epoch(epoch))
        letters = {to: pa.Table.from_pylist(rows, DEAD_LETTERS)}
        assert LogWriter(self.dlq).append_tagged(letters, LETTERS_OF, tag) is not None

    def rewind(self, epoch: int) -> None:
        """Take back the letters of all later epochs."""
        self._timeline += 1
        back = TakeBack(Tag(Timeline(self._timeline), Epoch(epoch)), (LETTERS_OF,), lambda name: False)
        assert LogWriter(self.dlq).take_back(back)

    def redrive(self) -> Redrive:
        return Redrive("s", self.dlq, self.source, self.source)

    def appended(self) -> Counter[int]:
        """Return what redrives have appended."""
        reader, at = LogReader(self.source), 10
        found: Counter[int] = Counter()
        batch, at = reader.read(0, at, 1 << 30)
        while batch is not None:
            found.update(batch.column("n").to_pylist())
            batch, at = reader.read(0, at, 1 << 30)
        return found

    def listed(self, limit: int = 20) -> list[tuple[int, int]]:
        return [(offset, letter["offset"]) for _, offset, letter in newest_letters(open_dlq(self.dlq), limit)]


@pytest.fixture
def job(tmp_path: Path) -> Rewound:
    return Rewound(tmp_path)


class TestVoidDeadLetters:
    @pytest.fixture
    def job(self, tmp_path: Path) -> Rewound:
        """Letters of 0 to 2 count, those of 3 to 5 do not."""
        job = Rewound(tmp_path)
        job.fail(1, [0, 1, 2])
        job.fail(2, [3, 4, 5])
        job.rewind(1)
        return job

    def test_at_the_end_are_neither_listed_nor_counted_nor_redriven(self, job: Rewound) -> None:
        assert job.listed() == [(0, 0), (1, 1), (2, 2)]
        assert sources_in(open_dlq(job.dlq)) == {"s": 3}
        assert job.redrive().apply().records == 3
        assert job.appended() == Counter([0, 1, 2])

    def test_before_others_are_skipped(self, job: Rewound) -> None:
        job.fail(10, [6, 7])
        assert job.listed() == [(0, 0), (1, 1), (2, 2), (6, 6), (7, 7)]
        assert job.listed(limit=3) == [(2, 2), (6, 6), (7, 7)]
        assert sources_in(open_dlq(job.dlq)) == {"s": 5}
        job.redrive().apply()
        assert job.appended() == Counter([0, 1, 2, 6, 7])

    def test_void_dead_letters_of_two_successive_rewinds_are_skipped(self, job: Rewound) -> None:
        job.fail(10, [3, 4])
        job.redrive().apply()
        job.rewind(1)
        assert job.listed() == [(0, 0), (1, 1), (2, 2)]
        job.fail(20, [6])
        assert job.redrive().apply().records == 1
        assert job.appended() == Counter([0, 1, 2, 3, 4, 6])


class TestRecordsRedrivenBeforeTheRewind:
    def test_are_not_appended_again_when_they_fail_again(self, job: Rewound) -> None:
        job.fail(1, [0])
        job.fail(2, [1, 2])
        job.redrive().apply()
        job.rewind(1)
        job.fail(10, [1, 2, 3, 4])
        planned = job.redrive().plan()
        assert (planned.waiting, planned.records, planned.repeated) == (4, 2, 2)
        job.redrive().apply()
        assert job.appended() == Counter(range(5))
        assert job.redrive().plan().waiting == 0

    def test_are_not_appended_again_if_their_new_letters_are_in_an_earlier_partition(self, job: Rewound) -> None:
        job.fail(1, [0])
        job.fail(2, [1, 2], to=1)
        job.redrive().apply()
        job.rewind(1)
        job.fail(10, [2, 3], to=0)
        job.redrive().apply()
        assert job.appended() == Counter(range(4))

    def test_are_not_appended_again_by_a_redrive_begun_before_the_rewind(self, job: Rewound, tmp_path: Path) -> None:
        """It still sees the void letters; the other redrive, which commits first, sees the new ones."""
        job.fail(1, [0])
        job.fail(2, [1, 2], to=1)
        job.redrive().apply()
        job.fail(3, [5], to=1)
        overtaken: list[str] = []

        class Overtaken(LocalObjects):
            def create(self, path: str, data: bytes) -> None:
                if not overtaken:
                    overtaken.append(path)
                    job.rewind(2)
                    job.fail(10, [5], to=0)
                    job.redrive().apply()
                super().create(path, data)

        with pytest.raises(Unavailable, match="came first"):
            Redrive("s", job.dlq, Overtaken(tmp_path / "source"), job.source).apply()
        assert job.appended() == Counter([0, 1, 2, 5])


class TestRecordsThatBecameVoidInTheirLog:
    def test_are_refused_with_the_reason_and_later_records_are_found(self, job: Rewound) -> None:
        log, writer = LogWriter(job.source), "up/out/0"
        log.append_tagged({0: lines(10)}, writer, Tag(Timeline(1), Epoch(1)))
        log.append_tagged({0: lines(11, 12, 13)}, writer, Tag(Timeline(1), Epoch(2)))
        log.take_back(TakeBack(Tag(Timeline(2), Epoch(1)), (writer,), lambda name: False))
        log.append_tagged({0: lines(14)}, writer, Tag(Timeline(2), Epoch(10)))
        job.fail(1, [10, 11, 12, 13, 14], form="row")
        planned = job.redrive().plan()
        assert planned.records == 2
        assert dict(planned.unfit) == {"a rewind of its writer, or a compaction, removed the record": 3}
