"""`hf.SparkFrame`: a batch DataFrame as a source with an end.

A DataFrame has no offsets, and computing it again may give its rows in another order, or others if its files have
changed. So a start of a job that has no checkpoint yet copies the rows, by a Spark job, into a sealed log in the job's
folder. The job reads the log, now and after every recovery, and the DataFrame is not computed again.

Invariants
    - The tasks write segments, and the driver appends those of the attempts whose results Spark returns, in one commit:
      other attempts add nothing.
    - Every copy has its own folder. `copy.json` names the one that the job reads, once it is sealed.
    - A run reads the copy that its start chose, even if `copy.json` changes later.
    - Workers get no DataFrame.

Source: docs/decisions/0051-spark-frame.md.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException, PySparkTypeError
from pyspark.sql import DataFrame

from holdfast.arguments import checked
from holdfast.errors import ConfigError, Damaged, NotFound
from holdfast.ports import ObjectStore
from holdfast.runtime.plan.source import Source
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.schema import data_schema_of, difference_to_read
from holdfast.runtime.sources.connector import SourceConnector
from holdfast.runtime.sources.log import LogSource, OpenLog
from holdfast.runtime.spark.launch import first_line
from holdfast.runtime.spark.tables.columns import arrow_schema
from holdfast.storage.log.format import LogMeta, LogSegment, check_meta
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.log.reader import existing_meta
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join
from holdfast.traits import Library, SourceTraits, local

PATH = "copy.json"
FORMAT_VERSION = 1
PARTITIONS_MAX = 64
"""The most partitions of a copy for which the user gave no number. Each is read by one worker at a time."""


class Copy(msgspec.Struct, frozen=True):
    """Contents of `copy.json`."""

    log: str
    """Folder of the log, below that of `copy.json`."""
    v: int = FORMAT_VERSION


_COPY, _SEGMENTS = msgspec.json.Decoder(Copy), msgspec.json.Decoder(list[LogSegment])


class SparkFrame(SourceConnector, RowsOf[T]):
    """The rows of a batch DataFrame; the source ends after the last one.

    A start of the job that has no checkpoint yet copies them into the job's folder: the job needs room for them there,
    and a task of that copy needs memory for a partition of the DataFrame. Once there is a checkpoint, changes of the
    DataFrame or its files do not matter.

    Args:
        frame: The DataFrame; the job runs in its Spark session.
        schema: A dataclass or pyarrow.Schema: the columns that the job reads. None means those of the DataFrame.
        partitions: Number of partitions of the copy, which workers share out among themselves; default: as many as
            Spark has cores, at most 64.
    """

    library: ClassVar[Library] = Library(name="pyspark")

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
        self._expected = None if schema is None else data_schema_of(schema)

    @classmethod
    def example(cls) -> FrameSource:
        """Return a source that has every trait, without a DataFrame; see sources/listed.py."""
        return FrameSource(pa.schema([pa.field("n", pa.int64())]), partitions=1)

    def __repr__(self) -> str:
        return f"SparkFrame({', '.join(self._frame.columns)})"

    def source(self) -> FrameSource:
        return FrameSource(self._columns, self._partitions, self._expected, self._row_type, frame=self._frame)


@dataclass(frozen=True)
class FrameSource(Source):
    """A DataFrame to copy and read.

    Args:
        columns: The columns of the DataFrame.
        partitions: Number of partitions of a copy.
        expected: The columns that the job reads; None: all.
        folder: Where the copies are; None until the job's folder is known.
        log: The folder of the copy that is read, below `folder`; None: the one that `copy.json` names.
        frame: The DataFrame; None in a worker.
    """

    columns: pa.Schema
    partitions: int
    expected: pa.Schema | None = None
    row_type: type | None = None
    folder: str | None = None
    log: str | None = None
    frame: DataFrame | None = field(default=None, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "frame": None}

    @property
    def schema(self) -> pa.Schema:
        return self.columns if self.expected is None else self.expected

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"DataFrame of {', '.join(self.columns.names)}"

    @property
    def traits(self) -> SourceTraits:
        paths = () if self.folder is None else local(self.folder)
        return SourceTraits(kind="SparkFrame", local_paths=paths, copied=True)

    def check(self) -> None:
        """Refuse columns that the DataFrame does not have. Reads no rows."""
        if difference := difference_to_read(self.schema, self.columns):
            raise ConfigError(
                f"the {self.where} does not have the columns that the job expects: {difference}",
                not_done="the job was not started",
                next_step="correct the schema given to hf.SparkFrame, or select and cast columns in the DataFrame",
            )

    def in_folder(self, folder: str) -> FrameSource:
        return replace(self, folder=folder)

    def copied(self, *, again: bool) -> FrameSource:
        store = open_objects(self._folder)
        before = _copy_in(store)
        if before is None or again:
            copy = self._copy()
            store.put(PATH, msgspec.json.encode(copy))
            if before is not None:
                _remove(store, lambda path: path.startswith(f"{before.log}/"))
            return replace(self, log=copy.log)
        # No start that copies can be under way: the job has a checkpoint.
        _remove(store, lambda path: path != PATH and not path.startswith(f"{before.log}/"))
        return replace(self, log=before.log)

    def open(self) -> OpenLog:
        path = join(self._folder, self._log())
        found = existing_meta(open_objects(path, writable=False)).schema
        if difference := difference_to_read(self.schema, found):
            raise ConfigError(
                f"the copy of the {self.where} was made with other columns: {difference}",
                not_done="the source was not opened",
                next_step="give the DataFrame the columns that it had; or, to copy it again, give the job another name",
            )
        return LogSource(path, self.schema, self.row_type).open()

    @property
    def _folder(self) -> str:
        assert self.folder is not None, "the job's folder is known when a job starts"
        return self.folder

    def _log(self) -> str:
        if self.log is not None:
            return self.log
        copy = _copy_in(open_objects(self._folder, writable=False))
        if copy is None:
            raise ConfigError(
                f"the {self.where} was not copied into the job's folder yet",
                not_done="the source was not opened",
                next_step="run the job: its first start makes the copy",
            )
        return copy.log

    def _copy(self) -> Copy:
        """Copy the rows into a separate log, and seal it.

        Raises:
            ConfigError: Spark cannot compute the DataFrame.
        """
        assert self.frame is not None, "only the driver copies"
        name = f"log-{uuid.uuid4().hex[:12]}"
        path = join(self._folder, name)
        create_log(open_objects(path), self.columns, self.partitions)
        try:
            # By position: Spark finds columns by name, and allows names with which it finds none or two.
            frame = self.frame.toDF(*(f"c{number}" for number in range(len(self.columns))))
            rows = frame.mapInArrow(_staging(path, self.columns, self.partitions), "segments binary").collect()
        except (PySparkException, Py4JError) as error:
            raise ConfigError(
                f"Spark could not copy the {self.where}: {first_line(error)}",
                not_done="the job was not started, no record was read",
                next_step="remove the cause and start the job again; frame.count() in the program that builds the app "
                "shows whether the DataFrame can be computed at all",
            ) from error
        writer = LogWriter(open_objects(path))
        writer.append_staged(segment for row in rows for segment in _SEGMENTS.decode(row.segments))
        writer.seal()
        return Copy(name)


def _refusal(frame: object) -> tuple[str, str] | None:
    """Return why a job cannot read this, and the next step; None if it can."""
    if not isinstance(frame, DataFrame):
        return f"hf.SparkFrame: {frame!r} is not a DataFrame of Spark", 'give one, such as spark.read.parquet("data")'
    if frame.isStreaming:
        return "hf.SparkFrame: the DataFrame is a stream", "use spark.read instead of spark.readStream"
    if not hasattr(frame, "_jdf"):
        return "hf.SparkFrame: the DataFrame belongs to Spark Connect", "use a session that runs in this program"
    if not frame._jdf.queryExecution().optimizedPlan().deterministic():
        return (
            "hf.SparkFrame: the DataFrame may have other rows each time it is computed, for instance by rand()",
            "write it to files and read those; or set a checkpoint directory and give the result of frame.checkpoint()",
        )
    return None


def _columns_of(frame: DataFrame, partitions: int) -> pa.Schema:
    """Return the columns of the copy. Raises ConfigError: a log cannot hold them, or have this many partitions."""
    try:
        columns = arrow_schema(frame.schema)
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


def _remove(store: ObjectStore, unused: Callable[[str], bool]) -> None:
    for path in filter(unused, store.list("")):
        store.delete(path)


def _staging(
    path: str, columns: pa.Schema, partitions: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        _check_reaches(path)
        rows = pa.Table.from_batches([_as(batch, columns) for batch in batches], columns)
        staged = LogWriter(open_objects(path, writable=False)).stage({context.partitionId() % partitions: rows})
        yield pa.record_batch({"segments": pa.array([msgspec.json.encode(staged)], pa.binary())})

    return stage


def _check_reaches(path: str) -> None:
    """Refuse to run on a machine where this local path is another folder."""
    if "://" not in path and not os.path.isdir(path):
        raise ConfigError(
            f"machine {socket.gethostname()} has no folder {path}",
            not_done="its rows were not copied",
            next_step="use a root that every machine reaches, such as s3://bucket/streams",
        )


def _as(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [column.cast(each.type) for column, each in zip(batch.columns, columns, strict=True)], schema=columns
    )
