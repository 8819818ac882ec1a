"""How files are written: Parquet, JSON lines or CSV.

Source: docs/design/0080-files-source.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from holdfast.runtime.rows.csv_lines import refuse_columns
from holdfast.runtime.rows.json_lines import JsonLines
from holdfast.runtime.sources.files.catalogue import Entry
from holdfast.runtime.sources.files.contents import Contents, WrongFile
from holdfast.runtime.sources.files.parquet import ParquetContents
from holdfast.runtime.sources.files.text import TextContents, csv_contents
from holdfast.storage.folders import Found, ReadFile

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

    def span(self, handle: ReadFile, file: Found) -> int:
        """Return how many positions a file takes: its rows, or its bytes. Raises WrongFile, Unavailable."""
        if self.is_text:
            self.contents(handle, Entry(*file, span=file.size))
            return file.size
        return ParquetContents(handle, self.schema).rows

    def contents(self, handle: ReadFile, entry: Entry) -> Contents:
        """Return the contents of an open file. Raises WrongFile, Unavailable."""
        if self.name == "jsonl":
            lines = JsonLines(self.schema, "rfc3339", self.defaults)
            return TextContents(handle, entry.name, entry.size, lines)
        if self.name == "csv":
            return csv_contents(handle, entry.name, entry.size, self.schema)
        found = ParquetContents(handle, self.schema)
        if found.rows != entry.span:
            raise WrongFile(f"it has {found.rows:,} rows, but had {entry.span:,} when it was listed")
        return found
