"""The Spark data source `holdfast-log`: the rows of an embedded log.

The end of every partition is chosen when Spark plans the query, so a query sees the log as of one commit. log_stream.py
reads the same rows as a stream.

Source: docs/decisions/0050-spark-sources.md; pyspark.sql.datasource.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import msgspec
import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from holdfast.errors import ConfigError
from holdfast.runtime.spark.tables.columns import arrow_schema, check_columns, spark_schema
from holdfast.runtime.spark.tables.log_ranges import OFFSET, PARTITION, LogRange, position_at, ranges_between, rows_of
from holdfast.runtime.spark.tables.source_options import absolute, checked_options, wrong_option
from holdfast.storage.log.format import LogMeta
from holdfast.storage.log.log import LogReader, read_meta
from holdfast.storage.objects import open_objects

FORMAT = "holdfast-log"
NOT_DONE = "no row was read"
BATCH = ("startingOffsets", "endingOffsets", "offsets")
STREAM = ("startingOffsets", "maxRecordsPerTrigger", "offsets")
EARLIEST, LATEST = "earliest", "latest"
_OFFSETS = msgspec.json.Decoder(dict[int, int])
_PLACE = [StructField(PARTITION, IntegerType(), False), StructField(OFFSET, LongType(), False)]


@dataclass(frozen=True)
class LogOptions:
    """The options of a query."""

    path: str
    starting: str
    ending: str
    records_max: int | None
    """Maximum number of records in a micro-batch."""
    placed: bool
    """Whether the place of each row is asked for."""


class LogDataSource(DataSource):
    """`spark.read.format("holdfast-log").load(path)`, and `spark.readStream` in the same way."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the log, as Spark names their types."""
        given = options_of(self.options, (*BATCH, *STREAM))
        return _columns(given, meta_at(given.path))

    def reader(self, schema: StructType) -> LogBatchReader:
        """Choose the rows of a query."""
        given = options_of(self.options, BATCH)
        check_columns(FORMAT, _columns(given, meta_at(given.path)), schema, NOT_DONE)
        return LogBatchReader(given, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Open the log as a stream."""
        query_options = options_of(self.options, STREAM)
        if find_spec("pyspark.sql.streaming.datasource") is None:
            raise ConfigError(
                f"{FORMAT}: spark.readStream needs Spark 4.2 or newer, this is {pyspark.__version__}",
                not_done=NOT_DONE,
                next_step="upgrade Spark, or read the log with spark.read",
            )
        check_columns(FORMAT, _columns(query_options, meta_at(query_options.path)), schema, NOT_DONE)
        made: DataSourceStreamReader = import_module("holdfast.runtime.spark.tables.log_stream").LogStreamReader(
            query_options, schema
        )
        return made


class LogBatchReader(DataSourceReader):
    """Reads the rows between two positions. Sent to the tasks pickled."""

    def __init__(self, given: LogOptions, schema: StructType) -> None:
        self._schema = schema
        reader = LogReader(open_objects(given.path, writable=False))
        start = offsets_of(reader, "startingOffsets", given.starting)
        end = offsets_of(reader, "endingOffsets", given.ending)
        if (wrong := next((each for each, to in end.items() if start[each] > to), None)) is not None:
            raise wrong_option(
                FORMAT,
                "startingOffsets",
                given.starting,
                NOT_DONE,
                f"partition {wrong} would end at offset {end[wrong]}, before it starts; correct one of the options",
            )
        self._ranges = ranges_between(given.path, start, position_at(reader, end))

    def partitions(self) -> list[LogRange]:
        """Return one range per partition of the log."""
        return self._ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        assert isinstance(partition, LogRange)
        return rows_of(partition, arrow_schema(self._schema))


def options_of(options: Mapping[str, str], known: Sequence[str]) -> LogOptions:
    """Return the options of a query. Raises ConfigError."""
    option_values = checked_options(FORMAT, options, ("path",), sorted(set(known)), NOT_DONE)
    limit, offsets_text = option_values.get("maxRecordsPerTrigger"), option_values.get("offsets", "false").lower()
    if limit is not None and not (limit.isascii() and limit.isdecimal() and int(limit) > 0):
        raise wrong_option(FORMAT, "maxRecordsPerTrigger", limit, NOT_DONE, "give a number above 0")
    if offsets_text not in ("true", "false"):
        raise wrong_option(FORMAT, "offsets", option_values["offsets"], NOT_DONE, "give true or false")
    return LogOptions(
        absolute(option_values["path"]),
        option_values.get("startingOffsets", EARLIEST),
        option_values.get("endingOffsets", LATEST),
        None if limit is None else int(limit),
        offsets_text == "true",
    )


def meta_at(path: str) -> LogMeta:
    """Return the description of a log. Raises ConfigError if there is none, Unavailable, Damaged."""
    if (meta := read_meta(open_objects(path, writable=False))) is None:
        raise ConfigError(
            f"{FORMAT}: no log exists at {path}",
            not_done=NOT_DONE,
            next_step='correct the path, or create the log: holdfast log create PATH --schema "name:type,..."',
        )
    return meta


def offsets_of(reader: LogReader, option: str, wanted: str) -> dict[int, int]:
    """Return the offset of every partition that a user names: earliest, latest, or JSON.

    Partitions that the JSON does not name start at the earliest offset, and end at the latest one.

    Raises:
        ConfigError: it is none of these, or names a partition or an offset that the log does not have.
    """
    latest = {each: reader.last_position(each) for each in range(reader.meta.partitions)}
    earliest = {each: reader.retention_start(each) for each in latest}
    if wanted in (EARLIEST, LATEST):
        return latest if wanted == LATEST else earliest
    advice = f'give {EARLIEST}, {LATEST}, or an offset per partition, such as {{"0": 120, "1": 80}}'
    try:
        offsets_by_partition = _OFFSETS.decode(wanted)
    except msgspec.DecodeError as error:
        raise wrong_option(FORMAT, option, wanted, NOT_DONE, advice) from error
    for partition, offset in offsets_by_partition.items():
        if partition not in latest:
            advice = f"there is no partition {partition}; choose from 0 to {len(latest) - 1}"
        elif not 0 <= offset <= reader.end_offset(partition):
            advice = f"give an offset from 0 to {reader.end_offset(partition)} for partition {partition}"
        else:
            continue
        raise wrong_option(FORMAT, option, wanted, NOT_DONE, advice)
    rest = earliest if option == "startingOffsets" else latest
    return rest | {each: reader.begin(each, at) for each, at in offsets_by_partition.items()}


def _columns(given: LogOptions, meta: LogMeta) -> StructType:
    columns = spark_schema(meta.schema)
    if not given.placed:
        return columns
    taken = [name for name in columns.names if name.lower() in (PARTITION, OFFSET)]
    if taken:
        raise wrong_option(
            FORMAT, "offsets", "true", NOT_DONE, f"leave it out: the log has a column {taken[0]!r} of its own"
        )
    return StructType([*columns.fields, *_PLACE])
