"""The data source `holdfast-log`, driven as Spark drives it, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from logged import Logged
from pyspark.sql.types import DecimalType, IntegerType, LongType, StringType, StructField, StructType

import holdfast as hf
from holdfast.errors import Damaged, Unavailable
from holdfast.runtime.spark.tables import log_source
from holdfast.runtime.spark.tables.log_ranges import LogRange
from holdfast.runtime.spark.tables.log_source import LogBatchReader, LogDataSource
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects


@pytest.fixture
def log(tmp_path: Path) -> Logged:
    made = Logged(tmp_path / "log")
    made.append(0, 1, 2)
    made.append(10, partition=1)
    made.append(3, 4)
    return made


def source(log: Logged, **options: str) -> LogDataSource:
    return LogDataSource({"path": str(log.folder)} | {name.lower(): value for name, value in options.items()})


def planned(given: LogDataSource) -> LogBatchReader:
    """Plan a query; the reader is sent to the tasks pickled."""
    sent: LogBatchReader = pickle.loads(pickle.dumps(given.reader(given.schema())))  # noqa: S301 - made here
    return sent


def read(reader: LogBatchReader) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def numbers(reader: LogBatchReader) -> list[int]:
    return [row["n"] for row in read(reader)]


class TestColumns:
    def test_they_are_those_of_the_log(self, log: Logged) -> None:
        schema = source(log).schema()
        assert [(each.name, each.dataType, each.nullable) for each in schema] == [
            ("n", LongType(), False),
            ("word", StringType(), True),
        ]

    def test_the_place_of_each_row_can_be_asked_for(self, log: Logged) -> None:
        given = source(log, offsets="true")
        assert [each.dataType for each in given.schema()][2:] == [IntegerType(), LongType()]
        found = [(row["_partition"], row["_offset"], row["n"]) for row in read(planned(given))]
        assert found == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 3, 3), (0, 4, 4), (1, 0, 10)]

    def test_columns_of_the_log_with_these_names_are_read_but_never_mixed_up(self, tmp_path: Path) -> None:
        schema = pa.schema([pa.field("_Offset", pa.int64()), pa.field("_partition", pa.int64())])
        create_log(LocalObjects(tmp_path), schema, 1)
        LogWriter(LocalObjects(tmp_path)).append({0: pa.table([[77], [88]], schema=schema)})
        assert read(planned(LogDataSource({"path": str(tmp_path)}))) == [{"_Offset": 77, "_partition": 88}]
        with pytest.raises(hf.ConfigError, match="has a column '_Offset' of its own"):
            LogDataSource({"path": str(tmp_path), "offsets": "true"}).schema()

    def test_unsigned_integers_are_widened(self, tmp_path: Path) -> None:
        schema = pa.schema([pa.field("u", pa.uint64())])
        create_log(LocalObjects(tmp_path), schema, 1)
        LogWriter(LocalObjects(tmp_path)).append({0: pa.table([pa.array([2**64 - 1], pa.uint64())], schema=schema)})
        given = LogDataSource({"path": str(tmp_path)})
        assert given.schema()["u"].dataType == DecimalType(20, 0)
        assert read(planned(given)) == [{"u": 2**64 - 1}]

    def test_a_value_that_spark_cannot_hold_is_an_error_with_its_column(self, tmp_path: Path) -> None:
        schema = pa.schema([pa.field("at", pa.timestamp("ns", "UTC"))])
        create_log(LocalObjects(tmp_path), schema, 1)
        LogWriter(LocalObjects(tmp_path)).append({0: pa.table([pa.array([1], schema.types[0])], schema=schema)})
        with pytest.raises(hf.ConfigError, match="column 'at' has the type"):
            read(planned(LogDataSource({"path": str(tmp_path)})))

    def test_a_query_can_name_the_columns_that_it_reads(self, log: Logged) -> None:
        reader = source(log).reader(StructType([StructField("word", StringType())]))
        assert read(reader)[:2] == [{"word": "w0"}, {"word": "w1"}]

    @pytest.mark.parametrize(
        ("asked", "said"),
        [(StructField("x", LongType()), "no column 'x'"), (StructField("n", StringType()), "bigint, not string")],
    )
    def test_columns_that_the_log_does_not_have_are_refused(self, log: Logged, asked: StructField, said: str) -> None:
        with pytest.raises(hf.ConfigError, match=said):
            source(log).reader(StructType([asked]))

    def test_a_column_added_after_the_query_was_planned_is_left_out(self, log: Logged) -> None:
        given = source(log)
        schema = given.schema()
        LogWriter(log.store).grow(pa.schema([pa.field("size", pa.float64())]))
        assert read(given.reader(schema))[0] == {"n": 0, "word": "w0"}


class TestRows:
    def test_they_are_those_of_the_commit_that_was_newest_when_the_query_was_planned(self, log: Logged) -> None:
        reader = planned(source(log))
        log.append(5, 6)
        LogWriter(log.store).widen(3)
        assert numbers(reader) == [0, 1, 2, 3, 4, 10]
        assert numbers(planned(source(log))) == [0, 1, 2, 3, 4, 5, 6, 10]

    def test_there_is_a_task_for_every_partition_even_if_it_is_empty(self, tmp_path: Path) -> None:
        reader = planned(source(Logged(tmp_path / "log")))
        assert [(part.partition, part.first, part.end) for part in reader.partitions()] == [(0, 0, 0), (1, 0, 0)]
        assert read(reader) == []

    def test_rows_that_a_rewind_took_back_are_not_read(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log")
        log.deliver(1, 1)
        log.deliver(2, 2, 3)
        log.append(4)
        log.rewind(1)
        assert numbers(planned(source(log, offsets="true"))) == [1, 4]

    def test_a_compacted_log_gives_the_rows_that_are_left(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log", keyed=True)
        log.append(1, 2, 1)
        log.compact()
        log.append(2)
        found = read(planned(source(log, offsets="true")))
        assert [(row["_offset"], row["n"]) for row in found] == [(1, 2), (2, 1), (3, 2)]

    def test_a_sealed_log_is_read_as_any_other(self, log: Logged) -> None:
        LogWriter(log.store).seal()
        assert len(read(planned(source(log)))) == 6

    def test_a_large_partition_is_read_in_parts(self, log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.runtime.spark.tables.log_ranges.READ_BYTES_MAX", 1)
        assert numbers(planned(source(log))) == [0, 1, 2, 3, 4, 10]


class TestStartAndEnd:
    @pytest.mark.parametrize(
        ("options", "found"),
        [
            ({"startingOffsets": "latest"}, []),
            ({"endingOffsets": "earliest"}, []),
            ({"startingOffsets": '{"0": 3}'}, [3, 4, 10]),
            ({"endingOffsets": '{"0": 2}'}, [0, 1, 10]),
            ({"startingOffsets": '{"0": 1, "1": 1}', "endingOffsets": '{"0": 4}'}, [1, 2, 3]),
        ],
    )
    def test_they_can_be_chosen(self, log: Logged, options: dict[str, str], found: list[int]) -> None:
        assert numbers(planned(source(log, **options))) == found

    @pytest.mark.parametrize("offset", range(5))
    def test_an_offset_in_a_range_that_was_taken_back_gives_the_next_row(self, tmp_path: Path, offset: int) -> None:
        log = Logged(tmp_path / "log")
        log.deliver(1, 0)
        log.deliver(2, 1, 2)
        log.append(3, 4)
        log.rewind(1)
        wanted = [n for n in (0, 3, 4) if n >= offset]
        assert numbers(planned(source(log, startingOffsets=f'{{"0": {offset}}}'))) == wanted
        assert numbers(planned(source(log, endingOffsets=f'{{"0": {offset}}}'))) == [n for n in (0, 3, 4) if n < offset]


class TestWrongOptions:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"ofsets": "true"}, "there is no option 'ofsets'"),
            ({"path": ""}, "no option 'path' is given"),
            ({"offsets": "yes"}, "option(\"offsets\") is 'yes'"),
            ({"startingOffsets": "first"}, "option(\"startingOffsets\") is 'first'"),
            ({"startingOffsets": '{"7": 0}'}, "there is no partition 7; choose from 0 to 1"),
            ({"startingOffsets": '{"0": 6}'}, "from 0 to 5 for partition 0"),
            ({"endingOffsets": '{"0": -1}'}, "from 0 to 5 for partition 0"),
            ({"startingOffsets": '{"0": 3}', "endingOffsets": '{"0": 2}'}, "partition 0 would end at offset 2"),
            ({"maxRecordsPerTrigger": "5"}, "there is no option 'maxrecordspertrigger'"),
        ],
    )
    def test_are_refused_when_the_query_is_planned(self, log: Logged, options: dict[str, str], said: str) -> None:
        with pytest.raises(hf.ConfigError) as refused:
            planned(source(log, **options))
        assert said in str(refused.value) and refused.value.not_done == "no row was read"

    def test_a_path_without_a_log_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(hf.ConfigError, match="no log exists at"):
            LogDataSource({"path": str(tmp_path / "none")}).schema()
        assert not (tmp_path / "none").exists()

    def test_a_path_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(hf.ConfigError, match="is a file, not a folder"):
            LogDataSource({"path": str(tmp_path / "file")}).schema()

    def test_a_store_that_is_unreachable_is_reported(self, log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
        class Away(LocalObjects):
            def get(self, path: str) -> bytes:
                raise Unavailable(f"{path} cannot be read", next_step="try again")

        monkeypatch.setattr(log_source, "open_objects", lambda path, writable: Away(path))
        with pytest.raises(Unavailable):
            source(log).schema()

    def test_a_version_of_spark_without_limits_of_batches_has_no_stream(
        self, log: Logged, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(log_source, "find_spec", lambda _: None)
        with pytest.raises(hf.ConfigError, match="needs Spark 4.2 or newer, this is 4"):
            source(log).streamReader(source(log).schema())


class TestChangesWhileAQueryRuns:
    """What happens between the plan of a query and its tasks, which must not give other rows than were planned."""

    def test_a_rewind_of_planned_rows_is_refused(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log")
        log.deliver(1, 1)
        log.deliver(2, 2)
        log.append(3)
        reader = planned(source(log))
        log.rewind(1)
        with pytest.raises(Damaged, match="offset 1 to before 2 of partition 0 were removed by a rewind") as refused:
            read(reader)
        assert "run the query again" in refused.value.next_step

    def test_a_rewind_of_rows_behind_the_planned_ones_changes_nothing(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log")
        log.deliver(1, 1)
        reader = planned(source(log))
        log.deliver(2, 2)
        log.rewind(1)
        assert numbers(reader) == [1]

    def test_a_compaction_of_planned_rows_is_refused(self, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log", keyed=True)
        log.append(1)
        reader = planned(source(log))
        log.append(1)  # replaces the row that was planned, from beyond the planned end
        log.compact()
        with pytest.raises(Damaged, match="the log was compacted"):
            read(reader)

    def test_a_compaction_that_comes_during_a_read_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.runtime.spark.tables.log_ranges.READ_BYTES_MAX", 1)
        log = Logged(tmp_path / "log", keyed=True)
        for number in (1, 2, 3):
            log.append(number)
        reader = planned(source(log))
        batches = reader.read(reader.partitions()[0])
        assert next(batches)["n"].to_pylist() == [1]
        log.append(2, 3)
        log.compact()
        log.compact()  # deletes the objects that the first one replaced
        with pytest.raises(Damaged, match="the log was compacted"):
            list(batches)

    def test_a_recreated_log_is_refused(self, log: Logged) -> None:
        reader = planned(source(log))
        log.recreate()
        log.append(*range(9))
        log.append(*range(9), partition=1)
        with pytest.raises(Damaged, match="holds another log"):
            read(reader)

    def test_a_log_restored_from_an_older_copy_is_refused(self, log: Logged) -> None:
        log.copy()
        log.append(5)
        reader = planned(source(log))
        log.restore()
        log.append(99)
        with pytest.raises(Damaged, match="restored from an older copy and appended to"):
            read(reader)

    def test_a_range_is_sent_to_its_task_with_all_that_it_checks(self, log: Logged) -> None:
        part = planned(source(log)).partitions()[0]
        assert pickle.loads(pickle.dumps(part)) == part  # noqa: S301 - made here
        assert isinstance(part, LogRange) and part.seen.commit == 3
