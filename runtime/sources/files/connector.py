"""`hf.Files`: files below a folder or a prefix of S3.

Source: API.md (sources); docs/design/0080-files-source.md.
"""

from __future__ import annotations

import os

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.sources.files.formats import FORMATS, Format, FormatName
from holdfast.runtime.sources.files.source import FilesSource
from holdfast.runtime.sources.kafka.values import JSON
from holdfast.storage.paths import refuse_password

PARTITIONS_MAX = 1_000


class Files(RowsOf[T]):
    """Files of one format below a folder or a prefix of S3; each is read once, in the order of a catalogue.

    The first start lists the files into a catalogue in the job's folder, sorted by name. New ones are appended at every
    start and, while the job runs, every `partition_discovery_ms`. A file must be complete when it appears, and must not
    change after that.

    Args:
        path: A folder, or a URL such as s3://bucket/prefix. Folders below it are read too. A relative path is resolved
            in the working directory of the program that creates this.
        schema: A dataclass or pyarrow.Schema: the columns that the job reads; files may have more.
        format: "parquet"; "jsonl", with one JSON object per line, decoded as `hf.JSON` decodes values; or "csv", with a
            header.
        partitions: How many files are read side by side, 1 to 1,000; fixed for the job's life.
        bounded: Read the files that the first start finds, then end. Otherwise the source never ends.

    Raises:
        ConfigError: an argument cannot be used.
    """

    @checked("hf.Files", '("data/bids", Bid, "parquet")')
    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: type[T] | ArrowSchema,
        format: FormatName,
        partitions: int = 4,
        bounded: bool = False,
    ) -> None:
        text = os.fspath(path)
        refuse_password(text, "the path of hf.Files")
        if format not in FORMATS:
            raise _refused(f"the format is {format!r}", f"use one of {', '.join(FORMATS)}")
        if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
            raise _refused(f"partitions is {partitions!r}", f"give 1 to {PARTITIONS_MAX:,}")
        self.path = text.rstrip("/") if "://" in text else os.path.abspath(text)
        self.row_type = schema if isinstance(schema, type) else None
        defaults = JSON(schema).defaults() if format == "jsonl" else {}
        self.form = Format(format, schema_of(schema), defaults)
        self.form.check()
        self.partitions, self.bounded = partitions, bounded

    @classmethod
    def example(cls) -> FilesSource:
        """Return a source that has every trait; see listed.py."""
        return cls("data/bids", pa.schema([pa.field("auction", pa.int64())]), "parquet").source()

    def __repr__(self) -> str:
        return f"Files({self.path!r}, {self.form.name!r})"

    def source(self) -> FilesSource:
        """See Connector.source."""
        return FilesSource(self.path, self.form, self.partitions, self.bounded, self.row_type)


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Files: {what}", not_done="the job was not planned", next_step=next_step)
