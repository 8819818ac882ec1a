"""`hf.Files`: files below a folder or a prefix of S3, as a connector.

Source: API.md (sources, sinks); docs/decisions/0080-files-source.md, 0083-files-sink.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.schema import data_schema_of
from holdfast.runtime.sources.connector import Connector
from holdfast.runtime.sources.files.formats import FORMATS, Format, FormatName
from holdfast.runtime.sources.files.source import FilesSource
from holdfast.runtime.sources.kafka.values import JSON
from holdfast.sinks.files.hive import Partitioning
from holdfast.sinks.files.sink import FILE_BYTES, FILE_BYTES_MAX, FILE_BYTES_MIN, FilesSink
from holdfast.storage.paths import refuse_password

PARTITIONS_MAX = 1_000


class Files(Connector, RowsOf[T]):
    """Files of one format below a folder or a prefix of S3: a source, and of Parquet files a sink.

    As a source, each file is read once, in the order of a catalogue. The first start lists the files into a catalogue
    in the job's folder, sorted by name. New ones are appended at every start and, while the job runs, every
    `partition_discovery_ms`. A file must be complete when it appears, and must not change after that.

    As a sink it gives exactly-once delivery: only files of committed epochs appear under names that readers look at,
    each whole. Per epoch and folder there is at least one file, so a longer `checkpoint_every` gives larger ones.

    Args:
        path: A folder, or a URL such as s3://bucket/prefix. Folders below it are read too. A relative path is resolved
            in the working directory of the program that creates this.
        schema: A dataclass or pyarrow.Schema. As a source: the columns that the job reads; files may have more. As a
            sink: the columns that the stream must have; None: whatever it has.
        format: "parquet"; as a source also "jsonl", with one JSON object per line, decoded as `hf.JSON` decodes values,
            or "csv", with a header.
        partitions: How many files are read side by side, 1 to 1,000; fixed for the job's life.
        bounded: Read the files that the first start finds, then end. Otherwise the source never ends.
        partition_by: As a sink: columns whose values choose the folder of a row, `region=eu/`. The files do not have
            these columns; readers take them from the folders, and so does this source.
        date_of: As a sink: a column of timestamps, whose date in UTC is the last level of folders, `date=2026-11-26/`.
        file_bytes: As a sink: how large a file becomes before the next one of its epoch and folder begins, 1 KiB to
            1 GiB.

    Raises:
        ConfigError: an argument cannot be used.
    """

    @checked("hf.Files", '("data/bids", Bid, "parquet")')
    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: type[T] | ArrowSchema | None = None,
        format: FormatName = "parquet",
        partitions: int = 4,
        bounded: bool = False,
        partition_by: str | Sequence[str] = (),
        date_of: str | None = None,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        text = os.fspath(path)
        refuse_password(text, "the path of hf.Files")
        if format not in FORMATS:
            raise _refused(f"the format is {format!r}", f"use one of {', '.join(FORMATS)}")
        if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
            raise _refused(f"partitions is {partitions!r}", f"give 1 to {PARTITIONS_MAX:,}")
        if not isinstance(file_bytes, int) or not FILE_BYTES_MIN <= file_bytes <= FILE_BYTES_MAX:
            raise _refused(f"file_bytes is {file_bytes!r}", f"give {FILE_BYTES_MIN:,} to {FILE_BYTES_MAX:,}")
        self.path = text.rstrip("/") if "://" in text else os.path.abspath(text)
        self.row_type = schema if isinstance(schema, type) else None
        self.format, self.partitions, self.bounded = format, partitions, bounded
        self.form = None if schema is None else _form(format, schema)
        columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        self.partitioning, self.file_bytes = Partitioning(columns, date_of), file_bytes

    @classmethod
    def example(cls) -> Files[Any]:
        """Return files that have every trait; see listed.py."""
        return cls("data/bids", pa.schema([pa.field("auction", pa.int64())]))

    def __repr__(self) -> str:
        return f"Files({self.path!r}, {self.format!r})"

    def source(self) -> FilesSource:
        if self.form is None:
            raise _refused(f"{self!r} does not say which columns to read", "give a dataclass or a pyarrow.Schema")
        return FilesSource(self.path, self.form, self.partitions, self.bounded, self.row_type)

    def sink(self) -> FilesSink:
        if self.format != "parquet":
            raise _refused(f"{self!r} is a sink, which writes Parquet", 'leave format out, or give "parquet"')
        if self.bounded:
            raise _refused(f"{self!r} is a sink with bounded=True, but only a source has an end", "leave bounded out")
        expected = None if self.form is None else self.form.schema
        return FilesSink(self.path, self.partitioning, self.file_bytes, expected)


def _form(format: FormatName, schema: type | ArrowSchema) -> Format:
    form = Format(format, data_schema_of(schema), JSON(schema).defaults() if format == "jsonl" else {})
    form.check()
    return form


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Files: {what}", not_done="the job was not planned", next_step=next_step)
