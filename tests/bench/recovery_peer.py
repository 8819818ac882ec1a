"""The peer of the benchmark of recovery: the same table from Spark Structured Streaming, rows from Parquet files.

Run by spark-submit, with the folder of the files, how many of them a batch reads, the folder for checkpoints, the
database, and `sql` or `python`: whether the rows pass through a Python function first. Such tasks have a Python process
that can be killed; those of SQL alone run in the executor. With a seventh word, the time between two batches; without
it, the program reads everything and ends. State is in RocksDB with a changelog.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SCHEMA = "user string, page long, amount long, part long"
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows through Python."""
    return batches


def main(rows: str, files: str, checkpoints: str, database: str, step: str, every: str = "") -> None:
    """Count until killed, or to the end."""
    session = SparkSession.builder.appName("peer").config(map=dict(SETTINGS)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    read = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files).parquet(rows)
    if step == "python":
        read = read.mapInArrow(unchanged, SCHEMA)
    measures = f.count("*").alias("n"), f.sum("amount").alias("total"), f.max("amount").alias("worst")
    with contextlib.closing(sqlite3.connect(database, check_same_thread=False)) as table:
        table.execute("CREATE TABLE IF NOT EXISTS users (user TEXT PRIMARY KEY, n INT, total INT, worst INT)")

        def keep(batch: DataFrame, _: int) -> None:
            """Replace the changed rows in one transaction; a repeated batch changes nothing."""
            changed = [tuple(row.values()) for row in batch.toArrow().to_pylist()]
            with table:
                table.executemany("INSERT OR REPLACE INTO users VALUES (?, ?, ?, ?)", changed)

        write = read.groupBy("user").agg(*measures).writeStream.outputMode("update").foreachBatch(keep)
        write = write.option("checkpointLocation", checkpoints)
        write = write.trigger(processingTime=every) if every else write.trigger(availableNow=True)
        write.start().awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
