"""Dead letters: what becomes of a record that cannot be decoded, or of a row that a function fails on.

A dead letter is a row of a fixed schema. It goes to the app's DLQ, which is an ordinary sink: staged with the epoch of
the source or operator that refused the record, delivered after the commit, with the writer's tag. So each dead letter
is there exactly once, and an epoch that did not complete leaves none.

A record is kept as it was, in `raw`: one row as an Arrow IPC stream with its own schema, or bytes and text as the
source had them; `form` says which. Nothing of it is ever run as code.

Invariants
    - A dead letter depends on its record and the plan alone: no clock, no host, no attempt.
    - Unknown is null: a row behind a shuffle no longer knows its partition and offset.

Pure.
Source: DESIGN section 6; docs/design/0009-dead-letters.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from holdfast.errors import Damaged

DLQ = "dlq"
"""Name of the sink of dead letters; no source, operator or sink of a job can have it."""
Form = Literal["record", "row", "text", "bytes"]
"""What `raw` is: the source's record as one Arrow row; the row that reached the operator, likewise; the record as text,
for people; the record's bytes as the source had them."""

DEAD_LETTERS = pa.schema(
    [
        pa.field("operator", pa.utf8(), nullable=False),
        pa.field("source", pa.utf8()),
        pa.field("partition", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("error", pa.utf8(), nullable=False),
        pa.field("form", pa.utf8(), nullable=False),
        pa.field("raw", pa.binary(), nullable=False),
    ]
)
ERROR_LENGTH_MAX = 2_000
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
LETTERS_PER_BATCH = 4_096

ERROR = "_error"
"""In a batch that a source reads: why the record could not be decoded, null for those that were. A source puts the
three columns last, and only if some record was refused; the other columns of such a record are null."""
FORM, RAW = "_form", "_raw"
REFUSAL = (ERROR, FORM, RAW)
_REFUSALS = [pa.field(ERROR, pa.utf8()), pa.field(FORM, pa.utf8()), pa.field(RAW, pa.binary())]


@dataclass(frozen=True)
class Refused:
    """A record that a source could not decode."""

    error: str
    form: Form
    raw: bytes


@dataclass(frozen=True)
class DeadLetter:
    """One row of `DEAD_LETTERS`."""

    operator: str
    """The operator that failed, or the source that could not decode the record."""
    source: str | None
    partition: int | None
    offset: int | None
    error: str
    form: Form
    raw: bytes


class Letters:
    """The dead letters of one fragment, until its barrier."""

    def __init__(self) -> None:
        self._waiting: list[DeadLetter] = []
        self._batches: list[pa.RecordBatch] = []

    def add(self, letter: DeadLetter) -> None:
        """Take one in."""
        self._waiting.append(letter)
        if len(self._waiting) >= LETTERS_PER_BATCH:
            self._pack()

    def take(self) -> list[pa.RecordBatch]:
        """Return all that were added since the last call."""
        self._pack()
        batches, self._batches = self._batches, []
        return batches

    def _pack(self) -> None:
        if self._waiting:
            columns = [
                pa.array([getattr(letter, field.name) for letter in self._waiting], field.type)
                for field in DEAD_LETTERS
            ]
            self._batches.append(pa.RecordBatch.from_arrays(columns, schema=DEAD_LETTERS))
            self._waiting = []


def told(error: str) -> str:
    """Return an error's text as it can be stored: of bounded length, surely UTF-8, and the same in every process."""
    return without_addresses(error)[:ERROR_LENGTH_MAX].encode("utf-8", "replace").decode("utf-8")


def without_addresses(text: str) -> str:
    """Return what `repr` gave without the places in memory that it names of objects which have no text of their own."""
    return _ADDRESS.sub(" at 0x...", text)


def encode_row(batch: pa.RecordBatch, row: int = 0) -> bytes:
    """Return one row of a batch as an Arrow IPC stream that knows its columns."""
    one = batch.take(pa.array([row]))  # a slice would carry the buffers of the whole batch
    fields = [f.with_nullable(f.nullable or bool(c.null_count)) for f, c in zip(one.schema, one.columns, strict=True)]
    schema = pa.schema(fields)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(one.columns, schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def decode_row(raw: bytes) -> pa.RecordBatch:
    """Return what `encode_row` wrote: a batch of one row.

    Raises:
        Damaged: the bytes are something else.
    """
    try:
        batches = list(pa.ipc.open_stream(pa.py_buffer(raw)))
        if len(batches) == 1 and batches[0].num_rows == 1:
            batches[0].validate(full=True)
            return batches[0]
        why = f"it has {sum(batch.num_rows for batch in batches)} rows instead of one"
    except (pa.ArrowException, OSError) as error:
        why = str(error)
    raise Damaged(
        f"the raw record of a dead letter cannot be read: {why}",
        not_done="nothing was appended",
        next_step="check the store that holds the dead letters",
    )


def with_refused(decoded: pa.RecordBatch, refused: Mapping[int, Refused]) -> pa.RecordBatch:
    """Put refused records back between those that were decoded, each in its place.

    Args:
        decoded: The others, in order.
        refused: By the number that a record has among all of them.
    """
    if not refused:
        return decoded
    rows = decoded.num_rows + len(refused)
    places = np.ones(rows, bool)
    places[list(refused)] = False
    known = pa.array(np.cumsum(places) - 1, mask=~places)
    fields = [*(field.with_nullable(True) for field in decoded.schema), *_REFUSALS]
    columns = [column.take(known) for column in decoded.columns]
    for field in _REFUSALS:
        name = field.name.removeprefix("_")
        values = [getattr(refused[row], name) if row in refused else None for row in range(rows)]
        columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
