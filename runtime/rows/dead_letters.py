"""Dead letters: records that cannot be decoded, and rows on which a function fails.

A dead letter is a row of a fixed schema. It goes to the app's DLQ, which is an ordinary sink: staged with the epoch of
the source or operator that refused the record, delivered after the commit, with the writer's tag. So the DLQ holds each
dead letter exactly once, and an epoch that did not complete leaves none.

`raw` keeps the record unchanged: one row as an Arrow IPC stream with its own schema, or bytes and text as the source
had them; `form` names the form. No part of it is ever run as code.

Invariants
    - A dead letter depends on its record and the plan alone: no clock, no host, no attempt.
    - Unknown values are null: after a shuffle, the partition and offset of a row are unknown.

Pure.
Source: DESIGN section 6; docs/decisions/0009-dead-letters.md.
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
"""Name of the dead-letter sink; reserved: no source, operator or sink of a job can have it."""
Form = Literal["record", "row", "text", "bytes"]
"""Contents of `raw`: the source's record as one Arrow row; the row that reached the operator, likewise; the record as
readable text; the record's bytes as the source had them."""

OnError = Literal["fail", "dlq", "drop"]
"""Policy for a record that cannot be decoded, or for a row that a function fails on."""

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
"""Column of a batch that a source reads: why the record could not be decoded; null for decoded records. The three
columns come last, and only if a record was refused; the other columns of a refused record are null."""
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
        """Add a dead letter."""
        self._waiting.append(letter)
        if len(self._waiting) >= LETTERS_PER_BATCH:
            self._pack()

    def take(self) -> list[pa.RecordBatch]:
        """Return all dead letters that were added since the last call."""
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


def reported(error: str) -> str:
    """Return an error's text in a form fit to store: bounded in length, valid UTF-8, the same in every process."""
    return without_addresses(error)[:ERROR_LENGTH_MAX].encode("utf-8", "replace").decode("utf-8")


def without_addresses(text: str) -> str:
    """Remove memory addresses from the output of `repr`: objects without a text of their own show one."""
    return _ADDRESS.sub(" at 0x...", text)


def encode_row(batch: pa.RecordBatch, row: int = 0) -> bytes:
    """Return one row of a batch as an Arrow IPC stream with its schema."""
    one = batch.take(pa.array([row]))  # a slice would carry the buffers of the whole batch
    fields = [f.with_nullable(f.nullable or bool(c.null_count)) for f, c in zip(one.schema, one.columns, strict=True)]
    schema = pa.schema(fields)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(one.columns, schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def decode_row(raw: bytes) -> pa.RecordBatch:
    """Decode a row that `encode_row` wrote, as a batch of one row.

    Raises:
        Damaged: the bytes are not such a row.
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
    """Put refused records back among the decoded ones, each in its place.

    Args:
        decoded: The decoded records, in order.
        refused: Refused records by their index among all records.
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
