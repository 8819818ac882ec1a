"""Read what Holdfast stores with Spark: `holdfast.spark.register(spark)`, then `spark.read.format("holdfast-state")`.

Nothing is loaded before `register` is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register the formats of Holdfast with a Spark session.

    `holdfast-state` reads the committed state of an operator, one row per key, in the columns of `hf.state`. Options:
    `job`, `operator`, and if wanted `epoch` (epoch number or name of a savepoint; default: the newest checkpoint),
    `root` (default: HOLDFAST_ROOT, else `./.holdfast`) and `partitions` (default: one per subtask of the job).
    The executors need Holdfast installed and must reach the root.
    """
    spark.dataSource.register(import_module("holdfast.runtime.spark.state_source").StateSource)
