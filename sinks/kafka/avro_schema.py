"""The schema in Avro that a sink gives its values: one record with a field per column.

Pure. Source: Avro 1.12 specification; docs/decisions/0088-avro-values.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError

INTS = {"int8", "int16", "int32", "uint8", "uint16"}
"""Columns whose values an int holds."""
LONGS = {*INTS, "int64", "uint32"}
"""Columns whose values a long holds."""


class NoForm(Exception):
    """A column or a value has no form in a schema; the message says which."""


def derived(schema: pa.Schema, name: str) -> str:
    """Return the schema of columns as JSON text; equal columns give equal texts.

    Raises:
        ConfigError: a column has no form.
    """
    try:
        return json.dumps({"type": "record", "name": name, "fields": [_field(each, name) for each in schema]})
    except NoForm as error:
        raise ConfigError(
            f"hf.Avro: {error}",
            not_done="the job was not planned",
            next_step="cast the column before the sink, or leave it out",
        ) from None


def _field(field: pa.Field, of: str) -> dict[str, Any]:
    if not field.name.isascii() or not field.name.isidentifier():
        raise NoForm(f"the column {field.name!r} is no name in Avro: letters without accents, digits and _ are")
    kind = _derived(field.type, f"{of}_{field.name}")
    if not field.nullable:
        return {"name": field.name, "type": kind}
    return {"name": field.name, "type": ["null", kind], "default": None}


def _derived(kind: pa.DataType, name: str) -> Any:
    """Return the type of a column; records and fixed within it are named by their path."""
    for fits, made in _DERIVED:
        if fits(kind):
            return made
    if pa.types.is_timestamp(kind) and kind.tz == "UTC" and kind.unit in ("us", "ms"):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.unit == "us" else "timestamp-millis"}
    if kind == pa.time64("us"):
        return {"type": "long", "logicalType": "time-micros"}
    if pa.types.is_decimal(kind) and kind.scale >= 0:
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", "name": name, "size": kind.byte_width}
    if is_list(kind):
        return {"type": "array", "items": _item(kind.value_field, name)}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": _item(kind.item_field, name)}
    if pa.types.is_struct(kind) and kind.num_fields:
        return {"type": "record", "name": name, "fields": [_field(each, name) for each in kind]}
    raise NoForm(f"{name} has type {kind}, which Avro values cannot hold here")


def _item(field: pa.Field, name: str) -> Any:
    kind = _derived(field.type, f"{name}_item")
    return ["null", kind] if field.nullable else kind


def is_list(kind: pa.DataType) -> bool:
    """Return whether a column holds lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_DERIVED: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (lambda kind: str(kind) in INTS, "int"),
    (lambda kind: str(kind) in LONGS, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_boolean, "boolean"),
    (lambda kind: str(kind) in ("string", "large_string"), "string"),
    (lambda kind: str(kind) in ("binary", "large_binary"), "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
)
