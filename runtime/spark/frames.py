"""`hf.SparkFrame`: a batch DataFrame as a source with an end.

A DataFrame has no offsets, and computing it again may give its rows in another order, or others if its files have
changed. So the first start of a job copies its rows once, by a Spark job, into a sealed log in the job's folder; the
job reads the log, now and after every recovery, and the DataFrame is not computed again.

Invariants
    - A task appends its rows in one commit under the number of its partition, so an attempt that Spark repeats, or one
      that it had given up, adds nothing.
    - Every copy has a folder of its own. `copy.json`, which is created once, names the one that the job reads, and only
      after it was sealed with as many rows as the tasks counted.
    - Workers get no DataFrame: they read the copy.

Source: docs/design/0051-spark-frame.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException, PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.arguments import checked
from holdfast.errors import AlreadyExists, ConfigError, Damaged, NotFound
from holdfast.model import Epoch, Tag, Timeline
from holdfast.ports import ObjectStore
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.sources.log import LogSource, OpenLog
from holdfast.runtime.spark.launch import first_line
from holdfast.storage.log.format import LogMeta, check_meta
from holdfast.storage.log.log import LogReader, LogWriter, create_log
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join
from holdfast.traits import SourceTraits, local

PATH = "copy.json"
FORMAT_VERSION = 1
PARTITIONS_MAX = 64
"""Of the copy, unless the user says how many. Each is read by one worker at a time."""
_ONCE = Tag(Timeline(1), Epoch(1))


class Copy(msgspec.Struct, frozen=True):
    """Contents of `copy.json`."""

    log: str
    """Folder of the log, below that of `copy.json`."""
    rows: int
    v: int = FORMAT_VERSION


_COPY = msgspec.json.Decoder(Copy)


class SparkFrame(RowsOf[T]):
    """The rows of a batch DataFrame; the source ends after the last one.

    They are copied into the job's folder when the job first starts, so the job needs room for them there, and a task of
    that copy needs memory for a partition of the DataFrame. Later changes of the DataFrame or its files do not matter.

    Args:
        frame: Of the Spark session in which the job runs.
        schema: A dataclass or pyarrow.Schema: the columns that the job reads. None means those of the DataFrame.
        partitions: Number of partitions of the copy, which workers share out among themselves; default: as many as
            Spark has cores, at most 64.
    """

    @checked("hf.SparkFrame", '(spark.read.parquet("data/orders"))')
    def __init__(
        self, frame: DataFrame, schema: type[T] | ArrowSchema | None = None, partitions: int | None = None
    ) -> None:
        refused = _refusal(frame)
        if refused is not None:
            raise ConfigError(refused[0], not_done="the source was not created", next_step=refused[1])
        cores = frame.sparkSession.sparkContext.defaultParallelism
        self._frame, self._partitions = frame, min(PARTITIONS_MAX, cores) if partitions is None else partitions
        self._columns = _columns_of(frame, self._partitions)
        self._row_type = schema if isinstance(schema, type) else None
        self._expected = None if schema is None else schema_of(schema)

    def __repr__(self) -> str:
        return f"SparkFrame({', '.join(self._frame.columns)})"

    def source(self) -> FrameSource:
        """See Connector.source."""
        return FrameSource(self._columns, self._partitions, self._expected, self._row_type, frame=self._frame)


@dataclass(frozen=True)
class FrameSource:
    """A DataFrame to copy and read.

    Args:
        columns: Those of the DataFrame.
        partitions: Of the copy.
        expected: The columns that the job reads; None: all.
        folder: Where the copies are; None until the job's folder is known.
        frame: None in a worker.
    """

    columns: pa.Schema
    partitions: int
    expected: pa.Schema | None = None
    row_type: type | None = None
    folder: str | None = None
    frame: DataFrame | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "frame": None}

    @property
    def schema(self) -> pa.Schema:
        """See Source.schema."""
        return self.columns if self.expected is None else self.expected

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"DataFrame of {', '.join(self.columns.names)}"

    @property
    def traits(self) -> SourceTraits:
        """See Source.traits."""
        return SourceTraits(
            kind="SparkFrame", local_paths=() if self.folder is None else local(self.folder), copied=True
        )

    def check(self) -> None:
        """Refuse columns that the DataFrame does not have, or that a log cannot hold. Reads no rows."""
        missing = [name for name in self.schema.names if name not in self.columns.names]
        if missing:
            raise ConfigError(
                f"the {self.where} has no column {missing[0]!r}",
                not_done="the job was not started",
                next_step="correct the schema given to hf.SparkFrame, or select the column in the DataFrame",
            )

    def in_folder(self, folder: str) -> FrameSource:
        """See CopiedSource.in_folder."""
        return replace(self, folder=folder)

    def prepare(self) -> None:
        """See CopiedSource.prepare."""
        store = open_objects(self._folder)
        if _copy_in(store) is None:
            _settle(store, self._copied())
        _remove_others(store)

    def open(self) -> OpenLog:
        """See Source.open."""
        copy = _copy_in(open_objects(self._folder, writable=False))
        if copy is None:
            raise ConfigError(
                f"the {self.where} was not copied into the job's folder yet",
                not_done="the source was not opened",
                next_step="run the job: its first start makes the copy",
            )
        return LogSource(join(self._folder, copy.log), self.schema, self.row_type).open()

    @property
    def _folder(self) -> str:
        assert self.folder is not None, "the job's folder is known when a job starts"
        return self.folder

    def _copied(self) -> Copy:
        """Copy the rows into a log of its own, and seal it.

        Raises:
            ConfigError: Spark cannot compute the DataFrame.
        """
        assert self.frame is not None, "only the driver copies"
        name = f"log-{uuid.uuid4().hex[:12]}"
        path = join(self._folder, name)
        create_log(open_objects(path), self.columns, self.partitions)
        counted = self.frame.mapInArrow(_appending(path, self.columns, self.partitions), "rows long")
        try:
            rows = sum(row.rows for row in counted.collect())
        except (PySparkException, Py4JError) as error:
            raise ConfigError(
                f"Spark could not compute the {self.where}: {first_line(error)}",
                not_done="the job was not started, no record was read",
                next_step="see that frame.count() succeeds in the program that builds the app",
            ) from error
        writer = LogWriter(open_objects(path))
        writer.seal()
        reader = LogReader(open_objects(path))
        reader.refresh()
        if (found := sum(reader.end_offsets().values())) != rows:
            raise Damaged(
                f"the copy of the {self.where} has {found:,} rows, but its tasks wrote {rows:,}",
                not_done="the job was not started, no record was read",
                next_step="start the job again: it makes another copy",
            )
        return Copy(name, rows)


def _refusal(frame: object) -> tuple[str, str] | None:
    """Return why a job cannot read this, and what to do; None if it can."""
    if not isinstance(frame, DataFrame):
        return f"hf.SparkFrame: {frame!r} is not a DataFrame of Spark", 'give one, such as spark.read.parquet("data")'
    if frame.isStreaming:
        return "hf.SparkFrame: the DataFrame is a stream", "use spark.read instead of spark.readStream"
    if not hasattr(frame, "_jdf"):
        return "hf.SparkFrame: the DataFrame belongs to Spark Connect", "use a session that runs in this program"
    if not frame._jdf.queryExecution().optimizedPlan().deterministic():
        what = "hf.SparkFrame: the DataFrame has other rows each time it is computed, for instance by rand()"
        return what, "call frame.checkpoint() first, or write it to files and read those"
    return None


def _columns_of(frame: DataFrame, partitions: int) -> pa.Schema:
    """Return the columns of the copy. Raises ConfigError: a log cannot hold them, or have so many partitions."""
    try:
        columns = to_arrow_schema(frame.schema, timezone="UTC")
        check_meta(LogMeta("", columns, partitions, ()))
    except (ConfigError, PySparkTypeError) as error:
        raise ConfigError(
            f"hf.SparkFrame: {first_line(error)}",
            not_done="the source was not created",
            next_step="select other columns, or cast or rename them; or give another number of partitions",
        ) from error
    return columns


def _copy_in(store: ObjectStore) -> Copy | None:
    """Return the copy that the job reads; None before there is one."""
    try:
        copy = _COPY.decode(store.get(PATH))
    except NotFound:
        return None
    except msgspec.DecodeError as error:
        raise Damaged(
            f"{PATH} of a source's copy cannot be read: {error}",
            not_done="the source was not opened",
            next_step="restore it from a backup of the job's folder",
        ) from error
    if copy.v > FORMAT_VERSION:
        raise ConfigError(
            f"{PATH} of a source's copy has version {copy.v}, this version of Holdfast reads {FORMAT_VERSION}",
            not_done="the source was not opened",
            next_step="run the job with the newer version",
        )
    return copy


def _settle(store: ObjectStore, copy: Copy) -> None:
    """Record this copy as the one to read, unless another start of the job was first."""
    try:
        store.create(PATH, msgspec.json.encode(copy))
    except AlreadyExists:
        pass


def _remove_others(store: ObjectStore) -> None:
    """Remove what starts left that were killed while they copied."""
    copy = _copy_in(store)
    assert copy is not None
    for path in store.list(""):
        if path != PATH and not path.startswith(f"{copy.log}/"):
            store.delete(path)


def _appending(
    path: str, columns: pa.Schema, partitions: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def append(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        rows = pa.Table.from_batches([_as(batch, columns) for batch in batches], columns)
        if rows.num_rows:
            writer = LogWriter(open_objects(path, writable=False))
            writer.append_tagged({context.partitionId() % partitions: rows}, f"frame/{context.partitionId()}", _ONCE)
        yield pa.record_batch({"rows": pa.array([rows.num_rows], pa.int64())})

    return append


def _as(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [column.cast(each.type) for column, each in zip(batch.columns, columns, strict=True)], schema=columns
    )
