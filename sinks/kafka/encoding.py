"""Rows as records of a topic: their keys and values as bytes, in the forms of json_rows.py.

The key of a record is made of the sink's key columns, the value holds all columns. Keys and values are made and handed
on as columns, without an object per record.

Pure: values in, values out. Source: API.md (sources); docs/guide/kafka.md; docs/decisions/0076-kafka-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.sinks.contract.sink import check_null_keys
from holdfast.sinks.contract.target import DELETE, OP
from holdfast.sinks.json_values.rows import (
    TimeForm,
    check_finite,
    check_forms,
    is_raw,
    key_column,
    largest,
    object_column,
    objects,
    raw_column,
)
from holdfast.sinks.kafka.target import Records

VALUE = "value"
"""The column that holds the value of a record whose values are raw."""
RECORD_OVERHEAD = 512
"""More bytes than the client adds to a record when it compares its size with the limit."""


class Values(Protocol):
    """How the columns of a stream become the value of a record; comparable and picklable."""

    def check(self, where: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
        """Refuse columns that have no form. Raises ConfigError."""

    def check_library(self) -> None:
        """Refuse a machine without what `encode` needs. Raises ConfigError."""

    def accept(self, where: str, batch: pa.RecordBatch) -> None:
        """Refuse rows that have no form. Raises ConfigError."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """Return one value per row."""

    def column(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        """Return one value per row, as a column."""
        return pa.array(self.encode(batch), pa.large_binary())

    def largest(self, batch: pa.RecordBatch) -> int:
        """Return a number of bytes that no row takes as key and value together, if that is quick to find."""


@dataclass(frozen=True)
class JsonValues(Values):
    """Each value is a JSON object with all columns, in their order.

    Args:
        time: How points in time are written: as text, or as a number of seconds, milliseconds or microseconds.
    """

    time: TimeForm = "rfc3339"

    def check(self, where: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
        check_forms(where, schema, key)

    def check_library(self) -> None:
        """Needs no library."""

    def accept(self, where: str, batch: pa.RecordBatch) -> None:
        check_finite(where, batch)

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        return list(objects(batch, batch.schema.names, self.time))

    def column(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        return object_column(batch, batch.schema.names, self.time)

    def largest(self, batch: pa.RecordBatch) -> int:
        return largest(batch)


@dataclass(frozen=True)
class RawValues(Values):
    """The column `value`, binary or text, is the value as it is; null is a record without a value."""

    def check(self, where: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
        others = [name for name in schema.names if name not in (VALUE, *key)]
        if VALUE not in schema.names or not is_raw(schema.field(VALUE).type) or others:
            raise ConfigError(
                f"{where}: raw values need a column {VALUE!r} of type binary or string, and no other column but those "
                f"of the key; the stream has {', '.join(f'{field.name}: {field.type}' for field in schema)}",
                not_done="the job was not planned",
                next_step=f"select it before the sink: .select(..., {VALUE}=...), or give value=hf.JSON(...)",
            )

    def check_library(self) -> None:
        """Needs no library."""

    def accept(self, where: str, batch: pa.RecordBatch) -> None:
        """Takes every row."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        found: list[bytes | None] = self.column(batch).to_pylist()
        return found

    def column(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        return raw_column(batch.column(VALUE))

    def largest(self, batch: pa.RecordBatch) -> int:
        return largest(batch)


@dataclass(frozen=True)
class Encoding:
    """How the rows of a sink become records.

    Args:
        where: How messages name the target.
        values: The form of values.
        key: The columns of the key; empty: records have no key.
        record_max: Bytes of the largest record that a producer takes.
        header: Returns what every value begins with; None: nothing.
    """

    where: str
    values: Values
    key: tuple[str, ...]
    record_max: int
    header: Callable[[], bytes] | None = None

    def records(self, batch: pa.RecordBatch) -> Records:
        """Return the rows as records; a delete has no value.

        Raises:
            ConfigError: a row that replaces or deletes has no key.
            HoldfastError: the header is not known now.
        """
        if OP not in batch.schema.names:
            return Records(self._keys(batch), self._values(batch))
        check_null_keys(self.where, self.key, batch)
        rows, deleted = batch.drop_columns([OP]), pc.equal(batch.column(OP), DELETE)
        kept = self._values(rows.filter(pc.invert(deleted)))  # what a delete has beside its key may have no form
        gone = deleted.to_numpy(zero_copy_only=False)
        return Records(self._keys(rows), kept.take(pa.array(np.cumsum(~gone) - 1, mask=gone)))

    def accept(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the topic can never take. Raises ConfigError."""
        upserts = OP in batch.schema.names
        if upserts:
            check_null_keys(self.where, self.key, batch)
            batch = batch.filter(pc.not_equal(batch.column(OP), DELETE)).drop_columns([OP])
        check_finite(self.where, batch.select(list(self.key)))
        self.values.accept(self.where, batch)
        if self.values.largest(batch) + RECORD_OVERHEAD < self.record_max:
            return
        sizes = _sizes(self.values.column(batch))
        if (keys := self._keys(batch)) is not None:
            sizes = pc.add(sizes, _sizes(keys))
        if (size := pc.max(sizes).as_py() or 0) + RECORD_OVERHEAD > self.record_max:
            raise ConfigError(
                f"{self.where}: a row takes {size:,} bytes as a record, the limit is {self.record_max:,}",
                not_done="the rows were not written",
                next_step='give options={"message.max.bytes": N}, with at least as much in max.message.bytes of the '
                "topic, or make the rows smaller",
            )

    def _values(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        values = self.values.column(batch)
        if self.header is None:
            return values
        header, nothing = pa.scalar(self.header(), values.type), pa.scalar(b"", values.type)
        return pc.binary_join_element_wise(header, values, nothing)

    def _keys(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray | None:
        return key_column(batch, self.key) if self.key else None


def _sizes(values: pa.LargeBinaryArray) -> pa.Int64Array:
    return pc.fill_null(pc.binary_length(values), 0)
