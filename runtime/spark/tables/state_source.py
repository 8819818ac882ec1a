"""The Spark data source `holdfast-state`: the state of an operator, partitioned by ranges of key groups.

The epoch is chosen when Spark plans the query, and every task reads that epoch, so a query sees one checkpoint. If it
expires before a task has read it, the query fails with that reason; a savepoint never expires.

Source: docs/decisions/0037-state-inspection.md; pyspark.sql.datasource.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.checkpoint.manifest import Manifest
from holdfast.runtime.config.settings import root_given
from holdfast.runtime.inspect.reading import StateCheckpoint, at_checkpoint, operator_in, reading_of
from holdfast.runtime.inspect.stored import open_job
from holdfast.runtime.inspect.view import view_of
from holdfast.runtime.spark.tables.columns import arrow_schema, check_columns, converted, spark_schema
from holdfast.runtime.spark.tables.source_options import absolute, checked_options, wrong_option

REQUIRED, OPTIONAL = ("job", "operator"), ("epoch", "root", "partitions")
_NOT_DONE = "no state was read"


@dataclass(frozen=True)
class KeyGroupRange(InputPartition):
    """The key groups [first, end)."""

    first: int
    end: int


@dataclass(frozen=True)
class _Planned:
    """State that the tasks of a query read."""

    root: str
    job: str
    operator: str
    epoch: str
    ranges: tuple[tuple[int, int], ...]


class StateSource(DataSource):
    """`spark.read.format("holdfast-state").option("job", ...).option("operator", ...).load()`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "holdfast-state"

    def schema(self) -> StructType:
        """Return the columns of the operator's state, as Spark names their types."""
        return spark_schema(_planned(self.options)[1])

    def reader(self, schema: StructType) -> StateReader:
        """Choose the epoch."""
        planned, columns = _planned(self.options)
        check_columns("holdfast-state", spark_schema(columns), schema, _NOT_DONE)
        return StateReader(planned, schema)


class StateReader(DataSourceReader):
    """Reads the state in tasks. Sent to them pickled."""

    def __init__(self, planned: _Planned, schema: StructType) -> None:
        self._planned, self._schema = planned, schema

    def partitions(self) -> list[KeyGroupRange]:
        """Return one partition per range of key groups."""
        return [KeyGroupRange(first, end) for first, end in self._planned.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        assert isinstance(partition, KeyGroupRange)
        planned = self._planned
        stored, span = open_job(planned.root, planned.job), (partition.first, partition.end)
        reading = reading_of(stored, planned.operator, planned.epoch, key_groups=span)
        schema = arrow_schema(self._schema)
        for batch in reading.batches():
            yield converted(batch, schema)


def _planned(options: Mapping[str, str]) -> tuple[_Planned, pa.Schema]:
    options = checked_options("holdfast-state", options, REQUIRED, OPTIONAL, _NOT_DONE)
    root = absolute(root_given(options.get("root"), 'option("root")', os.environ))
    stored_job, operator = open_job(root, options["job"]), options["operator"]

    def chosen(at: StateCheckpoint, manifest: Manifest) -> tuple[_Planned, pa.Schema]:
        view = view_of(operator_in(manifest, operator, at))
        owned = tuple(sorted(handle.key_groups for handle in manifest.state))
        ranges = _split(options.get("partitions"), manifest.key_groups, owned)
        return _Planned(root, at.job, operator, str(at.epoch), ranges), view.schema

    return at_checkpoint(stored_job, options.get("epoch"), chosen)


def _split(asked: str | None, key_groups: int, owned: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges to read, each in a task."""
    if asked is None:
        return tuple((first, end) for first, end in owned if first < end)
    if not (asked.isascii() and asked.isdecimal() and 1 <= int(asked) <= key_groups):
        advice = f"give a number from 1 to {key_groups}, the key groups of the job"
        raise wrong_option("holdfast-state", "partitions", asked, _NOT_DONE, advice)
    edges = [number * key_groups // int(asked) for number in range(int(asked) + 1)]
    return tuple(pairwise(edges))
