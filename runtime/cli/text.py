"""Numbers, times and tables as text. Unknown values are shown as "-", never as zero.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from holdfast import quantities

UNKNOWN = "-"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_NUMBER = re.compile(r"-?[\d,.]+( [A-Za-z]{1,3})?( ago)?")


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], *, indent: int = 0) -> str:
    """Return the rows below their headers, in columns two spaces apart; numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    kinds = list(zip(*([_is_number(value) for value in row] for row in cells), strict=True)) or [()] * len(headers)
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    lines = []
    for row in [list(headers), *cells]:
        aligned_cells = (
            cell.rjust(width) if kind and all(kind) else cell.ljust(width)
            for cell, width, kind in zip(row, widths, kinds, strict=True)
        )
        lines.append(" " * indent + "  ".join(aligned_cells).rstrip())
    return "\n".join(lines)


def count(number: float | None) -> str:
    """Return a whole number with separators."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def size(count_bytes: int | None) -> str:
    """Return bytes in the largest unit that leaves at least one."""
    if count_bytes is None:
        return UNKNOWN
    value, unit = float(count_bytes), _SIZES[0]
    for larger in _SIZES[1:]:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def span(milliseconds: float | None) -> str:
    """Return a length of time: "35 ms", "1.2 s", "4 min", "2.5 h", "3.1 d"."""
    if milliseconds is None:
        return UNKNOWN
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def moment(micros: int | None) -> str:
    """Return a point in time, UTC, to the second."""
    if micros is None:
        return UNKNOWN
    return datetime.fromtimestamp(micros / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def plural(number: float | None, noun: str) -> str:
    """Return "1 epoch", "2 epochs", "- epochs"."""
    return f"{UNKNOWN} {noun}s" if number is None else quantities.plural(round(number), noun)


def _cell(value: object) -> str:
    if value is None or value == "":
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _is_number(cell: str) -> bool:
    return cell == UNKNOWN or _NUMBER.fullmatch(cell) is not None
