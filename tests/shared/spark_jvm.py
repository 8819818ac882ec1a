"""Ends Spark's JVM in the process of the tests: it keeps the working directory and the environment of its start."""

from __future__ import annotations

from patience import wait_for_end
from pyspark import SparkContext


def end_jvm() -> None:
    """End the JVM of this process, if it has one, with its context. The next context starts another."""
    if (context := SparkContext._active_spark_context) is not None:
        context.stop()
    if (gateway := SparkContext._gateway) is None:
        return
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()  # the JVM exits when its input ends
    wait_for_end(process, "the end of Spark's JVM")
    SparkContext._gateway = SparkContext._jvm = None
