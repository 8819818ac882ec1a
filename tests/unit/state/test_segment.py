from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Damaged
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state import blocks, changelog, packing
from holdfast.state.changelog import SegmentHeader, SegmentWriter, opened, seal, unseal, write_as
from holdfast.state.keys.batch import KeyType
from holdfast.state.segmentrows import batch_of
from holdfast.state.tables.delta import OperatorDelta

HEADER = SegmentHeader(JobUuid("job"), Generation(3), Timeline(1), Epoch(7), Epoch(5), WorkerId("w1"))
OTHER = JobUuid("other"), Generation(0), Timeline(2)
KINDS = {
    1: KeyType(("k",), (pa.int64(),)),
    2: KeyType(("k", "l"), (pa.utf8(), pa.int32()), (True, False)),
    3: KeyType(("end", "k"), (pa.timestamp("us", "UTC"), pa.int64()), unrouted=1),
    4: KeyType(("k",), (pa.int64(),), (True,)),
    5: KeyType(("k",), (pa.timestamp("ms", "Europe/Paris"),)),
    6: KeyType(("k", "i"), (pa.utf8(), pa.int64()), (True, False), suffix=1),
}
CELLS: dict[int, st.SearchStrategy[tuple[Any, ...]]] = {
    1: st.tuples(st.integers(-9, 9)),
    2: st.tuples(st.sampled_from(["", "a", "a\x00", "xyz", None]), st.integers(-2, 2)),
    3: st.tuples(st.integers(0, 3), st.integers(-9, 9)),
    4: st.tuples(st.integers(-9, 9) | st.none()),
    5: st.tuples(st.integers(-9, 9)),
    6: st.tuples(st.sampled_from(["", "a", "a\x00", None]), st.integers(-9, 9)),
}
Row = tuple[bool, int, float, bool, str | None, bytes, int | None]
NO_MORE: tuple[str | None, bytes, int | None] = (None, b"", None)
values = st.tuples(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none() | st.text("aé", max_size=4),
    st.binary(max_size=3),
    st.none() | st.integers(-9, 9),
)


def delta_of(operator: int, rows: dict[tuple[Any, ...], Row], key_groups: int = 16) -> OperatorDelta:
    kind = KINDS[operator]
    columns = zip(*rows, strict=True) if rows else [()] * len(kind.types)
    keys = kind.encode([pa.array(column, type_) for column, type_ in zip(columns, kind.types, strict=True)])
    puts, counts, levels, flags = (np.array([row[at] for row in rows.values()]) for at in range(4))
    notes, blobs, sizes = ([row[at] for row in rows.values()] for at in range(4, 7))
    return OperatorDelta(
        Epoch(7),
        Epoch(5),
        operator,
        key_groups,
        keys,
        puts.astype(bool),
        {
            "count": counts.astype(np.int64),
            "level": levels.astype(float),
            "flag": flags.astype(bool),
            "note": pa.array(notes, pa.large_utf8()),
            "blob": pa.array(blobs, pa.large_binary()),
            "size": pa.array(sizes, pa.int16()),
        },
    )


def rows_of(delta: OperatorDelta) -> list[tuple[bytes, Row]]:
    parts = (delta.puts, *delta.columns.values())
    return list(
        zip(delta.keys.canonical().to_pylist(), zip(*(part.tolist() for part in parts), strict=True), strict=True)
    )


@st.composite
def deltas(draw: st.DrawFn) -> list[OperatorDelta]:
    """One delta for some of the operators."""
    operators = draw(st.lists(st.sampled_from(sorted(KINDS)), unique=True))
    return [delta_of(operator, draw(st.dictionaries(CELLS[operator], values, max_size=6))) for operator in operators]


class TestSegment:
    @settings(deadline=None)
    @given(deltas())
    def test_holds_what_was_sealed_in_order_of_key_group_and_key(self, given: list[OperatorDelta]) -> None:
        header, read = unseal(seal(HEADER, given))
        assert header == HEADER
        expected = {delta.operator: delta for delta in given if len(delta)}
        assert [delta.operator for delta in read] == sorted(expected)
        for delta in read:
            assert (delta.epoch, delta.follows, delta.key_group_count) == (7, 5, 16)
            assert delta.keys.type == KINDS[delta.operator]
            assert sorted(rows_of(delta)) == sorted(rows_of(expected[delta.operator]))
            groups = delta.keys.key_groups(16).tolist()
            order = list(zip(groups, delta.keys.canonical().to_pylist(), strict=True))
            assert order == sorted(order)

    @settings(deadline=None)
    @given(
        deltas(),
        st.integers(1, 4),
        st.sampled_from([1, 150, 400]),
        st.booleans(),
        st.sampled_from([0, blocks.READ_WHOLE_BYTES]),
        st.tuples(st.integers(0, 16), st.integers(0, 16)).map(sorted),
    )
    def test_in_parts_has_the_rows_of_the_whole(
        self, given: list[OperatorDelta], rows_max: int, batch_bytes: int, packed: bool, at_once: int, groups: list[int]
    ) -> None:
        key_groups, whole = (groups[0], groups[1]), unseal(seal(HEADER, given), (groups[0], groups[1]))[1]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(changelog, "BATCH_BYTES", batch_bytes)
            patched.setattr(changelog, "PACKED_FROM_BYTES", 0 if packed else changelog.PACKED_FROM_BYTES)
            patched.setattr(packing, "_is_worth_it", lambda *_: True)
            patched.setattr(changelog, "ROWS_AT_ONCE", rows_max)
            patched.setattr(blocks, "ROWS_AT_ONCE", rows_max)
            patched.setattr(blocks, "READ_WHOLE_BYTES", at_once)
            segment = opened(seal(HEADER, given))
            read = list(blocks.deltas_of(segment, key_groups))
        assert segment.header == HEADER and all(0 < len(part) <= rows_max for part in read)
        for delta in whole:
            assert rows_of(delta) == [row for part in read if part.operator == delta.operator for row in rows_of(part)]
        assert {part.operator for part in read} == {delta.operator for delta in whole}

    @settings(deadline=None)
    @given(deltas(), st.integers(0, 16), st.integers(0, 16))
    def test_gives_out_the_key_groups_asked_for(self, given: list[OperatorDelta], one: int, other: int) -> None:
        first, end = sorted((one, other))
        _, read = unseal(seal(HEADER, given), (first, end))
        found = {(delta.operator, *row) for delta in read for row in rows_of(delta)}
        assert found == {
            (delta.operator, *row)
            for delta in given
            for group, row in zip(delta.keys.key_groups(16).tolist(), rows_of(delta), strict=True)
            if first <= group < end
        }

    @settings(deadline=None)
    @given(deltas())
    def test_written_as_one_of_another_job_differs_in_its_header_alone(self, given: list[OperatorDelta]) -> None:
        into = io.BytesIO()
        read = write_as(seal(HEADER, given), *OTHER, into)
        other = replace(HEADER, job_uuid=OTHER[0], generation=OTHER[1], timeline=OTHER[2])
        assert into.getvalue() == seal(other, given) and read.header == HEADER

    def test_is_not_written_as_another_one_if_a_byte_differs(self) -> None:
        data = seal(HEADER, [delta_of(4, {(5,): (True, 2, 2.0, False, *NO_MORE)})])
        for at in range(len(data)):
            with pytest.raises(Damaged):
                write_as(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], *OTHER, io.BytesIO())

    def test_keeps_hashes_and_so_key_groups(self) -> None:
        delta = delta_of(4, {(None,): (True, 1, 1.0, True, *NO_MORE), (5,): (True, 2, 2.0, False, *NO_MORE)})
        _, (read,) = unseal(seal(HEADER, [delta]))
        assert sorted(read.keys.hashes.tolist()) == sorted(delta.keys.hashes.tolist())

    def test_is_the_same_bytes_for_the_same_deltas(self) -> None:
        delta = delta_of(1, {(4,): (True, 1, 1.0, True, *NO_MORE), (2,): (False, 0, 0.0, False, *NO_MORE)})
        assert seal(HEADER, [delta]) == seal(HEADER, [delta])

    @pytest.mark.parametrize(("rows", "as_they_are"), [(9, True), (2_000, False)])
    def test_few_rows_lie_in_it_as_they_are_and_many_compressed(self, rows: int, as_they_are: bool) -> None:
        mark = 0x1122_3344_5566_7788
        given: dict[tuple[Any, ...], Row] = {(key,): (True, mark, 1.0, True, *NO_MORE) for key in range(rows)}

        data = seal(HEADER, [delta_of(1, given)])

        _, (read,) = unseal(data)
        assert sorted(rows_of(read)) == sorted(rows_of(delta_of(1, given)))
        assert (mark.to_bytes(8, "little") * rows in data) == as_they_are

    def test_tells_its_header_alone(self) -> None:
        assert opened(seal(HEADER, [])).header == HEADER


class TestDamage:
    DATA = seal(
        HEADER,
        [
            delta_of(1, {(4,): (True, 1, 1.0, True, *NO_MORE), (2,): (False, 0, 0.0, False, *NO_MORE)}),
            delta_of(2, {("a", 1): (True, 1, 1.0, True, "é", b"\xff", 3)}),
        ],
    )

    def test_damage_to_any_single_byte_is_detected(self) -> None:
        for position in range(len(self.DATA)):
            for flip in (0x01, 0x80, 0xFF):
                data = bytearray(self.DATA)
                data[position] ^= flip
                with pytest.raises(Damaged):
                    unseal(bytes(data))

    def test_by_missing_bytes_is_found_at_every_length(self) -> None:
        for length in range(len(self.DATA)):
            with pytest.raises(Damaged):
                unseal(self.DATA[:length])
            with pytest.raises(Damaged):
                unseal(self.DATA[length + 1 :])

    def test_by_added_bytes_is_found(self) -> None:
        for data in (self.DATA + b"\x00", b"\x00" + self.DATA, self.DATA + self.DATA):
            with pytest.raises(Damaged):
                unseal(data)


class TestWriter:
    def test_passes_nothing_on_after_an_error_has_ended_it(self, capfd: pytest.CaptureFixture[str]) -> None:
        """Arrow writes what it holds when it frees its streams: then the file is closed, and it would complain."""

        class Closing:
            closed = False

            def write(self, data: bytes) -> int:
                assert not self.closed, "written after it was closed"
                return len(data)

        def batches() -> Iterator[pa.RecordBatch]:
            rows = np.arange(300_000)
            yield batch_of(np.zeros(rows.size, np.uint16), pa.array(rows), np.ones(rows.size, bool), {"c": rows})
            raise OSError(28, "No space left on device")

        into = Closing()
        with pytest.raises(OSError, match="No space"), SegmentWriter(into, HEADER) as writer:
            writer.block(1, KINDS[1], 16, batches())
        into.closed = True
        del writer
        gc.collect()
        assert capfd.readouterr().err == ""


class TestPacking:
    def test_packs_what_shrinks_by_it(self) -> None:
        rows, random = np.arange(20_000), np.random.default_rng(1)
        columns = {
            "sum": rows * 7,
            "random": random.integers(-(1 << 63), (1 << 63) - 1, rows.size),
            "distinct": random.integers(-(1 << 63), (1 << 63) - 1, 99)[rows % 99],
            "small": rows.astype(np.int32),
        }
        keys, puts = KINDS[1].from_ints(rows), np.ones(rows.size, bool)
        data = seal(HEADER, [OperatorDelta(Epoch(7), Epoch(5), 1, 2, keys, puts, columns)])
        [block] = opened(data).blocks
        assert block.packed == ("key", "sum")
        [read] = unseal(data)[1]
        order = np.argsort(read.columns["small"])
        assert all((read.columns[name][order] == values).all() for name, values in columns.items())
