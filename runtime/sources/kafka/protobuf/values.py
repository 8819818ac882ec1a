"""Values in Protobuf, as the source of one process decodes them: without their headers, by the message of the job.

A value in the wire format of Confluent is a zero byte, the id of its schema in four bytes, the indexes of its message
in the file, and the encoding. The indexes are zigzag varints: how many, then each from the outermost message inwards;
one zero byte stands for the first message.

Invariants
    - Whether a record is undecodable depends on it alone.
    - A process knows the message by the files that travel with the form, and needs no generated code.

Pure. Source: docs.confluent.io, wire format; docs/decisions/0094-protobuf-values.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.extras import install
from holdfast.runtime.rows.dead_letters import Refused
from holdfast.runtime.sources.kafka.messages import Values, listed
from holdfast.runtime.sources.kafka.protobuf.columns import Misfit, ProtobufColumns
from holdfast.secrets import Secret

HEADER_BYTES = 5
INDEXES_MAX = 32
"""Messages within messages; the library allows no deeper ones."""
_VARINT_MAX = 5
"""Bytes of a number of 32 bits."""
FIRST = (0,)
"""The indexes of the first message of a file."""


@dataclass(frozen=True)
class ProtobufForm:
    """How the values of a topic are read; it travels to the workers.

    Args:
        files: The descriptors of the message's file and of those that it imports, each after those that it needs.
        message: The full name.
        indexes: Where the message is in its file; None: values have no header.
    """

    files: tuple[bytes, ...]
    message: str
    indexes: tuple[int, ...] | None

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that reading needs: none, as no registry is asked."""
        return ()

    def opened(self, columns: pa.Schema) -> ProtobufValues:
        """Return what decodes values.

        Raises:
            ConfigError: the library is missing, or the message does not fit the columns.
        """
        try:
            decoder = ProtobufColumns(self._class(), columns)
        except Misfit as error:
            raise ConfigError(
                f"hf.Protobuf: {error}",
                not_done="the job was not planned",
                next_step="give schema= with columns that can be read; or read the bytes with hf.Raw()",
            ) from None
        return ProtobufValues(self, decoder)

    def _class(self) -> Any:
        try:
            from google.protobuf import descriptor_pool, message_factory
        except ImportError as error:
            raise no_library(error) from error
        pool = descriptor_pool.DescriptorPool()
        for each in self.files:
            pool.AddSerializedFile(each)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(self.message))


class ProtobufValues:
    """Decodes values to rows. For one thread at a time."""

    def __init__(self, form: ProtobufForm, columns: ProtobufColumns) -> None:
        self._form, self._columns = form, columns

    def check(self) -> None:
        """Nothing outside is needed."""

    def decode(self, given: Values) -> tuple[pa.RecordBatch, dict[int, Refused]]:
        """Return the rows of these values, and those that are refused, by their index."""
        values = listed(given)
        why: dict[int, str] = {}
        lines, places = list[bytes](), list[int]()
        for place, value in enumerate(values):
            if value is None:
                why[place] = "the value is null: a tombstone, which is no row"
            elif (line := self._without_header(value, place, why)) is not None:
                lines.append(line)
                places.append(place)
        schema = self._columns.schema
        rows = pa.Table.from_batches(self._columns.decode(lines, places, why), schema).combine_chunks().to_batches()
        refused = {place: Refused(why[place], "bytes", values[place] or b"") for place in sorted(why)}
        return (rows[0] if rows else pa.RecordBatch.from_pylist([], schema)), refused

    def _without_header(self, value: bytes, place: int, why: dict[int, str]) -> bytes | None:
        form_indexes = self._form.indexes
        if form_indexes is None:
            return value
        if len(value) <= HEADER_BYTES or value[0] != 0:
            why[place] = "it does not begin with a zero byte and the id of a schema, as values of a registry do"
            return None
        header = indexes_of(value, HEADER_BYTES)
        if header is None:
            why[place] = "the indexes of its message, behind the id of its schema, are not readable"
            return None
        indexes, end = header
        if indexes != form_indexes:
            why[place] = f"it is message {list(indexes)} of its file, but {self._form.message} is {list(form_indexes)}"
            return None
        return value[end:]


def indexes_of(value: bytes, at: int) -> tuple[tuple[int, ...], int] | None:
    """Return the indexes of a message that begin there, and where they end; None if there are none."""
    varint = _number(value, at)
    if varint is None or not 0 <= varint[0] <= INDEXES_MAX:
        return None
    count, at = varint
    if count == 0:
        return FIRST, at
    indexes = []
    for _ in range(count):
        varint = _number(value, at)
        if varint is None or varint[0] < 0:
            return None
        index, at = varint
        indexes.append(index)
    return tuple(indexes), at


def _number(value: bytes, at: int) -> tuple[int, int] | None:
    """Return a zigzag varint, and where it ends; None if it is cut off or too long."""
    zigzag = 0
    for shift, byte in enumerate(value[at : at + _VARINT_MAX]):
        zigzag |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), at + shift + 1
    return None


def no_library(error: ImportError) -> ConfigError:
    """Return the error for a machine without the library."""
    return ConfigError(
        f"hf.Protobuf needs protobuf, which cannot be imported: {error}",
        not_done="nothing was opened",
        next_step=f"install it here and on every worker: {install('protobuf')}",
    )
