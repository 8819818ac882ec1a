"""Reads a file of lines from any byte on: JSON lines and CSV.

A row is at the position of its first byte in the file. A position within a line names the rows behind it: so the
position after a row, one byte on, may be stored and read from again. Blank lines are no rows, except in a CSV file of
one column, where they are an empty value.

Source: docs/decisions/0080-files-source.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.runtime.formats.csv_lines import CsvLines, header_of
from holdfast.runtime.rows.dead_letters import Form, Refused, with_refused
from holdfast.runtime.sources.files.contents import Contents, FilePiece, WrongFile
from holdfast.storage.folders import ReadFile

LINE_BYTES_MAX = 64 << 20
"""The longest line that is read."""
_BLANKS = b" \t"


class Lines(Protocol):
    """Decodes lines to rows."""

    def decode(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        """Return the rows, and the lines that are refused by their index."""


class _Raw(NamedTuple):
    """Whole lines with their ends, from a byte of the file on."""

    first: int
    data: bytes


class TextContents(Contents):
    """An open file of lines.

    Args:
        size: Bytes of the file.
        begin: The byte at which its first row may begin.
        blank: Whether a blank line is a row.
    """

    def __init__(
        self, file: ReadFile, name: str, size: int, lines: Lines, begin: int = 0, *, blank: bool = False
    ) -> None:
        self._file, self._name, self._size, self._lines, self._begin = file, name, size, lines, begin
        self._blank = blank
        self._line_at = begin

    def read(self, at: int, bytes_max: int) -> FilePiece:
        raw = self._raw(max(at, self._begin), bytes_max)
        self._line_at = following = raw.first + len(raw.data)
        values, offsets = _lines_of(raw.data, self._blank)
        if not values:
            return FilePiece(None, None, following)
        offsets += raw.first
        batch, refused = self._lines.decode(values)
        placed = {row: self._placed(each, int(offsets[row])) for row, each in refused.items()}
        return FilePiece(with_refused(batch, placed), offsets, following)

    def _placed(self, refused: Refused, at: int) -> Refused:
        """Return a refused line with its place, as text if it is some."""
        try:
            refused.raw.decode("utf-8")
        except UnicodeDecodeError:
            form: Form = "bytes"
        else:
            form = "text"
        return replace(refused, error=f"{refused.error} (file {self._name}, byte {at})", form=form)

    def _raw(self, at: int, bytes_max: int) -> _Raw:
        """Return lines that begin at a byte or after it; none if no line does."""
        first = at
        if at not in (self._line_at, self._begin):  # the byte before shows whether a line begins here
            first = self._skipped(at - 1)
        self._file.seek(first)
        data, chunk_bytes = b"", max(1, bytes_max)
        while first + len(data) < self._size:
            more = self._file.read(min(chunk_bytes, self._size - first - len(data)))
            if not more:
                raise WrongFile(f"it ends at byte {first + len(data)} of {self._size}")
            ended = more.rfind(b"\n") if not data else more.find(b"\n")
            if ended >= 0:
                return _Raw(first, data + more[: ended + 1])
            data += more
            if len(data) > LINE_BYTES_MAX:
                raise WrongFile(f"the line at byte {first} is longer than {LINE_BYTES_MAX >> 20} MiB")
            chunk_bytes = max(chunk_bytes, len(data))
        return _Raw(first, data)

    def _skipped(self, at: int) -> int:
        """Return the byte after the next line end."""
        self._file.seek(at)
        while at < self._size:
            if not (data := self._file.read(min(1 << 16, self._size - at))):
                raise WrongFile(f"it ends at byte {at} of {self._size}")
            if (ended := data.find(b"\n")) >= 0:
                return at + ended + 1
            at += len(data)
        return self._size


def _lines_of(data: bytes, blank: bool) -> tuple[list[bytes], NDArray[np.int64]]:
    """Return the lines without their ends, and where each begins; `blank`: also those that are blank."""
    byte_values = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(byte_values == ord("\n"))
    starts = np.concatenate([[0], ends + 1]).astype(np.int64)
    lines = data.split(b"\n")
    if starts[-1] == len(data):  # nothing follows the last line end
        starts, lines = starts[:-1], lines[:-1]
    if b"\r" in data:
        lines = [line.removesuffix(b"\r") for line in lines]
    maybe = [] if blank else np.flatnonzero(byte_values[starts] <= ord(" ")).tolist()
    if empty := {place for place in maybe if not lines[place].strip(_BLANKS)}:
        kept = [place for place in range(len(lines)) if place not in empty]
        return [lines[place] for place in kept], starts[kept]
    return lines, starts


def csv_contents(file: ReadFile, name: str, size: int, schema: pa.Schema) -> TextContents:
    """Return the contents of a CSV file, after its header was read. Raises WrongFile."""
    header = b""
    while b"\n" not in header and len(header) < min(size, LINE_BYTES_MAX) and (more := file.read(1 << 16)):
        header += more
    begin = header.find(b"\n") + 1 or len(header)
    try:
        names = header_of(header[:begin].rstrip(b"\r\n"))
    except ValueError as error:
        raise WrongFile(f"its header cannot be read: {error}") from error
    if missing := [column for column in schema.names if column not in names]:
        raise WrongFile(f"its header lacks {', '.join(missing)}; it has {', '.join(names)}")
    return TextContents(file, name, size, CsvLines(schema, names), begin, blank=len(names) == 1)
