"""Records of an incident: packed, unpacked, and read again from every offset, with gaps and lost ranges."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from holdfast.errors import Damaged, Unavailable
from holdfast.runtime.plan.ahead import Read, inline
from holdfast.runtime.plan.source import OFFSETS
from holdfast.runtime.replay.incidents.container import (
    IncidentContents,
    IncidentWriter,
    PackedCheckpoint,
    PackedMember,
    RecordedPartition,
    Unpacked,
)
from holdfast.runtime.replay.incidents.recorded import RecordedSource, TakenPartition, pack, unpacked
from holdfast.runtime.replay.spans import Range
from holdfast.runtime.sources.reading import split

PLAIN = pa.record_batch({"n": [10, 11, 12]})
PLACED = pa.record_batch({"n": [14, 17, 18], OFFSETS: [14, 17, 18]})
PARTITION = TakenPartition(
    Range("rows", 2, 10, 21),
    5,
    (
        (Read(PLAIN, 13), 6),
        (Read(PLACED, 19), 7),
        (Read(None, 20, lost=True), 7),
        (Read(pa.record_batch({"n": [20], OFFSETS: [20]}), 21), 8),
    ),
)
PLACES = (10, 11, 12, 14, 17, 18, 20)


def in_file(partition: TakenPartition) -> tuple[RecordedPartition, Unpacked]:
    into = io.BytesIO()
    writer = IncidentWriter(into)
    recorded = pack(partition, writer)
    manifest = writer.add("end/manifest.json", b"{}")

    def contents(members: Mapping[str, PackedMember]) -> IncidentContents:
        end = PackedCheckpoint(1, manifest, {})
        return IncidentContents(1, "sales", 7, None, end, (recorded,), {}, None, (), {}, {}, {}, (), dict(members))

    writer.finish(contents)
    file = Unpacked(io.BytesIO(into.getvalue()), "a file")
    return file.contents.input[0], file


def numbers(source: RecordedSource, offset: int) -> tuple[list[int], list[bool]]:
    """Read a partition to its end; return its records, and which reads were lost."""
    reader, rows, lost = source.reader(2, offset, inline()), list[int](), list[bool]()
    while (read := reader.poll(1 << 20)) is not None and read.following > offset:
        offset = read.following
        lost.append(read.lost)
        rows += [] if read.batch is None else split(read.batch)[0].column("n").to_pylist()
    return rows, lost


class TestRecords:
    def test_are_the_same_after_a_file(self) -> None:
        again = unpacked(*in_file(PARTITION))
        assert again == PARTITION

    @pytest.mark.parametrize("offset", range(10, 22))
    def test_are_given_from_every_offset_on(self, offset: int) -> None:
        source = RecordedSource("rows", [PARTITION])
        rows, lost = numbers(source, offset)
        assert rows == [n for n in PLACES if n >= offset]
        assert lost.count(True) == (1 if offset < 20 else 0)

    def test_show_the_time_that_the_source_reported(self) -> None:
        source = RecordedSource("rows", [PARTITION])
        assert [source.watermark(2, at) for at in (10, 12, 13, 18, 19, 21)] == [5, 5, 6, 6, 7, 8]

    def test_begin_with_the_first(self) -> None:
        source = RecordedSource("rows", [PARTITION])
        assert (source.partitions(), source.retention_start(2), source.end_offsets()) == ([2], 10, {2: 21})
        with pytest.raises(Unavailable, match="has no record 9 of partition 2 of source 'rows': they begin at 10"):
            source.read(2, 9, 1)

    @pytest.mark.parametrize(
        "change",
        [
            lambda of: replace_reads(of, lambda reads: reads[:-1]),
            lambda of: replace_reads(of, lambda reads: [*reads[:-1], [reads[-1][0] + 1, *reads[-1][1:]]]),
            lambda of: replace_reads(of, lambda reads: [[0, 10, None, False], *reads]),
        ],
    )
    def test_batches_that_do_not_fit_their_places_are_damaged(self, change: object) -> None:
        recorded, file = in_file(PARTITION)
        assert callable(change)
        with pytest.raises(Damaged, match="are not those that it names"):
            unpacked(change(recorded), file)


def replace_reads(of: RecordedPartition, change: object) -> RecordedPartition:
    assert callable(change)
    plain = msgspec.to_builtins(of)
    plain["members"] = [[path, change(list(reads))] for path, reads in plain["members"]]
    return msgspec.convert(plain, RecordedPartition)


def test_an_empty_partition_has_no_records() -> None:
    empty = replace(PARTITION, at=Range("rows", 2, 10, 10), reads=())
    assert unpacked(*in_file(empty)) == empty
    assert numbers(RecordedSource("rows", [empty]), 10) == ([], [])
