"""`hf.Generator`: records computed from their index; for tests, demonstrations and load.

Record i is whatever the user's function gives for i, so reading again gives the same and nothing needs to be stored.
Offset o of partition p is index o * partitions + p.

A rate limits how many records exist at a moment, by a monotonic clock, counted from where each partition was first
read after opening: a job that goes on from a checkpoint does not wait for the past to happen again, and what was
read before is read again without waiting.

Invariants
    - The record at an offset depends on the function and the offset alone (PROTOCOL P3: the clock decides when).
    - With a count the source ends after exactly that many records over all partitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError, HoldfastError, JobFailed, Where
from holdfast.ports import Clock
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.dead_letters import ERROR, Refused, with_refused, without_addresses
from holdfast.runtime.rows import WrongRow, batch_of_columns, batch_of_rows
from holdfast.runtime.schema import schema_of

ROWS_MAX = 65_536
ROWS_MAX_ONE_BY_ONE = 4_096
"""For a function called per record: a read must not hold up the operator thread for long."""
_VARIABLE_WIDTH_BYTES = 32
_CORRECT = "correct the function: for every index it must give a record that fits the schema"


class Generator:
    """A source whose records are computed.

    Args:
        schema: A dataclass or pyarrow.Schema.
        fn: Gives record i for i: a dataclass instance, dict or tuple. Deterministic in i.
        rate: Records per second over all partitions; None is as fast as possible.
        count: Records in all; None never ends.
        partitions: Number of partitions.
        vectorised: `fn` takes an int64 array of indices and gives a dict of columns or a RecordBatch.

    Raises:
        ConfigError: an argument is out of range, or the schema cannot be used.
    """

    @checked("hf.Generator", "(Bid, lambda i: Bid(i, 1.0), count=1_000)")
    def __init__(
        self,
        schema: type | pa.Schema,
        fn: Callable[[Any], Any],
        rate: float | None = None,
        count: int | None = None,
        partitions: int = 1,
        vectorised: bool = False,
    ) -> None:
        self.schema = schema_of(schema)
        self.row_type = schema if isinstance(schema, type) else None
        self.fn, self.rate, self.count = fn, rate, count
        self.partitions, self.vectorised = partitions, vectorised
        given: object = fn
        problem = None
        if not callable(given):
            problem = f"fn is {fn!r}, which cannot be called"
        elif rate is not None and not rate > 0:
            problem = f"rate is {rate!r}, it must be above 0"
        elif count is not None and count < 0:
            problem = f"count is {count!r}, it must not be negative"
        elif partitions < 1:
            problem = f"partitions is {partitions!r}, it must be at least 1"
        if problem:
            raise ConfigError(f"{self!r}: {problem}", not_done="the source was not created", next_step="correct it")

    def __repr__(self) -> str:
        return f"Generator({getattr(self.fn, '__qualname__', repr(self.fn))})"

    def check(self) -> None:
        """Compute record 0 and raise ConfigError if that fails or does not fit the schema."""
        if self.count == 0:
            return
        next_step = _CORRECT
        try:
            first = self.batch(0, 0, 1)
            nulls = [c.name for c in self.schema if not c.nullable and first.column(c.name).null_count]
            what = f"the function of {self!r} gives null as {nulls[0]!r} at index 0" if nulls else None
            what = first.column(ERROR)[0].as_py() if ERROR in first.schema.names else what
        except JobFailed as error:
            what, next_step = error.what, error.next_step
        if what is not None:
            raise ConfigError(what, not_done="the job was not started", next_step=next_step)

    def open(self, clock: Clock | None = None) -> OpenGenerator:
        return OpenGenerator(self, clock or SystemClock())

    def batch(self, partition: int, offset: int, rows: int) -> pa.RecordBatch:
        """Compute records; one that does not fit the schema is refused, as `Source.read` says.

        Raises JobFailed naming the index, or the HoldfastError that the function raised.
        """
        indices = np.arange(offset, offset + rows, dtype=np.int64) * self.partitions + partition
        try:
            return self._whole(indices) if self.vectorised else self._one_by_one(indices)
        except WrongRow as wrong:
            at = 0 if wrong.row is None else wrong.row
            named = f"index {indices[at]}" if rows == 1 or wrong.row is not None else _span(indices)
            raise self._failed(partition, offset + at, f"gave a wrong result at {named}: {wrong.what}") from wrong

    def end(self, partition: int) -> int | None:
        """Return how many records the partition will ever have, None for no limit."""
        return None if self.count is None else max(0, -(-(self.count - partition) // self.partitions))

    def _one_by_one(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
        rows = []
        for index in indices.tolist():
            try:
                rows.append(self.fn(index))
            except HoldfastError:
                raise
            except Exception as error:
                offset, partition = divmod(index, self.partitions)
                raise self._failed(partition, offset, f"raised {_shown(error)} at index {index}") from error
        try:
            return batch_of_rows(self.schema, rows)
        except WrongRow:
            wrong = _wrong_rows(self.schema, rows, 0)
        refused = {
            row: Refused(f"the function of {self!r} gave a wrong result at index {indices[row]}: {what}", "text", text)
            for row, what in wrong.items()
            for text in [_text(rows[row])]
        }
        fitting = batch_of_rows(self.schema, [given for row, given in enumerate(rows) if row not in wrong])
        return with_refused(fitting, refused)

    def _whole(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
        try:
            columns = self.fn(indices)
        except HoldfastError:
            raise
        except Exception as error:
            offset, partition = divmod(int(indices[0]), self.partitions)
            raise self._failed(partition, offset, f"raised {_shown(error)} at {_span(indices)}") from error
        if not isinstance(columns, dict | pa.RecordBatch):
            raise WrongRow(f"{type(columns).__name__} is no dict of columns and no RecordBatch")
        try:
            return batch_of_columns(self.schema, columns, len(indices))
        except WrongRow as wrong:
            if wrong.row is None:
                raise  # no single record is at fault
            nullable = pa.schema([column.with_nullable(True) for column in self.schema])
            return batch_of_columns(nullable, columns, len(indices))

    def _failed(self, partition: int, offset: int, did: str) -> JobFailed:
        return JobFailed(
            f"the function of {self!r} {did}",
            not_done="no record from this offset on was read",
            next_step=_CORRECT,
            where=Where(partition=partition, offset=offset),
        )


@dataclasses.dataclass
class _Pace:
    """Where a partition was first read, and how far it was read since."""

    first: int
    reached: int


class OpenGenerator:
    """The generator as one worker reads it."""

    def __init__(self, source: Generator, clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._opened_at = clock.monotonic()
        self._paces: dict[int, _Pace] = {}
        width = sum(_width(column.type) for column in source.schema)
        self._row_bytes = max(1, width)
        self._rows_max = ROWS_MAX if source.vectorised else ROWS_MAX_ONE_BY_ONE

    def identity(self, partition: int, offset: int) -> str:
        """Return the number of partitions, which decides what record is at an offset; the code is the user's affair."""
        return f"generator {self._source.partitions}"

    def changed(self, identity: str) -> str | None:
        kind, _, rest = identity.partition(" ")
        if kind != "generator":
            return f"it is {self._source!r}, but a {kind} was read"
        if rest != str(self._source.partitions):
            return f"{self._source!r} has {self._source.partitions} partitions, but was read with {rest} partitions"
        return None

    def partitions(self) -> list[int]:
        return list(range(self._source.partitions))

    def end_offsets(self) -> dict[int, int]:
        """Return the end where there is one; else what exists by the rate, or what was read if nothing limits it."""
        ends = {}
        for partition in self.partitions():
            end = self._source.end(partition)
            ends[partition] = self._existing(partition) if end is None else end
        return ends

    def retention_start(self, partition: int) -> int:
        return 0

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        pace = self._paces.setdefault(partition, _Pace(offset, offset))
        rows = min(self._rows_max, max(1, max_bytes // self._row_bytes))
        if (end := self._source.end(partition)) is not None:
            rows = min(rows, end - offset)
        if self._source.rate is not None:
            rows = min(rows, self._existing(partition) - offset)
        if rows <= 0:
            return None, offset
        batch = self._source.batch(partition, offset, rows)
        pace.reached = max(pace.reached, offset + rows)
        return batch, offset + rows

    def ended(self, partition: int, offset: int) -> bool:
        end = self._source.end(partition)
        return end is not None and offset >= end

    def close(self) -> None:
        """Nothing is held."""

    def _existing(self, partition: int) -> int:
        pace = self._paces.get(partition, _Pace(0, 0))
        if self._source.rate is None:
            return pace.reached
        share = self._source.rate / self._source.partitions
        return max(pace.reached, pace.first + int((self._clock.monotonic() - self._opened_at) * share))


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VARIABLE_WIDTH_BYTES


def _wrong_rows(schema: pa.Schema, rows: list[Any], first: int) -> dict[int, str]:
    """Return which rows do not fit, by halving, and why."""
    try:
        batch_of_rows(schema, rows)
        return {}
    except WrongRow as wrong:
        if len(rows) == 1:
            return {first: wrong.what}
    half = len(rows) // 2
    return _wrong_rows(schema, rows[:half], first) | _wrong_rows(schema, rows[half:], first + half)


def _text(record: object) -> bytes:
    """Return a record that is no row, as text for people, and the same in every process."""
    try:
        text = repr(record)
        return (text if isinstance(record, str | bytes) else without_addresses(text)).encode("utf-8", "replace")
    except Exception as error:  # noqa: BLE001 - users' objects may raise anything
        return f"{type(record).__name__}, which cannot be shown: {type(error).__name__}".encode()


def _span(indices: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    return f"indices {indices[0]} to {indices[-1]}"


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
