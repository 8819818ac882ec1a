"""How files are written: Parquet, JSON lines or CSV.

Source: docs/decisions/0080-files-source.md, 0083-files-sink.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from holdfast.runtime.formats.csv_lines import refuse_columns
from holdfast.runtime.formats.json_lines import JsonLines
from holdfast.runtime.sources.files.catalogue import FileEntry
from holdfast.runtime.sources.files.contents import Contents, WrongFile
from holdfast.runtime.sources.files.parquet import ParquetContents
from holdfast.runtime.sources.files.text import TextContents, csv_contents
from holdfast.sinks.files.hive import NoFolder, has_folders, is_text, value_of, values_in
from holdfast.storage.folders import FolderFile, ReadFile

FormatName = Literal["parquet", "jsonl", "csv"]
FORMATS: tuple[FormatName, ...] = ("parquet", "jsonl", "csv")


@dataclass(frozen=True)
class Format:
    """A format with the columns that are read.

    Args:
        schema: The columns.
        defaults: Values for fields that a JSON object does not have, by column.
    """

    name: FormatName
    schema: pa.Schema
    defaults: Mapping[str, Any]

    @property
    def is_text(self) -> bool:
        """Whether positions count bytes."""
        return self.name != "parquet"

    def check(self) -> None:
        """Refuse columns without a form in the format. Raises ConfigError."""
        if self.name == "jsonl":
            JsonLines(self.schema)
        elif self.name == "csv":
            refuse_columns(self.schema)

    @property
    def is_opened_to_list(self) -> bool:
        """Whether the beginning or the end of a file is read when it is listed."""
        return self.name != "jsonl"

    def span(self, handle: ReadFile, file: FolderFile) -> int:
        """Return how many positions a file takes: its rows, or its bytes. Raises WrongFile, Unavailable."""
        if self.is_text:
            self.contents(handle, FileEntry(*file, span=file.size))
            return file.size
        return ParquetContents(handle, self.schema, self._held(file.name)).rows

    def contents(self, handle: ReadFile, entry: FileEntry) -> Contents:
        """Return the contents of an open file. Raises WrongFile, Unavailable."""
        if self.name == "jsonl":
            lines = JsonLines(self.schema, "rfc3339", self.defaults)
            return TextContents(handle, entry.name, entry.size, lines)
        if self.name == "csv":
            return csv_contents(handle, entry.name, entry.size, self.schema)
        found = ParquetContents(handle, self.schema, self._held(entry.name))
        if found.rows != entry.span:
            raise WrongFile(f"it has {found.rows:,} rows, but had {entry.span:,} when it was listed")
        return found

    def _held(self, name: str) -> Mapping[str, pa.Scalar]:
        """Return the values that the folders of a file hold, by column. Raises WrongFile."""
        texts = values_in(name)
        fields = [each for each in self.schema if each.name in texts and has_folders(each.type)]
        try:
            return {each.name: _value(texts[each.name], each) for each in fields}
        except NoFolder as error:
            raise WrongFile(f"its folders do not fit the columns of the job: {error}") from error


def _value(text: str | None, field: pa.Field) -> pa.Scalar:
    if text is None and not field.nullable:
        if is_text(field.type):
            return pa.scalar("", field.type)  # null and the empty text share a folder
        raise NoFolder(f"column {field.name!r} has no value, but the job reads it as never null")
    return value_of(text, field.type)
