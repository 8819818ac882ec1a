"""`hf.Protobuf`: values in Protobuf, by a generated class or a descriptor.

Source: API.md (sources); docs/decisions/0094-protobuf-values.md.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.schema import data_schema_of
from holdfast.runtime.sources.kafka.protobuf.columns import Misfit, columns_of
from holdfast.runtime.sources.kafka.protobuf.values import ProtobufForm

Framing = Literal["confluent", "none"]
"""The framing at the start of a value."""


class Protobuf(RowsOf[T]):
    """Values in Protobuf, which a source reads.

    Columns are the fields of the message, by name. With header="confluent", a value begins with a zero byte, the id of
    its schema and the indexes of its message, the wire format of Confluent's serializers. The id is ignored: numbers
    name the fields, so no registry is asked.

    Args:
        message: A class that `protoc` generated, or the descriptor of a message. Workers need no generated code.
        schema: A dataclass or pyarrow.Schema: the fields to read, and their columns; None: all fields.
        header: "confluent", or "none": values are the encoding alone.

    Raises:
        ConfigError: an argument cannot be used, or a field has no form as a column.
    """

    @checked("hf.Protobuf", "(bids_pb2.Bid)")
    def __init__(
        self, message: Any, schema: type[T] | ArrowSchema | None = None, header: Framing = "confluent"
    ) -> None:
        descriptor = getattr(message, "DESCRIPTOR", message)
        if not all(hasattr(descriptor, each) for each in ("full_name", "file", "fields")):
            raise _refused(f"{message!r} is not a message", "give a class that protoc generated, such as bids_pb2.Bid")
        if header not in get_args(Framing):
            raise _refused(f"header is {header!r}", f"use one of {', '.join(get_args(Framing))}")
        self.row_type = schema if isinstance(schema, type) else None
        try:
            self.schema: pa.Schema = columns_of(descriptor) if schema is None else data_schema_of(schema)
        except Misfit as error:
            raise _refused(
                str(error), "give schema= with columns that can be read, or read the bytes with hf.Raw()"
            ) from None
        indexes = _indexes(descriptor) if header == "confluent" else None
        self._form = ProtobufForm(_files(descriptor.file), descriptor.full_name, indexes)
        self._form.opened(self.schema)  # refuses columns that the message does not fit

    def __repr__(self) -> str:
        return f"Protobuf({self._form.message})"

    def form(self, _topic: str | None) -> ProtobufForm:
        """Return how a source reads values."""
        return self._form


def _files(file: Any) -> tuple[bytes, ...]:
    """Return the descriptors of a file and of all that it imports, each after those that it needs."""
    descriptors: dict[str, bytes] = {}

    def follow(each: Any) -> None:
        if each.name not in descriptors:
            for needed in each.dependencies:
                follow(needed)
            descriptors[each.name] = each.serialized_pb

    follow(file)
    return tuple(descriptors.values())


def _indexes(message: Any) -> tuple[int, ...]:
    """Return where a message is in its file, from the outermost message inwards."""
    outer = message.containing_type
    if outer is None:
        return (list(message.file.message_types_by_name).index(message.name),)
    return (*_indexes(outer), [each.name for each in outer.nested_types].index(message.name))


def _refused(what: str, next_step: str) -> ConfigError:
    return ConfigError(f"hf.Protobuf: {what}", not_done="the job was not planned", next_step=next_step)
