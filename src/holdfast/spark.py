"""Read data stored by Holdfast with Spark, in the formats `holdfast-state`, `holdfast-log` and `holdfast-checkpoints`.

Nothing is loaded before `register` is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]
SOURCES = (
    ("state_source", "StateSource"),
    ("log_source", "LogDataSource"),
    ("checkpoints_source", "CheckpointsSource"),
)
"""Modules and classes of the formats, loaded only when they are registered."""


def register(spark: SparkSession) -> None:
    """Register the formats of Holdfast with a Spark session.

    `holdfast-state` reads the committed state of an operator, one row per key, in the columns of `hf.state`. Options:
    `job`, `operator`, and if wanted `epoch` (epoch number or name of a savepoint; default: the newest checkpoint),
    `root` (default: HOLDFAST_ROOT, else `./.holdfast`) and `partitions` (default: one per subtask of the job).

    `holdfast-log` reads the rows of an embedded log, with `spark.read` or, from Spark 4.2 on, `spark.readStream`.
    Options: `path`, and if wanted `startingOffsets` and, for `spark.read`, `endingOffsets` (`earliest`, `latest`, or
    JSON such as `{"0": 120}`), `offsets` (`true` adds the columns `_partition` and `_offset`), and for
    `spark.readStream` `maxRecordsPerTrigger`.

    `holdfast-checkpoints` reads the list of checkpoints that a job can be restored from. Options: `job`, `root`.

    The executors need Holdfast installed and must reach the log or the root.
    """
    for module, source in SOURCES:
        spark.dataSource.register(getattr(import_module(f"holdfast.runtime.spark.tables.{module}"), source))
