"""Records without a value as rows that delete: a compacted topic, read as a table.

A record without a value has nothing but its key. It becomes the JSON object that a record with a value would be: the
columns of the key, and the mark `holdfast_deleted`. So the reader of JSON alone decides what is a row. The forms of
keys are those that a sink writes: one column of text or bytes is the key as it is, one of another type its JSON value,
several are a JSON object.

Invariants
    - A key gives the key's columns and the mark, whatever else it holds.
    - A key that has another form stays a record without a value, which cannot be decoded.

Pure. Source: docs/decisions/0075-kafka-source.md; sinks/kafka/encoding.py.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from holdfast.storage.log.changelog import DELETED

_VALUE: msgspec.json.Decoder[msgspec.Raw] = msgspec.json.Decoder(msgspec.Raw)
_OBJECT: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Tombstones:
    """Turns the keys of records without a value into JSON objects.

    Args:
        columns: The columns of the key, in the order of the sink that wrote it.
    """

    def __init__(self, columns: Sequence[pa.Field]) -> None:
        assert columns, "a record without a key names no row"
        self._columns = tuple(columns)

    def value(self, key: bytes | None) -> bytes | None:
        """Return the value that stands for a record with this key and no value; None if the key has another form."""
        if key is None:
            return None
        try:
            found = self._of_one(key) if len(self._columns) == 1 else _OBJECT.decode(key)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        named = {field.name: found[field.name] for field in self._columns if field.name in found}
        return msgspec.json.encode({**named, DELETED.name: True})

    def _of_one(self, key: bytes) -> dict[str, object]:
        (field,) = self._columns
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            return {field.name: key.decode()}
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            return {field.name: base64.b64encode(key).decode()}
        return {field.name: _VALUE.decode(key)}
