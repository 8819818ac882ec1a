"""Parses columns as users type them: `auction:int64,price:double?,at:timestamp`; the question mark allows null.

`holdfast log create` also understands the form in which Holdfast prints an existing column, so that a schema can be
copied from a message.
"""

from __future__ import annotations

import re

import pyarrow as pa

from holdfast.errors import ConfigError

_NAMED: dict[str, pa.DataType] = {
    **{str(kind): kind for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(kind): kind for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    "int": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "double": pa.float64(),
    "utf8": pa.utf8(),
    "string": pa.utf8(),
    "str": pa.utf8(),
    "bool": pa.bool_(),
    "binary": pa.binary(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "date32": pa.date32(),
    "date32[day]": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns),\s*(?:tz=)?([\w/+:-]+)\]")
_DECIMAL = re.compile(r"decimal128\((\d+),\s*(\d+)\)")
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[(]*[\])])")


def parse_columns(text: str) -> pa.Schema:
    """Return the schema that the text describes. Raises ConfigError, which names the wrong column."""
    return pa.schema([_column(part.strip()) for part in _OUTSIDE_BRACKETS.split(text) if part.strip()])


def _column(part: str) -> pa.Field:
    name, colon, kind = part.partition(":")
    name, kind = name.strip(), kind.strip()
    nullable = kind.endswith("?")
    arrow_type = _type(kind.removesuffix("?").strip())
    if not name or not colon or arrow_type is None:
        raise ConfigError(
            f"{part!r} in --schema is not name:type",
            not_done="no log was created",
            next_step="use the types int64, double, string, bool, binary, timestamp, date or decimal128(p,s), "
            'with ? after a type that allows null, as in --schema "auction:int64,price:double?"',
        )
    return pa.field(name, arrow_type, nullable)


def _type(kind: str) -> pa.DataType | None:
    if (found := _NAMED.get(kind)) is not None:
        return found
    try:
        if match := _TIMESTAMP.fullmatch(kind):
            return pa.timestamp(match[1], tz=match[2])
        if match := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(match[1]), int(match[2]))
    except ValueError:
        return None
    return None
