"""Records of a topic: the rows of segments come back bit for bit, and people can read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import Damaged
from holdfast.model import NO_EPOCH, Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.evolution import by_name
from holdfast.state.keys.batch import KeyType
from holdfast.state.records import DELETED, RECORDS, deltas_in, places_of, records_of
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.state.tables.values import arrow

COUNT, WHOLE = 16, (0, 16)
EPOCH, BEFORE = Epoch(7), Epoch(5)
NAMES = {1: "numbers", 2: "texts", 3: "windows"}
TIME = pa.timestamp("us", "UTC")
SPECS = {
    1: TableSpec(
        1,
        "numbers",
        KeyType(("n",), (pa.int64(),)),
        (ColumnSpec("count", np.dtype(np.int64)), ColumnSpec("mean", np.dtype(np.float64))),
    ),
    2: TableSpec(
        2,
        "texts",
        KeyType(("name", "big"), (pa.large_utf8(), pa.uint64()), (True, True)),
        (
            ColumnSpec("note", pa.large_utf8(), nullable=True),
            ColumnSpec("blob", pa.large_binary()),
            ColumnSpec("size", np.dtype(np.int32), nullable=True),
            ColumnSpec("sure", np.dtype(np.bool_), nullable=True),
        ),
    ),
    3: TableSpec(3, "windows", KeyType(("end", "k"), (TIME, pa.utf8()), unrouted=1), ()),
}
ROWS: dict[int, tuple[list[list[Any]], list[bool], dict[str, Any]]] = {
    1: (
        [[-(1 << 63), -1, 0, 1, (1 << 63) - 1]],
        [True, True, False, True, True],
        {
            "count": np.array([1, -5, 0, 1 << 62, 3]),
            "mean": np.array([float("nan"), -0.0, 0.0, float("inf"), 0.1]),
        },
    ),
    2: (
        [["a", None, "", "a\x00b", "é"], [1, None, (1 << 64) - 1, 0, 5]],
        [True, True, True, False, True],
        {
            "note": pa.array(["x\x00", None, "", None, 'say "é"'], pa.large_utf8()),
            "blob": pa.array([b"\xff\x00", b"", b"z", b"", b"q" * 300], pa.large_binary()),
            "size": pa.array([1, None, -(1 << 31), None, 7], pa.int32()),
            "sure": pa.array([True, None, False, None, True], pa.bool_()),
        },
    ),
    3: ([[20, 20, 30], ["a", "b", "a"]], [True, False, True], {}),
}


def delta(number: int, key: KeyType | None = None) -> OperatorDelta:
    columns, puts, values = ROWS[number]
    kind = key or SPECS[number].key
    keys = kind.encode([pa.array(each, kind) for each, kind in zip(columns, kind.types, strict=True)])
    return OperatorDelta(EPOCH, BEFORE, number, COUNT, keys, np.array(puts), dict(values))


def header() -> SegmentHeader:
    return SegmentHeader(JobUuid("job"), Generation(3), Timeline(1), EPOCH, BEFORE, WorkerId("w1"))


def stored(data: bytes) -> pa.RecordBatch:
    """Return the records of a segment as a log holds them: the mark first."""
    records = pa.concat_batches(list(records_of(data, NAMES)))
    assert records.schema == RECORDS.append(DELETED)
    return _marked(records)


def rows(deltas: Iterator[OperatorDelta]) -> dict[tuple[Any, ...], Any]:
    """Return values by (operator, key), None for a delete; floats as their bits."""
    found: dict[tuple[Any, ...], Any] = {}
    for each in deltas:
        assert (each.epoch, each.follows, each.key_group_count) == (EPOCH, NO_EPOCH, COUNT)
        named = by_name(each, SPECS[each.operator])
        columns = {name: _bits(values) for name, values in named.columns.items()}
        keys = zip(*(column.to_pylist() for column in each.kind.decode(each.keys)), strict=True)
        for row, key in enumerate(keys):
            place = (each.operator, *key)
            assert place not in found
            found[place] = {name: values[row] for name, values in columns.items()} if each.puts[row] else None
    return found


def _bits(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return list(values.view(np.int64).tolist())
    return list(arrow(values).to_pylist())


def wanted() -> dict[tuple[Any, ...], Any]:
    found: dict[tuple[Any, ...], Any] = {}
    for number, (columns, puts, values) in ROWS.items():
        keys = [pa.array(each, kind).to_pylist() for each, kind in zip(columns, SPECS[number].key.types, strict=True)]
        bits = {name: _bits(column) for name, column in values.items()}
        for row, key in enumerate(zip(*keys, strict=True)):
            found[number, *key] = {name: column[row] for name, column in bits.items()} if puts[row] else None
    return found


def everything() -> pa.RecordBatch:
    return stored(seal(header(), [delta(number) for number in ROWS]))


class TestRecords:
    def test_give_back_every_row_bit_for_bit(self) -> None:
        assert rows(deltas_in(everything(), SPECS, WHOLE, COUNT, EPOCH)) == wanted()

    def test_give_each_row_to_the_range_of_its_key_group(self) -> None:
        found: dict[tuple[Any, ...], Any] = {}
        for first in range(0, COUNT, 4):
            part = rows(deltas_in(everything(), SPECS, (first, first + 4), COUNT, EPOCH))
            assert not found.keys() & part.keys()
            found |= part
        assert found == wanted()

    def test_records_of_operators_removed_from_the_code_are_skipped(self) -> None:
        found = rows(deltas_in(everything(), {2: SPECS[2]}, WHOLE, COUNT, EPOCH))
        assert found == {key: values for key, values in wanted().items() if key[0] == 2}

    def test_records_of_two_declarations_may_be_mixed(self) -> None:
        narrow = TableSpec(1, "numbers", KeyType(("n",), (pa.int32(),)), SPECS[1].columns)
        old = OperatorDelta(
            EPOCH,
            BEFORE,
            1,
            COUNT,
            narrow.key.encode([pa.array([8, 9], pa.int32())]),
            np.array([True, False]),
            {"count": np.array([1, 2], np.int64), "mean": np.array([0.5, 0.5], np.float32)},
        )
        both = pa.concat_batches([stored(seal(header(), [old])), stored(seal(header(), [delta(1)]))])
        found = rows(deltas_in(both, SPECS, WHOLE, COUNT, EPOCH))
        half = int(np.float64(0.5).view(np.int64))
        only_ones = {key: values for key, values in wanted().items() if key[0] == 1}
        assert found == only_ones | {(1, 8): {"count": 1, "mean": half}, (1, 9): None}

    def test_records_of_a_large_segment_are_returned_in_parts(self) -> None:
        many = np.arange(100_000)
        keys = SPECS[1].key.encode([pa.array(many)])
        columns = {"count": many, "mean": many / 2}
        segment = seal(header(), [OperatorDelta(EPOCH, BEFORE, 1, COUNT, keys, np.ones(many.size, bool), columns)])
        parts = [rows(deltas_in(_marked(part), SPECS, WHOLE, COUNT, EPOCH)) for part in records_of(segment, NAMES)]
        assert len(parts) > 1 and sum(map(len, parts)) == many.size
        found = {key[1]: values["count"] for part in parts for key, values in part.items()}
        assert found == {n: n for n in range(many.size)}

    def test_are_in_the_order_of_key_groups(self) -> None:
        operators, groups = places_of(everything().column("key"), COUNT)
        assert (np.diff(operators * COUNT + groups) >= 0).all()

    def test_can_be_read_by_people(self) -> None:
        shown = [
            (r["operator"], r["epoch"], json.loads(r["row_key"]), json.loads(r["row"]))
            for r in everything().to_pylist()
            if not r["deleted"]
        ]
        texts = [each for each in shown if each[0] == "texts"]
        assert (
            "texts",
            7,
            {"name": "a", "big": 1},
            {"note": "x\x00", "blob": "ff00", "size": 1, "sure": True},
        ) in texts
        assert (
            "texts",
            7,
            {"name": None, "big": None},
            {"note": None, "blob": "", "size": None, "sure": None},
        ) in texts
        assert ("numbers", 7, {"n": -(1 << 63)}, {"count": 1, "mean": None}) in shown
        at = datetime(1970, 1, 1, 0, 0, 0, 20, UTC).isoformat()
        assert ("windows", 7, {"end": at, "k": "a"}, {}) in shown

    def test_name_an_operator_that_has_left_the_code_by_its_number(self) -> None:
        (found,) = records_of(seal(header(), [delta(3)]), {})
        assert set(found.column("operator").to_pylist()) == {"3"}


class TestDamage:
    @pytest.mark.parametrize(
        ("column", "value", "why"),
        [
            ("key", b"\x00\x01\x00\x01", "too short"),
            ("key", b"\x00\x01\x00\x10" + b"\x01" * 9, "key group 16"),
            ("layout", None, "no layout"),
            ("layout", '[["count"]]', "layout"),
            ("layout", "{", "layout"),
            ("value", b"\x01\x02", "not what its layout says"),
            ("value", None, "has no value"),
        ],
    )
    def test_is_refused(self, column: str, value: Any, why: str) -> None:
        records = stored(seal(header(), [delta(1)]))
        at = records.schema.get_field_index(column)
        values = [value, *records.column(column).to_pylist()[1:]]
        field = RECORDS.field(column).with_nullable(True)
        spoilt = records.set_column(at, field, pa.array(values, field.type))
        with pytest.raises(Damaged, match=why):
            list(deltas_in(spoilt, SPECS, WHOLE, COUNT, EPOCH))


def _marked(records: pa.RecordBatch) -> pa.RecordBatch:
    columns = [records.column(DELETED.name), *records.columns[:-1]]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([DELETED, *RECORDS]))
