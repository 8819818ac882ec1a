"""Folders whose names hold the values of columns, as Hive, Spark, DuckDB, Athena and pandas read them.

A row goes to `region=eu/date=2026-11-26/`: a folder per column, in order, then one for the date of its event time, in
UTC. A value is written as text, with the characters percent-encoded that Hive encodes. A missing value is
`__HIVE_DEFAULT_PARTITION__`, and so is an empty text, as Spark writes it.

Invariants
    - Equal values have equal folders, and different ones different folders, except for null and the empty text.
    - No name begins with `_` or `.`, so readers leave no folder out; `refuse` sees to that.

Pure: no clock, thread or I/O.
Source: org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils.escapePathName; docs/decisions/0083-files-sink.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DATE = "date"
"""The column that `date_of` adds to the columns that readers see."""
DEFAULT = "__HIVE_DEFAULT_PARTITION__"
_DEFAULT_AS_TEXT = DEFAULT.replace("_", "%5F", 1)
NAME_BYTES_MAX = 255
"""How long the name of a folder may be on common file systems."""
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_DIGITS = re.compile(r"-?[0-9]+")


class NoFolder(Exception):
    """A column or a value has no folder; the text is the reason."""


@dataclass(frozen=True)
class Partitioning:
    """How rows are spread over folders.

    Args:
        columns: One level of folders each; the files do not have these columns.
        date_of: A column of timestamps whose date is the last level; the files have this column.
    """

    columns: tuple[str, ...] = ()
    date_of: str | None = None

    def refuse(self, schema: pa.Schema) -> None:
        """Refuse columns that are missing, or cannot be folders. Raises NoFolder."""
        for name in self.columns:
            if name not in schema.names:
                raise NoFolder(f"there is no column {name!r} to partition by")
            if not has_folders(schema.field(name).type):
                raise NoFolder(f"column {name!r} is {schema.field(name).type}; use text, integers, booleans or dates")
            if name.startswith(("_", ".")) or _ESCAPED.search(name):
                raise NoFolder(f"readers would leave out, or misread, a folder named after column {name!r}")
        if len(set(self.columns)) < len(self.columns):
            raise NoFolder("partition_by names a column twice")
        if len(self.columns) == len(schema.names):
            raise NoFolder("partition_by leaves no column for the files")
        if self.date_of is not None:
            self._refuse_date(self.date_of, schema)

    def _refuse_date(self, name: str, schema: pa.Schema) -> None:
        if name not in schema.names or not pa.types.is_timestamp(schema.field(name).type):
            raise NoFolder(f"there is no column {name!r} of timestamps for date_of")
        if DATE in schema.names:
            raise NoFolder(f"the stream has a column {DATE!r}, as date_of would add")

    def in_files(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the files. They may be null, as Parquet readers expect."""
        return pa.schema([pa.field(each.name, each.type) for each in schema if each.name not in self.columns])

    def folders(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return the folder of each row; None without partitioning. Raises NoFolder."""
        columns = [(name, batch.column(name)) for name in self.columns]
        try:
            if self.date_of is not None:
                columns.append((DATE, _dates(batch.column(self.date_of))))
            levels = [_level(name, column) for name, column in columns]
        except (OverflowError, ValueError) as error:  # of a date; Arrow's errors are ValueErrors
            raise NoFolder(f"a date lies outside the years 1 to 9999: {error}") from error
        return pc.binary_join_element_wise(*levels, "/") if levels else None

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows per folder, "" without partitioning; in their order, with all columns. Raises NoFolder."""
        folders = self.folders(batch)
        if folders is None:
            yield "", batch
            return
        folder_codes = folders.dictionary_encode()
        places = folder_codes.indices.to_numpy()
        order = np.argsort(places, kind="stable")
        begins = np.searchsorted(places[order], np.arange(len(folder_codes.dictionary) + 1))
        for number, folder in enumerate(folder_codes.dictionary.to_pylist()):
            yield folder, batch.take(pa.array(order[begins[number] : begins[number + 1]]))


def has_folders(kind: pa.DataType) -> bool:
    """Return whether values of a type can be names of folders."""
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind)


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def folder_of(name: str, value: Any) -> str:
    """Return the folder of one value: a text, an int, a bool, a date, or None."""
    if value is None or value == "":
        return f"{name}={DEFAULT}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    encoded = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
    return f"{name}={_DEFAULT_AS_TEXT if encoded == DEFAULT else encoded}"


def values_in(path: str) -> dict[str, str | None]:
    """Return the text per column that the folders of a path hold; None for a missing value."""
    values: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, text = folder.partition("=")
        if equals:
            values[unquote(name)] = None if text == DEFAULT else unquote(text)
    return values


def value_of(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value that a folder holds, as a type for which `has_folders` is true. Raises NoFolder."""
    try:
        return pa.scalar(_parsed(text, kind), kind)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise NoFolder(f"{text!r} is no {kind}") from error


def _parsed(text: str | None, kind: pa.DataType) -> Any:
    if text is None or is_text(kind):
        return text
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text] if text in ("true", "false") else _no_value(text)
    if pa.types.is_date32(kind):
        return date.fromisoformat(text)
    return int(text) if _DIGITS.fullmatch(text) else _no_value(text)


def _no_value(text: str) -> Any:
    raise ValueError(text)


def _level(name: str, column: pa.Array) -> pa.Array:
    """Return the folder of each row for one column."""
    value_codes = column.dictionary_encode(null_encoding="encode")
    names = [folder_of(name, value) for value in value_codes.dictionary.to_pylist()]
    if long := next((each for each in names if len(each.encode()) > NAME_BYTES_MAX), None):
        raise NoFolder(f"the folder {long[:40]!r}... would have a name of more than {NAME_BYTES_MAX} bytes")
    return pa.array(names, pa.string()).take(value_codes.indices)


def _dates(column: pa.Array) -> pa.Array:
    """Return the dates of timestamps, in UTC: those without a zone are taken as UTC."""
    days = pc.floor_temporal(column.cast(pa.timestamp(column.type.unit)), unit="day")
    return days.cast(pa.date32())
