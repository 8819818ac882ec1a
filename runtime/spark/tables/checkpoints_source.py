"""The Spark data source `holdfast-checkpoints`: the checkpoints that a job can be restored from, a row for each.

Source: docs/decisions/0050-spark-sources.md; pyspark.sql.datasource.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.checkpoint.joblog import Completed
from holdfast.checkpoint.manifest import objects
from holdfast.errors import Damaged
from holdfast.runtime.config.settings import root_given
from holdfast.runtime.inspect.checkpoints import kind_of, offsets_of
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.spark.tables.columns import arrow_schema, check_columns, converted, spark_schema
from holdfast.runtime.spark.tables.source_options import absolute, checked_options

FORMAT = "holdfast-checkpoints"
_NOT_DONE = "no checkpoint was listed"
_OFFSET = pa.struct([pa.field("source", pa.utf8()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())])
SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("timeline", pa.int64(), nullable=False),
        pa.field("generation", pa.int64(), nullable=False),
        pa.field("kind", pa.utf8(), nullable=False),
        pa.field("names", pa.list_(pa.utf8()), nullable=False),
        pa.field("abandoned", pa.bool_(), nullable=False),
        pa.field("completed_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("duration_ms", pa.int64(), nullable=False),
        pa.field("bytes_new", pa.int64(), nullable=False),
        pa.field("bytes_total", pa.int64(), nullable=False),
        pa.field("parallelism", pa.int32()),
        pa.field("objects", pa.int64()),
        pa.field("offsets", pa.list_(_OFFSET)),
    ]
)
"""The last three are null if the manifest is damaged."""


class CheckpointsSource(DataSource):
    """`spark.read.format("holdfast-checkpoints").option("job", ...).load()`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns, if there is such a job."""
        self._job()
        return spark_schema(SCHEMA)

    def reader(self, schema: StructType) -> CheckpointsReader:
        """Check the options and columns."""
        check_columns(FORMAT, spark_schema(SCHEMA), schema, _NOT_DONE)
        return CheckpointsReader(*self._job(), schema)

    def _job(self) -> tuple[str, str]:
        """Return root and name of the job. Raises ConfigError, Damaged, Unavailable."""
        given = checked_options(FORMAT, self.options, ("job",), ("root",), _NOT_DONE)
        root = absolute(root_given(given.get("root"), 'option("root")', os.environ))
        open_job(root, given["job"])
        return root, given["job"]


class CheckpointsReader(DataSourceReader):
    """Reads the list in one task, as of when the task runs. Sent to it pickled."""

    def __init__(self, root: str, job: str, schema: StructType) -> None:
        self._root, self._job, self._schema = root, job, schema

    def partitions(self) -> list[InputPartition]:
        """Return one partition."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in the order of the epochs."""
        stored = open_job(self._root, self._job)
        rows = [_row(stored, each) for each in stored.job.retained]
        if any(row["offsets"] is None for row in rows):  # a running job may have expired it meanwhile
            kept = {each.body.epoch for each in open_job(self._root, self._job).job.retained}
            rows = [row for row in rows if row["epoch"] in kept]
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        yield converted(batch, arrow_schema(self._schema))


def _row(stored: Stored, found: Completed) -> dict[str, Any]:
    checkpoint = found.body
    row: dict[str, Any] = {
        "epoch": checkpoint.epoch,
        "timeline": found.timeline,
        "generation": found.generation,
        "kind": kind_of(stored.job, found),
        "names": list(stored.job.names_of(checkpoint.epoch)),
        "abandoned": checkpoint.epoch in stored.job.abandoned_epochs,
        "completed_at": found.at,
        "duration_ms": checkpoint.duration_ms,
        "bytes_new": checkpoint.bytes_new,
        "bytes_total": checkpoint.bytes_total,
        "parallelism": None,
        "objects": None,
        "offsets": None,
    }
    try:
        manifest = stored.repository.load_manifest(checkpoint.manifest)
    except Damaged:
        return row  # `holdfast checkpoints verify` reports the damage
    offsets = [
        {"source": source, "partition": int(partition), "offset": offset}
        for source, at in offsets_of(manifest).items()
        for partition, offset in at.items()
    ]
    named = {each.path for each in objects(manifest)}
    return row | {"parallelism": manifest.parallelism, "objects": len(named), "offsets": offsets}
