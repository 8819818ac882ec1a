"""The data source `holdfast-state`, driven as Spark drives it, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import DayTimeIntervalType, LongType, StringType, TimestampType
from stored_state import START, app, bid, written_to

import holdfast as hf
from holdfast.runtime.spark.tables.columns import spark_type
from holdfast.runtime.spark.tables.state_source import KeyGroupRange, StateSource
from holdfast.testing import TestDriver


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a job of two subtasks and two checkpoints, of 40 and 60 places."""
    with TestDriver(app(), parallelism=2) as driver:
        driver.push("bids", [bid(1, f"p{i}", 1.0, i) for i in range(40)])
        driver.checkpoint()
        driver.push("bids", [bid(1, f"p{i}", 1.0, i) for i in range(60)])
        driver.checkpoint()
        written_to(tmp_path, driver)
    return tmp_path


def source(root: Path, **options: str) -> StateSource:
    return StateSource({"root": str(root), "job": "hot", "operator": "places"} | options)


def read(given: StateSource) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of partitions and the rows of all tasks."""
    reader = given.reader(given.schema())
    partitions = reader.partitions()
    batches: Iterator[pa.RecordBatch] = (batch for partition in partitions for batch in reader.read(partition))
    return len(partitions), [row for batch in batches for row in batch.to_pylist()]


class TestStateSource:
    def test_the_columns_are_those_of_the_results(self, root: Path) -> None:
        schema = source(root).schema()
        assert schema.names == ["place", "n", "avg", "last"]
        assert (schema["place"].dataType, schema["n"].dataType) == (StringType(), LongType())
        assert (schema["last"].dataType, schema["n"].nullable) == (TimestampType(), False)

    def test_there_is_a_partition_per_subtask(self, root: Path) -> None:
        partitions, rows = read(source(root))
        assert partitions == 2
        assert {row["place"]: row["n"] for row in rows} == {f"p{i}": 2 if i < 40 else 1 for i in range(60)}
        assert len(rows) == 60 and rows[0]["last"] >= START

    @pytest.mark.parametrize("wanted", [1, 3, 128])
    def test_the_number_of_partitions_can_be_chosen(self, root: Path, wanted: int) -> None:
        partitions, rows = read(source(root, partitions=str(wanted)))
        assert (partitions, len({row["place"] for row in rows}), len(rows)) == (wanted, 60, 60)

    def test_an_epoch_can_be_chosen(self, root: Path) -> None:
        epochs = [row["n"] for row in read(source(root, epoch="1"))[1]]
        assert epochs == [1] * 40

    def test_every_task_reads_the_epoch_of_the_plan(self, root: Path) -> None:
        given = source(root, epoch="latest")
        reader = given.reader(given.schema())
        assert reader._planned.epoch.isdecimal()
        assert reader.partitions() == [KeyGroupRange(0, 64), KeyGroupRange(64, 128)]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"job": ""}, "no option 'job' is given"),
            ({"operater": "x"}, "there is no option 'operater'"),
            ({"job": "cold"}, "there is no job 'cold'"),
            ({"operator": "x"}, "has no state of an operator 'x'"),
            ({"epoch": "77"}, "no checkpoint of epoch 77"),
            ({"partitions": "0"}, "is '0'"),
            ({"partitions": "129"}, "from 1 to 128"),
            ({"partitions": "two"}, "is 'two'"),
        ],
    )
    def test_wrong_options_are_refused_when_the_query_is_planned(
        self, root: Path, options: dict[str, str], said: str
    ) -> None:
        with pytest.raises(hf.ConfigError) as refused:
            source(root, **options).schema()
        assert said in str(refused.value)

    @pytest.mark.parametrize(
        ("kind", "shown"),
        [
            (pa.uint32(), "bigint"),
            (pa.uint64(), "decimal(20,0)"),
            (pa.timestamp("ns", "UTC"), "timestamp"),
            (pa.date32(), "date"),
            (pa.large_utf8(), "string"),
            (pa.float32(), "float"),
        ],
    )
    def test_types_that_spark_lacks_are_widened(self, kind: pa.DataType, shown: str) -> None:
        assert spark_type(kind).simpleString() == shown

    def test_a_duration_is_an_interval(self) -> None:
        assert isinstance(spark_type(pa.duration("us")), DayTimeIntervalType)
