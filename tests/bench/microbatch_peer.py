"""The peer of the microbatch benchmarks: the same results in Spark Structured Streaming, rows from Parquet files.

Run as a program, with the name of a query, the folder of the files, how many of them an epoch reads, and the folder for
checkpoints. It prints a JSON object per epoch. The sink takes the result rows and does nothing with them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "4g",
}


@dataclass(frozen=True)
class Query:
    """A job of ours, as Structured Streaming has it."""

    schema: str
    output_mode: str
    results: Callable[[DataFrame], DataFrame]


def _counts(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))


def _windows(rows: DataFrame) -> DataFrame:
    windows = rows.withWatermark("at", "1 second").groupBy("k", f.window("at", "10 seconds"))
    return windows.agg(f.count("*").alias("n"), f.sum("v").alias("total"), f.max("v").alias("top"))


QUERIES = {
    "keyed": Query("k long, v long", "update", _counts),
    "windowed": Query("k long, v long, at timestamp", "append", _windows),
}
"""By the name of our job."""


def main(job: str, rows: str, files_per_epoch: str, checkpoints: str) -> None:
    """Read everything that is there, with an epoch for every few files."""
    query = QUERIES[job]
    builder = SparkSession.builder.master("local[2]").appName("peer")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    read = session.readStream.schema(query.schema).option("maxFilesPerTrigger", files_per_epoch).parquet(rows)
    results = query.results(read).writeStream.outputMode(query.output_mode).format("noop")
    running = results.option("checkpointLocation", checkpoints).trigger(availableNow=True).start()
    running.awaitTermination()
    for progress in running.recentProgress:
        shown = {
            "rows": progress["numInputRows"],
            "late": sum(state["numRowsDroppedByWatermark"] for state in progress["stateOperators"]),
            "ms": progress["durationMs"]["triggerExecution"],
        }
        print(json.dumps(shown), flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
