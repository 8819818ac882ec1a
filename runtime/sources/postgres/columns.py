"""Columns of a Postgres table as columns of Arrow, and values as the server writes them in text.

| Postgres | Arrow | | Postgres | Arrow |
|---|---|---|---|---|
| smallint, integer, bigint | int64 | | date | date32 |
| real, double precision | double | | timestamp | timestamp[us] |
| boolean | bool | | timestamp with time zone | timestamp[us, UTC] |
| text, varchar, char, name, enum | string | | numeric(p, s) of at most 38 digits | decimal128 |
| uuid, json, jsonb | string | | bytea | binary |
| every other type | string: its text | | a domain | as its base type |

A numeric(p, s) has as many digits as its values can have before and behind the point: numeric(3, 5) is
decimal128(5, 5), numeric(5, -2) is decimal128(7, 0). A numeric without a precision, or with more digits, is text.

The texts are those of a session with `SETTINGS`. Whole columns are converted, not single values.

Invariants
    - No type is guessed, and no value is rounded: what no Arrow type holds exactly is the text that the server writes.
    - A value that the Arrow type cannot hold (infinity, NaN of a numeric, a year before 1 or after 9999) is an error.

Pure: no clock, thread or I/O.
Source: postgresql.org/docs/current: datatype.html, catalog-pg-type.html.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError

SETTINGS = {
    "datestyle": "ISO",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "client_encoding": "UTF8",
    "intervalstyle": "iso_8601",
    "lc_monetary": "C",
    "standard_conforming_strings": "on",
}
"""Settings of a session whose texts are converted here. An extra digit keeps all bits of a float in its text."""
BOOL, BYTEA, TIMESTAMPTZ, NUMERIC, FLOAT4 = 16, 17, 1184, 1700, 700
_KINDS: dict[int, pa.DataType] = {
    BOOL: pa.bool_(),
    BYTEA: pa.binary(),
    19: pa.utf8(),  # name
    20: pa.int64(),
    21: pa.int64(),
    23: pa.int64(),
    25: pa.utf8(),  # text
    114: pa.utf8(),  # json
    FLOAT4: pa.float64(),
    701: pa.float64(),
    1042: pa.utf8(),  # char(n)
    1043: pa.utf8(),  # varchar
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    2950: pa.utf8(),  # uuid
    3802: pa.utf8(),  # jsonb
}
"""By the number that the type has in every database."""
_HEADER = 4
"""A type modifier is larger by this number than the size that it encodes."""
_DIGITS_MOST = 38
_SCALE_BITS = 11
"""The highest bit is the sign."""


@dataclass(frozen=True)
class PgColumn:
    """A column as the server describes it."""

    name: str
    type_oid: int
    typmod: int
    """The modifier of the type, such as that of numeric(10,2); -1: it has none."""
    type_name: str = ""
    """For messages."""
    base: tuple[int, int] | None = None
    """Number and modifier of the type of which this one is a domain; None: it is none."""

    @property
    def of(self) -> tuple[int, int]:
        """Number and modifier of the type whose texts its values have."""
        return self.base or (self.type_oid, self.typmod)

    @property
    def shape(self) -> tuple[str, int, int]:
        """The properties that have to stay the same while the table is captured."""
        return self.name, self.type_oid, self.typmod


def arrow_type(column: PgColumn) -> pa.DataType:
    """Return the Arrow type for the values of a column."""
    oid, typmod = column.of
    return _decimal(typmod) if oid == NUMERIC else _KINDS.get(oid, pa.utf8())


def row_fields(columns: tuple[PgColumn, ...], key: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow columns of a table."""
    return pa.schema([pa.field(column.name, arrow_type(column), column.name not in key) for column in columns])


def decoded(texts: pa.Array, column: PgColumn) -> pa.Array:
    """Return the values of a column.

    Args:
        texts: Strings as the server writes the values; null stays null.

    Raises:
        pa.ArrowInvalid, pl.exceptions.ComputeError: see `values_of`, which reports them.
    """
    kind = arrow_type(column)
    match column.of[0]:
        case _ if pa.types.is_string(kind):
            return texts
        case oid if oid == BOOL:
            return pc.equal(texts, "t")
        case oid if oid == BYTEA:
            series = pl.Series(pl.from_arrow(texts)).str.strip_prefix("\\x").str.decode("hex", strict=True)
            return series.to_arrow().cast(kind)
        case oid if oid == FLOAT4:
            return texts.cast(pa.float32()).cast(kind)
        case oid if oid == TIMESTAMPTZ:  # the zone of the session is UTC: each text ends in "+00"
            at = pc.utf8_slice_codeunits(texts, 0, -3).cast(pa.timestamp("us"))
            return at.cast(pa.int64()).cast(kind)
        case _:
            return texts.cast(kind)


def values_of(where: str, texts: pa.Array, column: PgColumn) -> pa.Array:
    """Return the values of a column, as `decoded` does.

    Raises:
        ConfigError: a value cannot be held by the Arrow type.
    """
    try:
        return decoded(texts, column)
    except (pa.ArrowInvalid, pl.exceptions.PolarsError):
        raise ConfigError(
            f"{where}: the column {column.name!r} has a value that {arrow_type(column)} cannot hold",
            not_done="the changes since the last append were not captured",
            next_step="correct the value (infinity, NaN of a numeric, or a year before 1 or after 9999) before it is "
            "captured: a change that is in the stream already can only be left behind, by capturing the table into "
            "another log",
        ) from None


def _decimal(typmod: int) -> pa.DataType:
    """Return the type for numeric(p, s): text if the precision is unlimited, or more than a decimal has."""
    if typmod < _HEADER:
        return pa.utf8()
    digits, scale = ((typmod - _HEADER) >> 16) & 0xFFFF, (typmod - _HEADER) & ((1 << _SCALE_BITS) - 1)
    if scale >> (_SCALE_BITS - 1):
        digits, scale = digits + (1 << _SCALE_BITS) - scale, 0  # a negative scale rounds before the point
    digits = max(digits, scale)
    return pa.decimal128(digits, scale) if digits <= _DIGITS_MOST else pa.utf8()
