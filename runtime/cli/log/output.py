"""Rows of a log on the terminal: JSON lines that `log append` takes back, or an aligned table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.storage.held_values import rows_of
from holdfast.storage.log.changelog import deletes
from holdfast.storage.log.format import LogMeta

WIDTH_MAX = 60
_OPS = {False: "put", True: "delete"}


@dataclass(frozen=True)
class LogRow:
    """A row and its place in the log."""

    partition: int
    offset: int
    row: dict[str, Any]
    op: str | None = None
    """Operation of a record of a changelog: "put" or "delete"."""


def placed_rows(
    partition: int, batch: pa.RecordBatch, offsets: NDArray[np.int64] | None, following: int, changelog: bool = False
) -> list[LogRow]:
    """Return the rows of a batch as `LogReader.read_placed` gave it, or the records of a changelog."""
    at = range(following - batch.num_rows, following) if offsets is None else offsets.tolist()
    ops = [_OPS[bool(mark)] for mark in deletes(batch)] if changelog else [None] * batch.num_rows
    return [LogRow(partition, *each) for each in zip(at, rows_of(batch), ops, strict=True)]


def columns_shown(meta: LogMeta) -> list[str]:
    """Return the names of the columns, beside the place of a row; the operation of a record comes first."""
    return ["op", *meta.rows.names] if meta.changelog else meta.rows.names


def as_json_line(placed: LogRow) -> str:
    """Return one line of JSON: times in RFC 3339, bytes in base64, decimals and non-finite numbers as strings."""
    row = {name: finite(value) for name, value in placed.row.items()}
    op = {} if placed.op is None else {"op": placed.op}
    return msgspec.json.encode({"partition": placed.partition, "offset": placed.offset, **op, "row": row}).decode()


def table_lines(names: Sequence[str], rows: Iterable[LogRow]) -> list[str]:
    """Return an aligned table with a header."""
    cells = [["partition", "offset", *names]]
    cells += [_cells(names, row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def plain_line(names: Sequence[str], placed: LogRow) -> str:
    """Return one row with tabs between its cells, for output without an end."""
    return "\t".join(_cells(names, placed))


def _cells(names: Sequence[str], placed: LogRow) -> list[str]:
    op, values = ([], names) if placed.op is None else ([placed.op], names[1:])
    return [str(placed.partition), str(placed.offset), *op, *(cell(placed.row[name]) for name in values)]


def cell(value: Any) -> str:
    """Return a value as one cell of a table."""
    if value is None:
        return "null"
    text = value if isinstance(value, str) else msgspec.json.encode(finite(value)).decode().strip('"')
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= WIDTH_MAX else f"{text[: WIDTH_MAX - 1]}…"


def finite(value: Any) -> Any:
    """Return a value with numbers that JSON lacks as text; also inside structs, lists and maps."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
