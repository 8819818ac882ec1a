"""Folders that hold values of columns, and files that are rolled."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.sinks.files.hive import (
    NAME_BYTES_MAX,
    NoFolder,
    Partitioning,
    folder_of,
    value_of,
    values_in,
)
from holdfast.sinks.files.rolling import FinishedFile, Rolling, empty_file, is_empty

NUMBERS = pa.schema([pa.field("n", pa.int64())])
DEFAULT = "__HIVE_DEFAULT_PARTITION__"


def numbers(*found: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(found, pa.int64())], schema=NUMBERS)


def folders(values: list[Any], kind: pa.DataType, how: Partitioning | None = None) -> list[str]:
    batch = pa.record_batch({"c": pa.array(values, kind)})
    found = (how or Partitioning(("c",))).folders(batch)
    assert found is not None
    texts: list[str] = found.to_pylist()
    return texts


class TestFolders:
    @pytest.mark.parametrize(
        ("value", "kind", "folder"),
        [
            ("eu west", pa.string(), "c=eu west"),
            ("a/b=c%:", pa.large_string(), "c=a%2Fb%3Dc%25%3A"),
            ("x\n'\"*?#\\{}[]^\x7f", pa.string(), "c=x%0A%27%22%2A%3F%23%5C%7B}%5B%5D%5E%7F"),
            ("zürich", pa.string(), "c=zürich"),
            ("..", pa.string(), "c=.."),
            (DEFAULT, pa.string(), "c=%5F_HIVE_DEFAULT_PARTITION__"),
            ("", pa.string(), f"c={DEFAULT}"),
            (None, pa.string(), f"c={DEFAULT}"),
            (None, pa.int32(), f"c={DEFAULT}"),
            (-7, pa.int64(), "c=-7"),
            (2**64 - 1, pa.uint64(), "c=18446744073709551615"),
            (True, pa.bool_(), "c=true"),
            (date(2026, 1, 2), pa.date32(), "c=2026-01-02"),
        ],
    )
    def test_a_value_is_written_as_spark_writes_it(self, value: Any, kind: pa.DataType, folder: str) -> None:
        assert folders([value], kind) == [folder] == [folder_of("c", value)]

    @given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
    @example(DEFAULT)
    def test_every_text_is_read_as_it_was(self, text: str) -> None:
        folder = folder_of("c", text)
        assert "/" not in folder and values_in(f"{folder}/part-1.parquet") == {"c": text}

    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            (-7, pa.int16()),
            (False, pa.bool_()),
            (date(1969, 12, 31), pa.date32()),
            ("a%b", pa.string()),
            (None, pa.int8()),
        ],
    )
    def test_every_value_is_read_as_it_was(self, value: Any, kind: pa.DataType) -> None:
        text = values_in(f"{folder_of('c', value)}/x/part-1.parquet")["c"]
        assert value_of(text, kind) == pa.scalar(value, kind)

    @pytest.mark.parametrize(
        ("text", "kind"),
        [("300", pa.int8()), ("1_000", pa.int64()), (" 1", pa.int64()), ("yes", pa.bool_()), ("26-1-1", pa.date32())],
    )
    def test_a_folder_of_another_type_is_refused(self, text: str, kind: pa.DataType) -> None:
        with pytest.raises(NoFolder):
            value_of(text, kind)

    def test_the_date_of_a_timestamp_is_that_of_utc(self) -> None:
        times = [datetime(2026, 11, 26, 23, 59, tzinfo=UTC), datetime(1969, 12, 31, 23, tzinfo=UTC), None]
        for kind in (pa.timestamp("us", "UTC"), pa.timestamp("ms", "Asia/Tokyo"), pa.timestamp("ns")):
            given = times if kind.tz else [each and each.replace(tzinfo=None) for each in times]
            found = folders(given, kind, Partitioning((), "c"))
            assert found == ["date=2026-11-26", "date=1969-12-31", f"date={DEFAULT}"]

    def test_rows_keep_their_order_within_a_folder(self) -> None:
        batch = pa.record_batch({"c": ["x", "y", "x", "y", "x"], "n": [1, 2, 3, 4, 5]})
        found = {folder: rows.column("n").to_pylist() for folder, rows in Partitioning(("c",)).split(batch)}
        assert found == {"c=x": [1, 3, 5], "c=y": [2, 4]}

    def test_several_columns_are_levels(self) -> None:
        batch = pa.record_batch({"c": ["x", None], "n": [1, 2], "t": pa.array([0, 86_400], pa.timestamp("s"))})
        found = [folder for folder, _ in Partitioning(("n", "c"), "t").split(batch)]
        assert found == ["n=1/c=x/date=1970-01-01", f"n=2/c={DEFAULT}/date=1970-01-02"]

    @pytest.mark.parametrize("year", [10_000, -1])
    def test_a_date_that_no_reader_knows_is_refused(self, year: int) -> None:
        with pytest.raises(NoFolder, match="outside the years 1 to 9999"):
            folders([(year - 1970) * 31_556_952], pa.timestamp("s"), Partitioning((), "c"))

    def test_a_name_that_is_too_long_is_refused(self) -> None:
        assert folders(["x" * (NAME_BYTES_MAX - 2)], pa.string())
        with pytest.raises(NoFolder, match="more than 255 bytes"):
            folders(["ü" * 127], pa.string())


class TestPartitioning:
    @pytest.mark.parametrize(
        ("how", "why"),
        [
            (Partitioning(("gone",)), "no column 'gone' to partition by"),
            (Partitioning(("price",)), "column 'price' is double"),
            (Partitioning(("_hidden",)), "readers would leave out"),
            (Partitioning(("a=b",)), "readers would leave out, or misread"),
            (Partitioning(("n", "n")), "names a column twice"),
            (Partitioning((), "n"), "no column 'n' of timestamps"),
            (Partitioning((), "at"), "the stream has a column 'date'"),
        ],
    )
    def test_partitioning_that_readers_could_not_use_is_refused(self, how: Partitioning, why: str) -> None:
        kinds = {"n": pa.int64(), "price": pa.float64(), "_hidden": pa.string(), "a=b": pa.string()}
        schema = pa.schema([*kinds.items(), ("at", pa.timestamp("us")), ("date", pa.string())])
        with pytest.raises(NoFolder, match=why):
            how.refuse(schema)

    def test_leaves_a_column_for_the_files(self) -> None:
        with pytest.raises(NoFolder, match="no column for the files"):
            Partitioning(("n",)).refuse(NUMBERS)


class TestRolling:
    def test_files_are_finished_at_their_size_and_keep_the_order_of_rows(self) -> None:
        rolling, files = Rolling(NUMBERS, file_bytes=4_000), list[FinishedFile]()
        for first in range(0, 4_000, 100):
            files += rolling.add("x", numbers(*range(first, first + 100)))
        files += rolling.rest()
        assert len(files) > 2 and all(4_000 <= len(file.data) < 20_000 for file in files[:-1])
        found = [n for file in files for n in pq.read_table(io.BytesIO(file.data)).column("n").to_pylist()]
        assert found == list(range(4_000)) and [file.rows for file in files] == [
            pq.read_metadata(io.BytesIO(file.data)).num_rows for file in files
        ]

    def test_each_folder_has_files_of_its_own(self) -> None:
        rolling = Rolling(NUMBERS, file_bytes=1 << 20)
        assert not list(rolling.add("x", numbers(1))) and not list(rolling.add("y", numbers(2)))
        assert not list(rolling.add("x", numbers(3))) and not list(rolling.add("z", numbers()))
        assert [(file.folder, file.rows) for file in rolling.rest()] == [("x", 2), ("y", 1)]

    def test_the_largest_file_is_finished_when_memory_is_full(self) -> None:
        rolling = Rolling(NUMBERS, file_bytes=1 << 20, memory_bytes_max=8_000)
        assert not list(rolling.add("small", numbers(1)))
        (early,) = rolling.add("large", numbers(*range(1_000)))
        assert (early.folder, early.rows) == ("large", 1_000)
        assert [(file.folder, file.rows) for file in rolling.rest()] == [("small", 1)]

    def test_a_file_without_rows_has_the_columns(self) -> None:
        data = empty_file(NUMBERS)
        assert is_empty(data) and pq.read_table(io.BytesIO(data)).schema.equals(NUMBERS)
        (file,) = [*(rolling := Rolling(NUMBERS, 1 << 20)).add("", numbers(1)), *rolling.rest()]
        assert not is_empty(file.data) and not is_empty(b"PAR1")

    def test_readers_of_hive_folders_find_the_values(self, tmp_path: Any) -> None:
        batch = pa.record_batch({"c": ["a/b", "é", None], "n": [1, 2, 3]})
        how = Partitioning(("c",))
        rolling = Rolling(how.in_files(batch.schema), 1 << 20)
        for folder, rows in how.split(batch):
            for file in [*rolling.add(folder, rows), *rolling.rest()]:
                (tmp_path / folder).mkdir(parents=True)
                (tmp_path / folder / "part.parquet").write_bytes(file.data)
        found = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table().to_pylist()
        assert {row["n"]: row["c"] for row in found} == {1: "a/b", 2: "é", 3: None}
