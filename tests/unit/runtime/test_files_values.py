"""Values at the edges of files: what `hf.Files` makes of them, compared with DuckDB and Python's standard library."""

from __future__ import annotations

import csv
import io
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.runtime.rows.dead_letters import ERROR
from holdfast.runtime.rows.schema import data_schema_of
from holdfast.runtime.sources.reading import split

TEXT = pa.schema([("a", pa.string())])
TIME = pa.schema([("t", pa.timestamp("us", "UTC"))])
TWO = pa.schema([("a", pa.string()), ("b", pa.string())])


def rows_of(folder: Path, form: Any, schema: pa.Schema, data: bytes, bytes_max: int = 1 << 20) -> list[dict[str, Any]]:
    """Return the rows of a file, read in pieces of so many bytes."""
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / "a").write_bytes(data)
    rows, at = list[dict[str, Any]](), 0
    source = hf.Files(folder / "in", schema, form, partitions=1).source().in_folder(str(folder / "job"))
    with closing(source.copied(again=True).open()) as opened:
        while True:
            batch, following = opened.read(0, at, bytes_max)
            if batch is None:
                return rows
            found = split(batch)[0].to_pylist()
            rows += [{name: row[name] for name in schema.names} for row in found if row.get(ERROR) is None]
            at = following


def by_duckdb(folder: Path) -> list[str | None]:
    with duckdb.connect() as db:
        return [row[0] for row in db.read_csv(str(folder / "in" / "a"), header=True, all_varchar=True).fetchall()]


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Address:
    zip: int | None
    city: str


@dataclass
class Order:
    id: Annotated[UUID, hf.field(alias="_id")]
    tags: list[str]
    prices: dict[str, int | None]
    to: Address | None
    past: list[Address]
    color: Color
    at: time


ORDERS = """
    SELECT uuid '6f9b0f6e-0000-4000-8000-00000000000a' AS _id, ['a', ''] AS tags,
        map {'x': 1::bigint, 'y': NULL} AS prices,
        {'city': 'Bonn', 'zip': 5::int, 'extra': 1} AS "to", [{'city': 'Ulm', 'zip': 1}] AS past,
        'red'::enum('red', 'blue') AS color, time '09:30:00.000001' AS at
    UNION ALL
    SELECT uuid '6f9b0f6e-0000-4000-8000-00000000000b', [], map {}, NULL, [], 'blue', time '00:00:00'
"""


class TestNestedColumns:
    def test_nested_parquet_columns_are_read_as_another_program_wrote_them(self, tmp_path: Path) -> None:
        with duckdb.connect() as db:
            db.sql(ORDERS).write_parquet(str(tmp_path / "orders"))
        assert rows_of(tmp_path, "parquet", data_schema_of(Order), (tmp_path / "orders").read_bytes()) == [
            {
                "_id": "6f9b0f6e-0000-4000-8000-00000000000a",
                "tags": ["a", ""],
                "prices": [("x", 1), ("y", None)],
                "to": {"zip": 5, "city": "Bonn"},
                "past": [{"zip": 1, "city": "Ulm"}],
                "color": "red",
                "at": time(9, 30, 0, 1),
            },
            {
                "_id": "6f9b0f6e-0000-4000-8000-00000000000b",
                "tags": [],
                "prices": [],
                "to": None,
                "past": [],
                "color": "blue",
                "at": time(0),
            },
        ]

    def test_nested_csv_columns_are_refused_at_planning(self, tmp_path: Path) -> None:
        with pytest.raises(hf.ConfigError, match=r"column 'tags' is list<.*>, which CSV does not have") as caught:
            hf.Files(tmp_path, Order, "csv")
        assert "use JSON lines or Parquet, which have lists, dicts and dataclasses" in str(caught.value)

    def test_times_of_day_ids_and_enums_of_csv_are_texts(self, tmp_path: Path) -> None:
        schema = pa.schema([("id", pa.string()), ("at", pa.time64("us")), ("color", pa.string())])
        text = "id,at,color\nx,09:30:00.1234567,red\ny,25:00:00,red\nz,,blue\n"
        assert rows_of(tmp_path, "csv", schema, text.encode()) == [
            {"id": "x", "at": time(9, 30, 0, 123456), "color": "red"},
            {"id": "z", "at": None, "color": "blue"},
        ]


class TestCsv:
    @pytest.mark.parametrize("bytes_max", [1, 8, 1 << 20])
    def test_a_value_that_begins_with_a_byte_order_mark_is_the_same_in_every_batch(
        self, tmp_path: Path, bytes_max: int
    ) -> None:
        text = "a,b\n\ufeffx,1\ny,2\n\ufeff,3\n"
        found = [row["a"] for row in rows_of(tmp_path, "csv", TWO, text.encode(), bytes_max)]
        assert found == [row["a"] for row in csv.DictReader(io.StringIO(text))] == ["\ufeffx", "y", "\ufeff"]

    @pytest.mark.parametrize("header", ["a", '"a"'])
    def test_the_mark_of_the_file_is_no_part_of_the_first_name(self, tmp_path: Path, header: str) -> None:
        assert rows_of(tmp_path, "csv", TEXT, f"\ufeff{header}\nx\n".encode()) == [{"a": "x"}]

    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("bytes_max", [1, 1 << 20])
    def test_a_blank_line_of_a_file_with_one_column_is_an_empty_value(
        self, tmp_path: Path, end: str, bytes_max: int
    ) -> None:
        data = end.join(["a", "1", "", "2", "", ""]).encode()
        found = [row["a"] for row in rows_of(tmp_path, "csv", TEXT, data, bytes_max)]
        assert found == by_duckdb(tmp_path) == ["1", None, "2", None]

    def test_a_blank_line_of_a_file_with_several_columns_is_no_row(self, tmp_path: Path) -> None:
        found = [row["a"] for row in rows_of(tmp_path, "csv", TWO, b"a,b\n1,x\n\n2,y\n")]
        assert found == by_duckdb(tmp_path) == ["1", "2"]

    @pytest.mark.parametrize("form", ["csv", "jsonl"])
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)),
            ("1969-12-31T23:59:59.9999999Z", datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
            ("2026-01-02T03:04:05.123456789+01:00", datetime(2026, 1, 2, 2, 4, 5, 123456, UTC)),
            ("2026-01-02 03:04Z", datetime(2026, 1, 2, 3, 4, 0, 0, UTC)),
        ],
    )
    def test_digits_behind_the_microseconds_are_dropped_in_every_text_format(
        self, tmp_path: Path, form: str, text: str, expected: datetime
    ) -> None:
        data = f"t\n{text}\n" if form == "csv" else f'{{"t": "{text}"}}\n'
        assert rows_of(tmp_path, form, TIME, data.encode()) == [{"t": expected}]

    @pytest.mark.parametrize("text", ["2026-01-02T03:04:05", "2026-01-02", "soon", '""', "2026-01-02T03:04:05.1234567"])
    def test_a_time_without_a_zone_is_refused(self, tmp_path: Path, text: str) -> None:
        assert rows_of(tmp_path, "csv", TIME, f"t\n{text}\n2026-01-02T03:04:05Z\n".encode()) == [
            {"t": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}
        ]


FAR = [
    datetime(1, 1, 1),
    datetime(1582, 10, 15),
    datetime(1677, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2262, 4, 12),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
]


class TestInt96:
    def written(self, kind: pa.DataType, values: list[datetime]) -> bytes:
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({"t": pa.array(values, kind)}), out, use_deprecated_int96_timestamps=True)
        return bytes(out.getvalue().to_pybytes())

    def test_times_outside_of_nanoseconds_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        schema = pa.schema([("t", pa.timestamp("us"))])
        data = self.written(pa.timestamp("us"), FAR)
        assert [row["t"] for row in rows_of(tmp_path, "parquet", schema, data)] == FAR
        with duckdb.connect() as db:
            assert [t for (t,) in db.read_parquet(str(tmp_path / "in/a")).fetchall()] == FAR

    def test_digits_behind_the_microseconds_are_dropped(self, tmp_path: Path) -> None:
        whole = pa.array([1, -1], pa.int64()).view(pa.timestamp("ns"))
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({"t": whole}), out, use_deprecated_int96_timestamps=True)
        schema = pa.schema([("t", pa.timestamp("us"))])
        found = [row["t"] for row in rows_of(tmp_path, "parquet", schema, out.getvalue().to_pybytes())]
        assert found == [datetime(1970, 1, 1), datetime(1970, 1, 1) - timedelta(microseconds=1)]

    def test_they_are_not_read_as_nanoseconds(self, tmp_path: Path) -> None:
        data = self.written(pa.timestamp("us"), FAR[:1])
        with pytest.raises(hf.HoldfastError, match=r"column 't' is INT96, which is read as timestamp\[us\]"):
            rows_of(tmp_path, "parquet", pa.schema([("t", pa.timestamp("ns"))]), data)
