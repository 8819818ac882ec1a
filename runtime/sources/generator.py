"""`hf.Generator`: records computed from their index; for tests, demonstrations and load.

Record i is what the user's function returns for i, so reading again returns the same records and none are stored.
Offset o of partition p is index o * partitions + p.

A rate limits how many records exist at a moment, by a monotonic clock, counted from the offset at which each partition
was first read after opening. So a job that resumes from a checkpoint does not wait for the time before it to pass
again, and records that were read before are read again without waiting. A driver that does not read itself says where
its run begins (`appeared`), and has others read without the rate (`unpaced`).

Invariants
    - The record at an offset depends only on the function and the offset (PROTOCOL P3: the clock decides when).
    - With a count the source ends after exactly that many records over all partitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError, HoldfastError, JobFailed, Where, is_failure
from holdfast.ports import Clock
from holdfast.runtime.plan.ahead import Ahead
from holdfast.runtime.plan.source import OpenSource, PartitionReader, Source, direct_reader
from holdfast.runtime.rows.dead_letters import ERROR, Refused, with_refused, without_addresses
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.rows import WrongRow, batch_of_columns, batch_of_rows
from holdfast.runtime.rows.schema import data_schema_of
from holdfast.runtime.wire.clock import SystemClock
from holdfast.traits import Endless, SourceTraits

ROWS_MAX = 65_536
ROWS_MAX_ONE_BY_ONE = 4_096
"""For a function called per record: a read must not hold up the operator thread for long."""
_VARIABLE_WIDTH_BYTES = 32
_CORRECT = "correct the function: for every index it must return a record that fits the schema"


class Generator(Source, RowsOf[T]):
    """A source whose records are computed.

    Args:
        schema: A dataclass or pyarrow.Schema.
        fn: Returns record i for i: a dataclass instance, dict or tuple. Deterministic in i.
        rate: Records per second over all partitions; None is as fast as possible.
        count: Number of records over all partitions; None: the source never ends.
        partitions: Number of partitions.
        vectorised: `fn` takes an int64 array of indices and returns a dict of columns or a RecordBatch.

    Raises:
        ConfigError: an argument is out of range, or the schema cannot be used.
    """

    schema: pa.Schema
    row_type: type | None

    @checked("hf.Generator", "(Bid, lambda i: Bid(i, 1.0), count=1_000)")
    def __init__(
        self,
        schema: type[T] | ArrowSchema,
        fn: Callable[[Any], Any],
        rate: float | None = None,
        count: int | None = None,
        partitions: int = 1,
        vectorised: bool = False,
    ) -> None:
        self.schema = data_schema_of(schema)
        self.row_type = schema if isinstance(schema, type) else None
        self.fn, self.rate, self.count = fn, rate, count
        self.partitions, self.vectorised = partitions, vectorised
        self.ends: Mapping[int, int] | None = None
        """No record from here on is computed; see `unpaced`."""
        given: object = fn
        problem = None
        if not callable(given):
            problem = f"fn is {fn!r}, which is not callable"
        elif rate is not None and not rate > 0:
            problem = f"rate is {rate!r}, but must be above 0"
        elif count is not None and count < 0:
            problem = f"count is {count!r}, but must not be negative"
        elif partitions < 1:
            problem = f"partitions is {partitions!r}, but must be at least 1"
        if problem:
            raise ConfigError(f"{self!r}: {problem}", not_done="the source was not created", next_step="correct it")

    @classmethod
    def example(cls) -> Generator[Any]:
        """Return a generator that has every trait; see listed.py."""
        return cls(pa.schema([pa.field("n", pa.int64())]), lambda n: {"n": n}, rate=1.0, count=1)

    def __repr__(self) -> str:
        return f"Generator({getattr(self.fn, '__qualname__', repr(self.fn))})"

    @property
    def where(self) -> str:
        """How messages name the generator."""
        return repr(self)

    @property
    def traits(self) -> SourceTraits:
        endless = Endless(
            what="a generator without a count",
            instead="give the generator a count",
            for_microbatch="give the generator a count or a rate",
        )
        return SourceTraits(
            kind="Generator",
            local_paths=(),
            endless=endless if self.count is None else None,
            paced=self.rate is not None,
        )

    def unpaced(self, ends: Mapping[int, int] | None = None) -> Generator:
        """The rate paces new records only."""
        source = copy(self)
        source.rate, source.ends = None, ends
        return source

    def check(self) -> None:
        """Compute record 0 and raise ConfigError if that fails or does not fit the schema."""
        if self.count == 0:
            return
        next_step = _CORRECT
        try:
            first = self.batch(0, 0, 1)
            nulls = [c.name for c in self.schema if not c.nullable and first.column(c.name).null_count]
            what = f"the function of {self!r} returned null as {nulls[0]!r} at index 0" if nulls else None
            what = first.column(ERROR)[0].as_py() if ERROR in first.schema.names else what
        except JobFailed as error:
            what, next_step = error.what, error.next_step
        if what is not None:
            raise ConfigError(what, not_done="the job was not started", next_step=next_step)

    def open(self, clock: Clock | None = None) -> OpenGenerator:
        return OpenGenerator(self, clock or SystemClock())

    def batch(self, partition: int, offset: int, rows: int) -> pa.RecordBatch:
        """Compute records; one that does not fit the schema is refused, as `Source.read` describes.

        Raises JobFailed naming the index, or the HoldfastError that the function raised.
        """
        indices = np.arange(offset, offset + rows, dtype=np.int64) * self.partitions + partition
        try:
            return self._whole(indices) if self.vectorised else self._one_by_one(indices)
        except WrongRow as wrong:
            at = 0 if wrong.row is None else wrong.row
            named = f"index {indices[at]}" if rows == 1 or wrong.row is not None else _span(indices)
            raise self._failed(partition, offset + at, f"returned a wrong result at {named}: {wrong.what}") from wrong

    def end(self, partition: int) -> int | None:
        """Return the total number of records of the partition, None if it never ends."""
        return None if self.count is None else max(0, -(-(self.count - partition) // self.partitions))

    def _one_by_one(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
        rows = []
        for index in indices.tolist():
            try:
                rows.append(self.fn(index))
            except HoldfastError:
                raise
            except BaseException as error:
                if not is_failure(error):
                    raise
                offset, partition = divmod(index, self.partitions)
                raise self._failed(partition, offset, f"raised {_shown(error)} at index {index}") from error
        try:
            return batch_of_rows(self.schema, rows, self.row_type)
        except WrongRow:
            wrong = _wrong_rows(self.schema, rows, 0, self.row_type)
        refusals = {
            row: Refused(
                f"the function of {self!r} returned a wrong result at index {indices[row]}: {what}", "text", text
            )
            for row, what in wrong.items()
            for text in [_text(rows[row])]
        }
        good = [given for row, given in enumerate(rows) if row not in wrong]
        fitting = batch_of_rows(self.schema, good, self.row_type)
        return with_refused(fitting, refusals)

    def _whole(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
        try:
            columns = self.fn(indices)
        except HoldfastError:
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            offset, partition = divmod(int(indices[0]), self.partitions)
            raise self._failed(partition, offset, f"raised {_shown(error)} at {_span(indices)}") from error
        if not isinstance(columns, dict | pa.RecordBatch):
            raise WrongRow(f"{type(columns).__name__} is neither a dict of columns nor a RecordBatch")
        try:
            return batch_of_columns(self.schema, columns, len(indices))
        except WrongRow as wrong:
            if wrong.row is None:
                raise  # no single record is at fault
            nullable = pa.schema([column.with_nullable(True) for column in self.schema])
            return batch_of_columns(nullable, columns, len(indices), held=False)  # a policy decides about it

    def _failed(self, partition: int, offset: int, did: str) -> JobFailed:
        return JobFailed(
            f"the function of {self!r} {did}",
            not_done="no record from this offset on was read",
            next_step=_CORRECT,
            where=Where(partition=partition, offset=offset),
        )


@dataclasses.dataclass
class _Pace:
    """Where a partition was first read, and how far it has been read since."""

    first: int
    reached: int


class OpenGenerator(OpenSource):
    """The generator as one worker reads it."""

    def __init__(self, source: Generator, clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._opened_at = clock.monotonic()
        self._paces: dict[int, _Pace] = {}
        width = sum(_width(column.type) for column in source.schema)
        self._row_bytes = max(1, width)
        self._rows_max = ROWS_MAX if source.vectorised else ROWS_MAX_ONE_BY_ONE

    def identity(self, partition: int, offset: int) -> str:
        """Return the number of partitions, which decides the record at an offset; the user answers for the function."""
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
        """Return each partition's end; without one, what exists by the rate, or what was read if nothing limits it.

        An end is returned also while the rate holds records before it back: a run reads to it.
        """
        ends = {}
        for partition in self.partitions():
            end = self._source.end(partition)
            ends[partition] = self._existing(partition) if end is None else end
        return ends

    def appeared(self, begun: Mapping[int, int]) -> dict[int, int]:
        if self._source.rate is None:
            return self.end_offsets()
        ends = {}
        for partition in self.partitions():
            due, end = self._due(begun.get(partition, 0)), self._source.end(partition)
            ends[partition] = due if end is None else min(due, end)
        return ends

    def retention_start(self, partition: int) -> int:
        return 0

    def read(self, partition: int, offset: int, max_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        pace = self._paces.setdefault(partition, _Pace(offset, offset))
        rows = min(self._rows_max, max(1, max_bytes // self._row_bytes))
        if (end := self._source.end(partition)) is not None:
            rows = min(rows, end - offset)
        if self._source.ends is not None:
            rows = min(rows, self._source.ends.get(partition, 0) - offset)
        if self._source.rate is not None:
            rows = min(rows, self._existing(partition) - offset)
        if rows <= 0:
            return None, offset
        batch = self._source.batch(partition, offset, rows)
        pace.reached = max(pace.reached, offset + rows)
        return batch, offset + rows

    def reader(self, partition: int, offset: int, ahead: Ahead) -> PartitionReader:
        """The user's function runs in the operator thread, whose silence is watched."""
        return direct_reader(self, partition, offset)

    def ended(self, partition: int, offset: int) -> bool:
        end = self._source.end(partition)
        return end is not None and offset >= end

    def close(self) -> None:
        """Nothing to release."""

    def _existing(self, partition: int) -> int:
        pace = self._paces.get(partition, _Pace(0, 0))
        return pace.reached if self._source.rate is None else max(pace.reached, self._due(pace.first))

    def _due(self, first: int) -> int:
        """Return how far the rate allows to read a partition that was first read at this offset."""
        assert self._source.rate is not None
        share = self._source.rate / self._source.partitions
        return first + int((self._clock.monotonic() - self._opened_at) * share)


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return _VARIABLE_WIDTH_BYTES


def _wrong_rows(schema: pa.Schema, rows: list[Any], first: int, row_type: type | None) -> dict[int, str]:
    """Return which rows do not fit, and why; found by halving."""
    try:
        batch_of_rows(schema, rows, row_type)
        return {}
    except WrongRow as wrong:
        if len(rows) == 1:
            return {first: wrong.what}
    half = len(rows) // 2
    found = _wrong_rows(schema, rows[:half], first, row_type)
    return found | _wrong_rows(schema, rows[half:], first + half, row_type)


def _text(record: object) -> bytes:
    """Return a record that is not a row, as readable text that is the same in every process."""
    try:
        text = repr(record)
        return (text if isinstance(record, str | bytes) else without_addresses(text)).encode("utf-8", "replace")
    except Exception as error:  # noqa: BLE001 - users' objects may raise anything
        return f"{type(record).__name__}, which cannot be shown: {type(error).__name__}".encode()


def _span(indices: np.ndarray[Any, np.dtype[np.int64]]) -> str:
    return f"indices {indices[0]} to {indices[-1]}"


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
