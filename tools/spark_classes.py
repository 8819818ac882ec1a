"""Write an archive of the classes that Spark loads at its start, from which tests start Spark in half of the time.

    python tools/spark_classes.py .venv/spark-classes.jsa

A JVM takes the archive only with the same Java and the same jars, and starts as usual without it. Where none can be
written, the file is left empty, which tests/conftest.py takes as none.

Source: JDK, "Application Class-Data Sharing", -XX:ArchiveClassesAtExit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from holdfast.chaos.live.cluster import QUICK_JAVA

EXIT_S = 120.0


def write(archive: Path) -> None:
    """Start Spark, use it once, and end its JVM, which writes the archive."""
    writing = archive.with_suffix(".writing")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK_JAVA} -XX:ArchiveClassesAtExit={writing} -Xlog:disable"
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(list).collect()
    gateway = SparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM exits when its input ends
    gateway.proc.wait(EXIT_S)
    if writing.exists():
        writing.replace(archive)
    else:
        print(f"{archive}: this Java wrote no archive; tests start Spark without one", file=sys.stderr)
        archive.touch()


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
