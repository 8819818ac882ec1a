"""Spark reads logs and checkpoints: as tables, and as a stream that is stopped and started again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from logged import Logged
from pyspark.sql import SparkSession
from spark_jvm import end_jvm
from stored_state import app, bid, written_to

import holdfast.spark
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects
from holdfast.testing import TestDriver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("small", pa.uint32())])


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    end_jvm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = _session()
        # The first query of a format starts its Python processes: that counts as the fixture, whichever test is first.
        folder = tmp_path_factory.mktemp("first")
        create_log(LocalObjects(folder), SCHEMA, partitions=1)
        assert session.read.format("holdfast-log").load(str(folder)).collect() == []
        yield session
        session.stop()
        end_jvm()


def _session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("sources")
    for name, value in {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    holdfast.spark.register(session)
    return session


def append(folder: Path, *numbers: int, partition: int = 0) -> None:
    rows = [{"n": number, "small": number} for number in numbers]
    LogWriter(LocalObjects(folder)).append({partition: pa.Table.from_pylist(rows, schema=SCHEMA)})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with 30 rows in the first of two partitions."""
    folder = tmp_path / "log"
    create_log(LocalObjects(folder), SCHEMA, partitions=2)
    append(folder, *range(30))
    return folder


class Stream:
    """A query from the log to files, which ends when it has read what was there at its start."""

    def __init__(self, spark: SparkSession, log: Path, folder: Path, **options: str) -> None:
        self._spark, self._log, self._folder, self._options = spark, log, folder, options

    def run(self) -> int:
        """Return how many micro-batches had rows."""
        read = self._spark.readStream.format("holdfast-log").options(offsets="true", **self._options)
        write = read.load(str(self._log)).writeStream.format("parquet").option("path", str(self._folder / "out"))
        query = write.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(1 for each in query.recentProgress if each["numInputRows"])

    def rows(self) -> list[tuple[int, int, int]]:
        """Return partition, offset and number of the rows that were written, in order."""
        found = self._spark.read.parquet(str(self._folder / "out")).collect()
        return sorted((row["_partition"], row["_offset"], row["n"]) for row in found)


class TestLog:
    def test_a_query_reads_every_row(self, spark: SparkSession, log: Path) -> None:
        append(log, 7, 8, partition=1)
        frame = spark.read.format("holdfast-log").option("offsets", "true").load(str(log))
        assert dict(frame.dtypes) == {"n": "bigint", "small": "bigint", "_partition": "int", "_offset": "bigint"}
        found = sorted((row["_partition"], row["_offset"], row["n"], row["small"]) for row in frame.collect())
        assert found == [(0, n, n, n) for n in range(30)] + [(1, 0, 7, 7), (1, 1, 8, 8)]

    def test_an_empty_log_is_an_empty_table(self, spark: SparkSession, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "empty"), SCHEMA)
        assert spark.read.format("holdfast-log").load(str(tmp_path / "empty")).count() == 0

    def test_a_wrong_option_is_refused_with_its_name(self, spark: SparkSession, log: Path) -> None:
        with pytest.raises(Exception, match="holdfast-log: there is no option 'ofsets'"):
            spark.read.format("holdfast-log").option("ofsets", "true").load(str(log))


class TestStream:
    def test_a_restarted_stream_has_read_every_row_once(self, spark: SparkSession, log: Path, tmp_path: Path) -> None:
        stream = Stream(spark, log, tmp_path, maxRecordsPerTrigger="12")
        assert stream.run() == 3
        assert stream.rows() == [(0, n, n) for n in range(30)]
        assert stream.run() == 0
        append(log, *range(30, 40))
        append(log, 7, 8, partition=1)
        assert LogWriter(LocalObjects(log)).widen(3) == 2
        append(log, 9, partition=2)
        assert stream.run() == 2
        assert stream.rows() == [(0, n, n) for n in range(40)] + [(1, 0, 7), (1, 1, 8), (2, 0, 9)]

    def test_a_log_that_was_recreated_ends_the_stream(self, spark: SparkSession, log: Path, tmp_path: Path) -> None:
        stream = Stream(spark, log, tmp_path)
        stream.run()
        log.rename(tmp_path / "before")
        create_log(LocalObjects(log), SCHEMA, partitions=2)
        append(log, *range(50))
        with pytest.raises(Exception, match="holds another log"):
            stream.run()
        assert len(stream.rows()) == 30

    def test_a_rewind_of_rows_that_were_read_ends_the_stream(self, spark: SparkSession, tmp_path: Path) -> None:
        log = Logged(tmp_path / "log")
        log.deliver(1, 0)
        log.deliver(2, 1, 2)
        stream = Stream(spark, log.folder, tmp_path)
        stream.run()
        log.rewind(1)
        log.deliver(3, 3, timeline=2)
        with pytest.raises(Exception, match=r"startingOffsets \{\"0\":1,\"1\":0\}"):
            stream.run()
        assert stream.rows() == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]


class TestCheckpoints:
    def test_a_job_has_a_row_per_checkpoint(self, spark: SparkSession, tmp_path: Path) -> None:
        with TestDriver(app(), parallelism=2) as driver:
            for number in range(2):
                driver.push("bids", [bid(1, f"p{number}", 1.0)])
                driver.checkpoint()
            written_to(tmp_path, driver)
        frame = spark.read.format("holdfast-checkpoints").options(root=str(tmp_path), job="hot").load()
        rows = frame.orderBy("epoch").collect()
        assert [row["parallelism"] for row in rows] == [2, 2]
        assert [sum(at["offset"] for at in row["offsets"]) for row in rows] == [1, 2]
        assert frame.where("objects > 0 and kind = 'checkpoint' and size(names) = 0").count() == 2
