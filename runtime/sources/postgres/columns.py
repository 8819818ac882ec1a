"""Columns of a Postgres table as columns of Arrow, and values as the server writes them in text.

| Postgres | Arrow | | Postgres | Arrow |
|---|---|---|---|---|
| smallint, integer, bigint | int64 | | date | date32 |
| real, double precision | double | | timestamp | timestamp[us] |
| boolean | bool | | timestamp with time zone | timestamp[us, UTC] |
| text, varchar, char, name, enum | string | | numeric(p, s), p at most 38 | decimal128(p, s) |
| uuid, json, jsonb | string | | bytea | binary |

The texts are those of a session with `SETTINGS`. Whole columns are converted, not single values.

Invariants
    - A type that is not listed is refused by name; none is guessed, and no value is rounded.
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
    "standard_conforming_strings": "on",
}
"""Of a session whose texts are converted here. With an extra digit, the text of a float reads back as the same bits."""
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
SUPPORTED = (
    "smallint, integer, bigint, real, double precision, boolean, text, varchar, char, enums, uuid, json, jsonb, date, "
    "timestamp, timestamp with time zone, bytea, and numeric(p, s) with p at most 38"
)
_HEADER = 4
"""What a type modifier is larger by than what it says."""
_DIGITS_MOST = 38
_SCALE_BITS = 0x7FF


@dataclass(frozen=True)
class PgColumn:
    """A column as the server describes it."""

    name: str
    type_oid: int
    typmod: int
    """The modifier of the type, such as that of numeric(10,2); -1: it has none."""
    type_name: str = ""
    """For messages."""
    enum: bool = False

    @property
    def shape(self) -> tuple[str, int, int]:
        """What has to stay the same while the table is captured."""
        return self.name, self.type_oid, self.typmod


def arrow_type(column: PgColumn) -> pa.DataType | None:
    """Return the Arrow type for the values of a column; None if there is none."""
    if column.type_oid == NUMERIC:
        return _decimal(column.typmod)
    return pa.utf8() if column.enum else _KINDS.get(column.type_oid)


def row_fields(where: str, columns: tuple[PgColumn, ...], key: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow columns of a table.

    Raises:
        ConfigError: a column has a type that is not captured.
    """
    kinds = [arrow_type(column) for column in columns]
    refused = [column for column, kind in zip(columns, kinds, strict=True) if kind is None]
    if refused:
        shown = ", ".join(f"{column.name} ({column.type_name or column.type_oid})" for column in refused)
        raise ConfigError(
            f"{where}: columns of these types are not captured: {shown}",
            not_done="nothing was captured",
            next_step=f"change their types; captured are {SUPPORTED}",
        )
    return pa.schema(
        [pa.field(column.name, kind, column.name not in key) for column, kind in zip(columns, kinds, strict=True)]
    )


def decoded(texts: pa.Array, column: PgColumn) -> pa.Array:
    """Return the values of a column.

    Args:
        texts: Strings as the server writes the values; null stays null.

    Raises:
        pa.ArrowInvalid, pl.exceptions.ComputeError: see `values_of`, which reports them.
    """
    kind = arrow_type(column)
    assert kind is not None, "the table was refused"
    match column.type_oid:
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


def _decimal(typmod: int) -> pa.DataType | None:
    """Return the type for numeric(p, s); None if the precision is unlimited or too large, or the scale is odd."""
    if typmod < _HEADER:
        return None
    digits, scale = ((typmod - _HEADER) >> 16) & 0xFFFF, (typmod - _HEADER) & _SCALE_BITS
    return pa.decimal128(digits, scale) if digits <= _DIGITS_MOST and scale <= digits else None
