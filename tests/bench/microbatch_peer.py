"""The peer of the microbatch benchmark: the same counts in Spark Structured Streaming, rows from Parquet files.

Run as a program, with the folder of the files, how many of them an epoch reads, and the folder for checkpoints. It
prints a JSON object per epoch. The sink takes the changed rows and does nothing with them.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
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


def main(rows: str, files_per_epoch: str, checkpoints: str) -> None:
    """Read everything that is there, with an epoch for every few files."""
    builder = SparkSession.builder.master("local[2]").appName("peer")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    read = session.readStream.schema("k long, v long").option("maxFilesPerTrigger", files_per_epoch).parquet(rows)
    counts = read.groupBy("k").agg(f.count("*").alias("n"), f.sum("v").alias("total"))
    started = counts.writeStream.outputMode("update").format("noop").option("checkpointLocation", checkpoints)
    query = started.trigger(availableNow=True).start()
    query.awaitTermination()
    for progress in query.recentProgress:
        shown = {"rows": progress["numInputRows"], "ms": progress["durationMs"]["triggerExecution"]}
        print(json.dumps(shown), flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
