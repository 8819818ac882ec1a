"""The rows that the streamed merge of stored pieces gives, compared with a dictionary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from merged_pieces import compact

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state import blocks, changelog, columns, packing
from holdfast.state.blocks import BlockReader, StateRows
from holdfast.state.changelog import SegmentHeader, opened, seal
from holdfast.state.columns import columns_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.merged import Chained, compared, merged
from holdfast.state.packing import packed
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.expiry import NOTHING
from holdfast.state.tables.spec import ColumnSpec, TableSpec

GROUPS, WHOLE = 8, (0, 8)
TIME = pa.timestamp("us", "UTC")
KINDS = {
    "integer": KeyType(("k",), (pa.int64(),)),
    "unsigned": KeyType(("k",), (pa.uint64(),)),
    "text": KeyType(("k",), (pa.utf8(),), (True,)),
    "window": KeyType(("end", "k"), (TIME, pa.utf8()), unrouted=1),
    "list": KeyType(("k", "i"), (pa.utf8(), pa.int64()), (True, False), suffix=1),
}
CELLS: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "integer": st.tuples(st.integers(-40, 40)),
    "unsigned": st.tuples(st.integers(0, 40) | st.integers((1 << 64) - 9, (1 << 64) - 1)),
    "text": st.tuples(st.none() | st.text("ab\x00", max_size=4)),
    "window": st.tuples(st.integers(-3, 6), st.text("abcde", min_size=1, max_size=1)),
    "list": st.tuples(st.none() | st.text("ab\x00", max_size=2), st.integers(-3, 9)),
}
Key = tuple[Any, ...]
Row = tuple[int, float, bool, str | None, int | None]
State = dict[Key, Row]
NO_ROW: Row = (0, 0.0, False, None, None)


@dataclass(frozen=True)
class Wrote:
    """One epoch: rows by key, None deletes; the windows that it erases first, by key group."""

    rows: dict[Key, Row | None]
    through: dict[int, int]


@st.composite
def epochs(draw: st.DrawFn, kind: str) -> list[Wrote]:
    floats, texts = st.floats(width=32, allow_nan=False), st.none() | st.text("aé", max_size=3)
    values = st.tuples(st.integers(-9, 9), floats, st.booleans(), texts, st.none() | st.integers(0, 2))
    rows = st.dictionaries(CELLS[kind], st.none() | values, max_size=30)
    ranges = st.dictionaries(st.integers(0, GROUPS - 1), st.integers(-4, 7), max_size=4)
    return [
        Wrote(draw(rows), draw(ranges) if kind == "window" else {})
        for _ in range(draw(st.integers(min_value=1, max_value=6)))
    ]


def encoded(kind: str, keys: Iterable[Key]) -> Any:
    listed = list(keys)
    columns = zip(*listed, strict=True) if listed else [()] * len(KINDS[kind].types)
    return KINDS[kind].encode([pa.array(list(c), t) for c, t in zip(columns, KINDS[kind].types, strict=True)])


def group_of(kind: str, key: Key) -> int:
    return int(encoded(kind, [key]).key_groups(GROUPS)[0])


def sealed(kind: str, number: int, wrote: Wrote) -> bytes:
    rows = [NO_ROW if row is None else row for row in wrote.rows.values()]
    columns = {
        "n": np.array([row[0] for row in rows], np.int64),
        "level": np.array([row[1] for row in rows], np.float64),
        "flag": np.array([row[2] for row in rows], bool),
        "note": pa.array([row[3] for row in rows], pa.large_utf8()),
        "size": pa.array([row[4] for row in rows], pa.int16()),
    }
    through = None
    if wrote.through:
        through = np.full(GROUPS, NOTHING)
        through[list(wrote.through)] = list(wrote.through.values())
    puts = np.array([row is not None for row in wrote.rows.values()], bool)
    keys = encoded(kind, wrote.rows)
    delta = OperatorDelta(Epoch(number), Epoch(number - 1), 7, GROUPS, keys, puts, columns, through)
    return seal(header(number, number - 1), [delta])


def spec_of(kind: str) -> TableSpec:
    types = {"n": np.int64, "level": np.float64, "flag": np.bool_}
    plain = (ColumnSpec(name, np.dtype(each)) for name, each in types.items())
    note, size = ColumnSpec("note", pa.utf8(), nullable=True), ColumnSpec("size", np.dtype(np.int16), nullable=True)
    return TableSpec(7, "state", KINDS[kind], (*plain, note, size))


def header(epoch: int, follows: int) -> SegmentHeader:
    return SegmentHeader(JobUuid("1" * 32), Generation(1), Timeline(1), Epoch(epoch), Epoch(follows), WorkerId("w"))


def model(kind: str, written: Iterable[Wrote]) -> State:
    state: State = {}
    for wrote in written:
        gone = [key for key in state if wrote.through.get(group_of(kind, key), -99) >= key[0]] if wrote.through else []
        for key in gone:
            del state[key]
        for key, row in wrote.rows.items():
            state.pop(key, None)
            if row is not None:
                state[key] = row
    return state


def readers(pieces: Iterable[tuple[bytes, tuple[int, int]]]) -> list[BlockReader]:
    found = [(opened(data), span) for data, span in pieces]
    return [BlockReader(each.file, block, span) for each, span in found for block in each.blocks]


def state_of(parts: Iterable[StateRows]) -> State:
    """Return the rows as a state; their order is checked."""
    found: State = {}
    places = []
    for rows in parts:
        assert len(rows) and rows.puts.all()
        keys = zip(*(cells(column) for column in rows.key_columns()), strict=True)
        found |= dict(zip(keys, zip(*(v.tolist() for v in rows.columns.values()), strict=True), strict=True))
        places += [rows.place(row) for row in range(len(rows))]
    assert places == sorted(set(places)) and len(places) == len(found)
    return found


def cells(column: pa.Array) -> list[Any]:
    return list((column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())


@pytest.fixture(autouse=True, params=[0, blocks.READ_WHOLE_BYTES], ids=["by column", "whole batches"])
def _few_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read few rows at a time, and write several record batches."""
    monkeypatch.setattr(blocks, "READ_WHOLE_BYTES", request.param)
    monkeypatch.setattr(blocks, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(changelog, "ROWS_AT_ONCE", 5)
    monkeypatch.setattr(changelog, "BATCH_BYTES", 300)
    monkeypatch.setattr(changelog, "PACKED_FROM_BYTES", 0)
    monkeypatch.setattr(packing, "_is_worth_it", lambda *_: True)


class TestMerge:
    @pytest.mark.parametrize("kind", KINDS)
    @settings(deadline=None, max_examples=50)
    @given(data=st.data())
    def test_the_newest_row_of_a_key_wins_and_ranges_and_tombstones_erase(self, kind: str, data: st.DataObject) -> None:
        written = data.draw(epochs(kind))
        pieces = [(sealed(kind, number, wrote), WHOLE) for number, wrote in enumerate(written, 1)]
        assert state_of(merged(readers(pieces))) == model(kind, written)

    @pytest.mark.parametrize("kind", KINDS)
    @settings(deadline=None, max_examples=40)
    @given(data=st.data())
    def test_a_base_below_newer_pieces_changes_nothing(self, kind: str, data: st.DataObject) -> None:
        written = data.draw(epochs(kind))
        pieces = [(sealed(kind, number, wrote), WHOLE) for number, wrote in enumerate(written, 1)]
        until = data.draw(st.integers(1, len(pieces)))
        base = compact(header(until, 0), pieces[:until], [spec_of(kind)])
        assert state_of(merged(readers([(base, WHOLE), *pieces[until:]]))) == model(kind, written)

    @pytest.mark.parametrize("kind", ["text", "window"])
    @settings(deadline=None, max_examples=40)
    @given(data=st.data())
    def test_a_piece_counts_only_for_its_key_groups(self, kind: str, data: st.DataObject) -> None:
        """After a rescale the owner of the first key groups has a base, the owner of the others has the old pieces."""
        written = data.draw(epochs(kind))
        cut, until = data.draw(st.integers(1, GROUPS - 1)), data.draw(st.integers(1, len(written)))
        pieces = [sealed(kind, number, wrote) for number, wrote in enumerate(written, 1)]
        base = compact(header(until, 0), [(piece, (0, cut)) for piece in pieces[:until]], [spec_of(kind)])
        left = [(base, (0, cut)), *((piece, (0, cut)) for piece in pieces[until:])]
        right = [(piece, (cut, GROUPS)) for piece in pieces]
        # One subtask that owns all key groups again reads the pieces of both.
        assert state_of(merged(readers([*left[:1], *right[:until], *((p, WHOLE) for p in pieces[until:])]))) == model(
            kind, written
        )
        assert {**state_of(merged(readers(left))), **state_of(merged(readers(right)))} == model(kind, written)

    def test_nothing_stored_gives_no_rows(self) -> None:
        assert list(merged([])) == []

    def test_a_range_alone_gives_no_rows(self) -> None:
        assert list(merged(readers([(sealed("window", 1, Wrote({}, {3: 5})), WHOLE)]))) == []

    def test_values_are_not_read_where_only_keys_are_asked_for(self) -> None:
        data = sealed("text", 1, Wrote({("a",): (1, 2.0, True, "a", None)}, {}))
        segment = opened(data)
        [rows] = merged([BlockReader(segment.file, segment.blocks[0], WHOLE, keys_only=True)])
        assert len(rows) == 1 and rows.columns == {}


class TestRowsOfAUserKey:
    def test_are_found_whatever_their_suffix(self) -> None:
        written: dict[Key, Any] = {
            (user, number): (number, 0.0, False, None, None)
            for user in ("a", "a\x00", "", None)
            for number in (-1, 256)
        }
        (reader,) = readers([(sealed("list", 1, Wrote(written, {})), (0, GROUPS))])
        rows = [
            part.take(part.same_key(reader.kind.routed.encode([pa.array(["a"])]))) for part in iter(reader.read, None)
        ]
        assert state_of(part for part in rows if len(part)) == {
            ("a", -1): (-1, 0.0, False, None, None),
            ("a", 256): (256, 0.0, False, None, None),
        }


class TestComparison:
    @pytest.mark.parametrize("kind", KINDS)
    @settings(deadline=None, max_examples=40)
    @given(data=st.data())
    def test_it_names_every_key_that_differs_once(self, kind: str, data: st.DataObject) -> None:
        written = data.draw(epochs(kind))
        until = data.draw(st.integers(0, len(written)))
        pieces = [(sealed(kind, number, wrote), WHOLE) for number, wrote in enumerate(written, 1)]
        old, new = model(kind, written[:until]), model(kind, written)
        sides = [Chained(merged(readers(each))) for each in (pieces[:until], pieces)]
        found: dict[str, State] = {"added": {}, "removed": {}, "before": {}, "after": {}}
        for each in compared(*sides):
            if each.change == "changed":
                assert each.before is not None and each.after is not None
                assert [each.before.place(i) for i in range(len(each.before))] == [
                    each.after.place(i) for i in range(len(each.after))
                ]
                found["before"] |= state_of([each.before])
                found["after"] |= state_of([each.after])
            else:
                [rows] = [side for side in (each.before, each.after) if side is not None]
                found[each.change] |= state_of([rows])
        differ = {key for key in old.keys() & new.keys() if old[key] != new[key]}
        assert found == {
            "added": {key: row for key, row in new.items() if key not in old},
            "removed": {key: row for key, row in old.items() if key not in new},
            "before": {key: old[key] for key in differ},
            "after": {key: new[key] for key in differ},
        }

    def test_a_value_that_is_no_number_equals_itself(self) -> None:
        data = sealed("text", 1, Wrote({("a",): (1, float("nan"), True, None, 1)}, {}))
        sides = [Chained(merged(readers([(data, WHOLE)]))) for _ in range(2)]
        assert list(compared(*sides)) == []


class TestColumns:
    @pytest.mark.parametrize("whole_bytes_max", [0, 1 << 20])
    @settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, 3_000), st.sampled_from([None, "zstd", "lz4"]), st.booleans(), st.integers(0, 9), st.data())
    def test_they_hold_what_the_reader_of_arrow_gives(
        self,
        monkeypatch: pytest.MonkeyPatch,
        whole_bytes_max: int,
        rows: int,
        compression: str | None,
        pack: bool,
        seed: int,
        data: st.DataObject,
    ) -> None:
        monkeypatch.setattr(columns, "WHOLE_BYTES_MAX", whole_bytes_max)
        random = np.random.default_rng(seed)
        texts = [bytes(random.integers(0, 3, random.integers(0, 9)).astype(np.uint8)) for _ in range(rows)]
        batch = pa.record_batch(
            {
                "small": pa.array(random.integers(0, 9, rows), pa.uint16()),
                "bits": pa.array(random.random(rows) > 0.5, pa.bool_()),
                "text": pa.array(texts, pa.large_binary()),
                "nothing": pa.nulls(rows, pa.large_binary()),
                "key": pa.array(np.sort(random.integers(-(1 << 63), 1 << 62, rows))),
                "level": pa.array(random.random(rows)),
                "note": pa.array(texts, pa.large_binary(), mask=random.random(rows) > 0.7).cast(pa.large_utf8()),
                "size": pa.array(random.integers(0, 9, rows), mask=random.random(rows) > 0.99),
                "sure": pa.array(random.random(rows) > 0.5, mask=random.random(rows) > 0.5),
            }
        )
        sink = pa.BufferOutputStream()
        names = ("key", "level", "size") if pack else ()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(packed(batch, names))
        file = pa.BufferReader(sink.getvalue())
        schema = pa.ipc.read_schema(file)
        found = columns_of(file, file.tell(), schema, packed=names)
        at = 0
        while at < rows:
            step = data.draw(st.integers(1, rows))
            end = min(rows, at + step)
            if data.draw(st.booleans()):
                for column in found.values():
                    column.skip(end - at)
            else:
                part = batch.slice(at, end - at)
                for name in ("small", "bits", "key", "level"):
                    assert (found[name].take(end - at) == part.column(name).to_numpy(zero_copy_only=False)).all()
                for name in ("text", "note", "nothing", "size", "sure"):
                    assert found[name].take(end - at).tolist() == part.column(name).to_pylist()
            at = end
