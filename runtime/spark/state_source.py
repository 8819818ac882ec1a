"""The Spark data source `holdfast-state`: the state of an operator, partitioned by ranges of key groups.

The epoch is chosen when Spark plans the query, and every task reads that epoch, so a query sees one checkpoint. If it
expires before a task has read it, the query fails and says so; a savepoint never expires.

Source: docs/design/0037-state-inspection.md; pyspark.sql.datasource.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError
from holdfast.runtime.config.settings import root_given
from holdfast.runtime.inspect.reading import At, Reading, at_checkpoint, operator_in, reading_of
from holdfast.runtime.inspect.view import view_of
from holdfast.runtime.job.stored import open_job

REQUIRED, OPTIONAL = ("job", "operator"), ("epoch", "root", "partitions")
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
"""Spark has no unsigned integers."""


@dataclass(frozen=True)
class KeyGroupRange(InputPartition):
    """The key groups [first, end)."""

    first: int
    end: int


@dataclass(frozen=True)
class _Planned:
    """What every task of a query reads."""

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
        return _spark_schema(_planned(self.options)[1])

    def reader(self, schema: StructType) -> StateReader:
        """Choose the epoch."""
        return StateReader(_planned(self.options)[0], schema)


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
        yield from _converted(reading, to_arrow_schema(self._schema, timezone="UTC"))


def _planned(options: Mapping[str, str]) -> tuple[_Planned, pa.Schema]:
    unknown = sorted(set(options) - {*REQUIRED, *OPTIONAL})
    missing = [name for name in REQUIRED if not options.get(name)]
    if unknown or missing:
        what = f"no option {missing[0]!r} is given" if missing else f"there is no option {unknown[0]!r}"
        known = f'use .option("job", ...), .option("operator", ...) and, if wanted, {", ".join(OPTIONAL)}'
        raise ConfigError(f"holdfast-state: {what}", not_done="no state was read", next_step=known)
    root = root_given(options.get("root"), 'option("root")', os.environ)
    root = root if "://" in root else os.path.abspath(root)
    stored, operator = open_job(root, options["job"]), options["operator"]

    def chosen(at: At, manifest: Manifest) -> tuple[_Planned, pa.Schema]:
        view = view_of(operator_in(manifest, operator, at))
        owned = tuple(sorted(handle.key_groups for handle in manifest.state))
        ranges = _split(options.get("partitions"), manifest.key_groups, owned)
        return _Planned(root, at.job, operator, str(at.epoch), ranges), view.schema

    return at_checkpoint(stored, options.get("epoch"), chosen)


def _split(asked: str | None, key_groups: int, owned: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges to read, each in a task."""
    if asked is None:
        return tuple((first, end) for first, end in owned if first < end)
    if not (asked.isascii() and asked.isdecimal() and 1 <= int(asked) <= key_groups):
        raise ConfigError(
            f'holdfast-state: option("partitions") is {asked!r}',
            not_done="no state was read",
            next_step=f"give a number from 1 to {key_groups}, the key groups of the job",
        )
    edges = [number * key_groups // int(asked) for number in range(int(asked) + 1)]
    return tuple(pairwise(edges))


def _spark_schema(schema: pa.Schema) -> StructType:
    return StructType([StructField(field.name, _spark_type(field.type), field.nullable) for field in schema])


def _spark_type(kind: pa.DataType) -> DataType:
    try:
        return from_arrow_type(_WIDER.get(kind, kind))
    except PySparkTypeError:
        return StringType()


def _converted(reading: Reading, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reading.batches():
        columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
