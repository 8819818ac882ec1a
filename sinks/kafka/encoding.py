"""Rows as records of a topic: their keys and values as bytes, column by column.

The key of a record is made of the sink's key columns. One column of text or bytes is the key as it is, as other
producers write it; one column of another type is a JSON value, several columns are a JSON object. The value holds all
columns.

In JSON, times are text in RFC 3339 (UTC, six digits of a second) or numbers since 1970, dates are text, decimals are
text, so that no reader rounds them, and bytes are base64: the forms that hf.JSON reads. JSON has none for NaN and
infinities, so rows with them are refused before they are staged.

Pure: values in, values out. Source: API.md (sources); docs/guide/kafka.md; docs/design/0076-kafka-sink.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.sinks.contract import DELETE, OP, check_null_keys
from holdfast.sinks.kafka.target import Records

TimeForm = Literal["rfc3339", "s", "ms", "us"]
VALUE = "value"
"""The column that holds the value of a record whose values are raw."""
RECORD_OVERHEAD = 512
"""More bytes than the client adds to a record when it compares its size with the limit."""
_PER_US: Mapping[str, int] = {"s": 1_000_000, "ms": 1_000, "us": 1}
_ESCAPED_MAX = 6
"""Bytes that JSON takes for one byte of text at most."""
_PLAIN_MAX = 90
"""Bytes that JSON takes for a value of a fixed width at most."""


class Values(Protocol):
    """How the columns of a stream become the value of a record; comparable and picklable."""

    def check(self, where: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
        """Refuse columns that have no form. Raises ConfigError."""

    def accept(self, where: str, batch: pa.RecordBatch) -> None:
        """Refuse rows that have no form. Raises ConfigError."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """Return one value per row."""


@dataclass(frozen=True)
class JsonValues:
    """Each value is a JSON object with all columns, in their order.

    Args:
        time: How points in time are written: as text, or as a number of seconds, milliseconds or microseconds.
    """

    time: TimeForm = "rfc3339"

    def check(self, where: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
        """See Values.check."""
        for field in schema:
            if not _has_form(field.type):
                raise ConfigError(
                    f"{where}: the column {field.name!r} has type {field.type}, which JSON values cannot hold here",
                    not_done="the job was not planned",
                    next_step=f"before the sink, cast it: .with_columns({field.name}=pl.col({field.name!r})"
                    ".cast(pl.String)), or leave it out",
                )

    def accept(self, where: str, batch: pa.RecordBatch) -> None:
        """See Values.accept."""
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_floating(field.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
                raise ConfigError(
                    f"{where}: the column {field.name!r} holds NaN or an infinity, for which JSON has no form",
                    not_done="the rows were not written",
                    next_step=f"before the sink, drop such rows with .filter(pl.col({field.name!r}).is_finite()), or "
                    "replace the values",
                )

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """See Values.encode."""
        return list(_objects(batch, batch.schema.names, self.time))


@dataclass(frozen=True)
class RawValues:
    """The column `value`, binary or text, is the value as it is; null is a record without a value."""

    def check(self, where: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
        """See Values.check."""
        others = [name for name in schema.names if name not in (VALUE, *key)]
        if VALUE not in schema.names or not _is_raw(schema.field(VALUE).type) or others:
            raise ConfigError(
                f"{where}: raw values need a column {VALUE!r} of type binary or string, and no other column but those "
                f"of the key; the stream has {', '.join(f'{field.name}: {field.type}' for field in schema)}",
                not_done="the job was not planned",
                next_step=f"select it before the sink: .select(..., {VALUE}=...), or give value=hf.JSON(...)",
            )

    def accept(self, where: str, batch: pa.RecordBatch) -> None:
        """See Values.accept."""

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """See Values.encode."""
        return _raw(batch.column(VALUE))


@dataclass(frozen=True)
class Encoding:
    """How the rows of a sink become records.

    Args:
        where: How messages name the target.
        values: The form of values.
        key: The columns of the key; empty: records have no key.
        record_max: Bytes of the largest record that a producer takes.
    """

    where: str
    values: Values
    key: tuple[str, ...]
    record_max: int

    def records(self, batch: pa.RecordBatch) -> Records:
        """Return the rows as records; a delete has no value.

        Raises:
            ConfigError: a row that replaces or deletes has no key.
        """
        if OP not in batch.schema.names:
            return Records(self._keys(batch), self.values.encode(batch))
        check_null_keys(self.where, self.key, batch)
        rows = batch.drop_columns([OP])
        values = self.values.encode(rows)
        for row in pc.indices_nonzero(pc.equal(batch.column(OP), DELETE)).to_pylist():
            values[row] = None
        return Records(self._keys(rows), values)

    def accept(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the topic can never take. Raises ConfigError."""
        upserts = OP in batch.schema.names
        if upserts:
            check_null_keys(self.where, self.key, batch)
            batch = batch.filter(pc.not_equal(batch.column(OP), DELETE)).drop_columns([OP])
        self.values.accept(self.where, batch)
        if _largest(batch) + RECORD_OVERHEAD < self.record_max:
            return
        records = Records(self._keys(batch), self.values.encode(batch))
        sizes = [len(value or b"") for value in records.values]
        if records.keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, records.keys, strict=True)]
        if sizes and max(sizes) + RECORD_OVERHEAD > self.record_max:
            raise ConfigError(
                f"{self.where}: a row takes {max(sizes):,} bytes as a record, the limit is {self.record_max:,}",
                not_done="the rows were not written",
                next_step='give options={"message.max.bytes": N}, with at least as much in max.message.bytes of the '
                "topic, or make the rows smaller",
            )

    def _keys(self, batch: pa.RecordBatch) -> list[bytes | None] | None:
        return keys_of(batch, self.key) if self.key else None


def keys_of(batch: pa.RecordBatch, key: tuple[str, ...]) -> list[bytes | None]:
    """Return the key of each row's record; None for a single key column that is null."""
    if len(key) > 1:
        return list(_objects(batch, key, "rfc3339"))
    column = batch.column(key[0])
    if _is_raw(column.type):
        return _raw(column)
    prefix = len(_member(key[0])) + 1
    found = [text[prefix:-1] for text in _objects(batch, key, "rfc3339")]
    if column.null_count:
        return [None if missing else text for missing, text in zip(column.is_null().to_pylist(), found, strict=True)]
    return list(found)


def _objects(batch: pa.RecordBatch, names: Sequence[str], time: TimeForm) -> list[bytes]:
    """Return a JSON object per row."""
    if not names or not batch.num_rows:
        return [b"{}"] * batch.num_rows
    columns = [_plain(batch.column(name), time).alias(name) for name in names]
    text = pl.DataFrame(columns).write_ndjson()
    assert isinstance(text, str)
    return text.encode().splitlines()


def _plain(column: pa.Array, time: TimeForm) -> pl.Series:
    """Return a column whose values have the form that JSON gives them."""
    series = pl.from_arrow(column)
    assert isinstance(series, pl.Series)
    if _is_time(column.type):
        if time == "rfc3339":
            return series.dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        return series.dt.timestamp("us") // _PER_US[time]
    if pa.types.is_date32(column.type):
        return series.dt.strftime("%Y-%m-%d")
    if pa.types.is_decimal(column.type):
        return series.cast(pl.String)
    return series.bin.encode("base64") if _is_binary(column.type) else series


def _raw(column: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found


def _largest(batch: pa.RecordBatch) -> int:
    """Return a size that no record of these rows exceeds."""
    size = 0
    for field, column in zip(batch.schema, batch.columns, strict=True):
        size += len(_member(field.name)) + 2
        if _is_raw(field.type):
            size += _ESCAPED_MAX * (pc.max(pc.binary_length(column)).as_py() or 0)
        else:
            size += _PLAIN_MAX
    return 2 * size  # The columns of the key come twice.


def _member(name: str) -> bytes:
    """Return how an object begins the member of this name."""
    return pl.DataFrame({name: [0]}).write_ndjson().encode()[1:-3]


def _has_form(kind: pa.DataType) -> bool:
    return _is_raw(kind) or any(fits(kind) for fits in _FIXED_WIDTH)


def _is_raw(kind: pa.DataType) -> bool:
    return bool(_is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz == "UTC")


_FIXED_WIDTH: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_date32,
    pa.types.is_decimal,
    _is_time,
)
"""Types whose values have a bounded length as JSON."""
