"""The audit of a source log whose own writer was rewound, with void ranges at every place that an epoch can have."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.audit import Audit, SourceTaken
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import Epoch, Generation, JobUuid, Tag, Timeline
from holdfast.runtime.audit import reading as audit_reading
from holdfast.runtime.audit.report import Line
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.worker.digests import records_digested
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.log.voids import TakeBack
from holdfast.storage.objects import LocalObjects

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
WRITER = "job/out/0"


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": list(numbers)}, SCHEMA)


@pytest.fixture
def source(tmp_path: Path) -> hf.Log:
    """Offsets 0 to 2 hold rows, 3 to 5 are void, 6 to 8 hold rows, 9 to 11 are void."""
    create_log(LocalObjects(tmp_path / "log"), SCHEMA, partitions=1)
    log = LogWriter(LocalObjects(tmp_path / "log"))
    for base, first in ((1, 0), (10, 6)):
        log.append_tagged({0: rows(*range(first, first + 3))}, WRITER, Tag(Timeline(base), Epoch(base)))
        log.append_tagged({0: rows(97, 98, 99)}, WRITER, Tag(Timeline(base), Epoch(base + 1)))
        log.take_back(TakeBack(Tag(Timeline(base + 1), Epoch(base)), (WRITER,), lambda name: False))
    return hf.Log(tmp_path / "log")


def audit(source: hf.Log, first: int, end: int, *numbers: int) -> Line:
    """Audit an epoch that took these numbers, the offsets from `first` to `end`."""
    taken = SourceTaken("log", 0, first, end, records_digested(rows(*numbers).combine_chunks().to_batches()[0], "rows"))
    manifest = Manifest(
        JobUuid("job"),
        Generation(1),
        Timeline(1),
        Epoch(1),
        Epoch(0),
        1,
        128,
        (),
        (),
        (),
        (),
        (),
        audit=Audit((taken,), (), (), (), Epoch(0)),
    )
    (line,) = audit_reading.sources([SourceSpec("log", source.source(), 0)], [manifest])
    return line


class TestAuditOfARewoundSourceLog:
    @pytest.mark.parametrize(
        ("first", "end", "numbers"),
        [
            (0, 9, (0, 1, 2, 6, 7, 8)),
            (0, 3, (0, 1, 2)),
            (3, 9, (6, 7, 8)),
            (3, 7, (6,)),
            (1, 8, (1, 2, 6, 7)),
            (7, 9, (7, 8)),
        ],
    )
    def test_proves_records_read_past_void_ranges(
        self, source: hf.Log, first: int, end: int, numbers: tuple[int, ...]
    ) -> None:
        line = audit(source, first, end, *numbers)
        assert (line.verdict, line.found) == ("proven", len(numbers)), line

    def test_differs_where_other_rows_were_read(self, source: hf.Log) -> None:
        assert audit(source, 0, 9, 0, 1, 2, 6, 7, 9).verdict == "differs"

    def test_does_not_replace_a_void_row_by_a_row_after_the_end(self, source: hf.Log) -> None:
        line = audit(source, 0, 5, 0, 1, 2, 97, 98)
        assert (line.verdict, line.found) == ("differs", 3)
