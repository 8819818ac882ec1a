"""The key that a user types on the command line.

A key of one column is its value as text: 17, true, 2026-03-01, 2026-03-01T00:00:00Z, London; bytes are base64. Several
columns, a null, or a text that begins with "[", are a JSON list with one entry per column: '["GB", 17]', '[null]'.

Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.state.keys.batch import Keys, KeyType

_INTEGER = re.compile(r"-?[0-9]+")


def parsed(text: str, key: KeyType) -> Keys:
    """Return the one key that a user typed.

    Raises:
        ConfigError: it has another number of columns, or a value does not fit its column.
    """
    fields = map(pa.field, key.names, key.types, key.nullable)
    return key.encode(columns(text, list(fields)))


def columns(text: str, key: Sequence[pa.Field]) -> list[pa.Array]:
    """Return the values that a user typed, each as an array. Raises ConfigError."""
    values = _values(text, key)
    if len(values) != len(key):
        what = f"the key {text!r} has {len(values)} of {len(key)} columns"
        raise _refused(what, key)
    arrays = []
    for value, column in zip(values, key, strict=True):
        if value is None and not column.nullable:
            raise _refused(f"column {column.name!r} of the key is never null", key)
        try:
            arrays.append(pa.array([None if value is None else _value(value, column.type)], column.type))
        except (ValueError, TypeError, OverflowError, pa.ArrowInvalid, binascii.Error) as error:
            what = f"{value!r} is not a value of the key column {column.name!r}, {column.type}"
            raise _refused(what, key) from error
    return arrays


def _values(text: str, key: Sequence[pa.Field]) -> list[Any]:
    if not text.startswith("["):
        return [text]
    try:
        values = json.loads(text)
    except ValueError as error:
        raise _refused(f"the key {text!r} is not a JSON list: {error}", key) from error
    assert isinstance(values, list)
    return values


def _value(given: Any, kind: pa.DataType) -> Any:
    """Return the value for its column. Raises ValueError or TypeError if it is none."""
    if pa.types.is_boolean(kind) and (given in ("true", "false") or isinstance(given, bool)):
        return given in ("true", True)
    if pa.types.is_integer(kind) and (type(given) is int or (isinstance(given, str) and _INTEGER.fullmatch(given))):
        return int(given)
    if pa.types.is_floating(kind) and type(given) in (int, float, str):
        return float(given)
    if not isinstance(given, str) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        raise TypeError(given)
    if pa.types.is_date(kind):
        return date.fromisoformat(given)
    if pa.types.is_timestamp(kind):
        at = datetime.fromisoformat(given)
        if (at.tzinfo is None) != (kind.tz is None):
            raise ValueError("a time zone is missing, or there is one too many")
        return at
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64.b64decode(given, validate=True)
    return given


def _refused(what: str, key: Sequence[pa.Field]) -> ConfigError:
    named = ", ".join(f"{column.name}: {column.type}" for column in key)
    form = "a value such as 17 or 2026-03-01T00:00:00Z" if len(key) == 1 else "a JSON list such as '[\"GB\", 17]'"
    return ConfigError(what, not_done="no state was read", next_step=f"give {form}; the key is ({named})")
