"""An encoder of Protobuf that shares no code with the library, and a file of messages for tests.

Source: protobuf.dev, encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2, wrappers_pb2

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


def varint(number: int) -> bytes:
    """Encode a number; a negative one takes ten bytes."""
    number &= (1 << 64) - 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def zigzag(number: int) -> bytes:
    """Encode a number so that small negative ones are short."""
    return varint(number * 2 if number >= 0 else -number * 2 - 1)


def tagged(number: int, kind: int, data: bytes) -> bytes:
    """Encode a field; bytes get their length."""
    return varint(number << 3 | kind) + (varint(len(data)) + data if kind == BYTES else data)


def framed(data: bytes, *indexes: int, schema: int = 7) -> bytes:
    """Put the header of Confluent in front; no index stands for the first message."""
    path = b"\0" if not indexes else zigzag(len(indexes)) + b"".join(map(zigzag, indexes))
    return b"\0" + schema.to_bytes(4, "big") + path + data


def place(given: dict[str, Any]) -> bytes:
    """Encode a Place."""
    found = tagged(1, BYTES, given["city"].encode()) if given["city"] else b""
    return found + (b"" if given["lat"] is None else tagged(2, EIGHT, struct.pack("<d", given["lat"])))


def bid(given: dict[str, Any]) -> bytes:
    """Encode a Bid whose columns are these; defaults of fields without presence are left out."""
    at = given["at"]
    parts = [
        *_scalars(given),
        b"" if at is None else tagged(4, BYTES, _time(at)),
        b"".join(tagged(7, VARINT, varint(each)) for each in given["tags"]),
        b"".join(tagged(8, BYTES, _entry(key, varint(n))) for key, n in given["counts"]),
        b"" if given["place"] is None else tagged(9, BYTES, place(given["place"])),
        b"".join(tagged(10, BYTES, place(each)) for each in given["seen"]),
    ]
    return b"".join(parts)


def _scalars(given: dict[str, Any]) -> Iterable[bytes]:
    if given["auction"]:
        yield tagged(1, VARINT, varint(given["auction"]))
    if given["price"]:
        yield tagged(2, EIGHT, struct.pack("<d", given["price"]))
    if given["channel"]:
        yield tagged(3, BYTES, given["channel"].encode())
    if given["age"] is not None:
        yield tagged(5, VARINT, varint(given["age"]))
    if given["kind"] != "UNKNOWN":
        yield tagged(6, VARINT, varint({"GOOD": 1, "BAD": -1}[given["kind"]]))
    if given["name"] is not None:
        yield tagged(11, BYTES, given["name"].encode())
    if given["raw"] is not None:
        yield tagged(12, BYTES, given["raw"])
    if given["wrapped"] is not None:
        yield tagged(13, BYTES, tagged(1, VARINT, varint(given["wrapped"])))
    if given["ok"]:
        yield tagged(14, VARINT, b"\1")
    if given["big"]:
        yield tagged(15, VARINT, varint(given["big"]))
    if given["small"]:
        yield tagged(16, VARINT, zigzag(given["small"]))


def _time(micros: int) -> bytes:
    seconds, rest = divmod(micros, 1_000_000)
    return tagged(1, VARINT, varint(seconds)) + tagged(2, VARINT, varint(rest * 1_000))


def _entry(key: str, value: bytes) -> bytes:
    return tagged(1, BYTES, key.encode()) + tagged(2, VARINT, value)


_TYPES = {"int64": 3, "double": 1, "string": 9, "int32": 5, "bytes": 12, "bool": 8, "uint64": 4, "sint32": 17}
_TIME, _WRAPPED = "google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"
_FILE = {
    "Bid": (
        *("auction int64 1", "price double 2", "channel string 3", "at .google.protobuf.Timestamp 4", "age? int32 5"),
        *("kind Kind 6", "tags* int64 7", "counts* .shop.Bid.CountsEntry 8", "place .shop.Place 9"),
        *("seen* .shop.Place 10", "name| string 11", "raw| bytes 12", "wrapped .google.protobuf.Int64Value 13"),
        *("ok bool 14", "big uint64 15", "small sint32 16"),
    ),
    "Place": ("city string 1", "lat? double 2"),
    "Tree": ("n int64 1", "left .shop.Tree 2"),
    "Empty": (),
    "Held": ("what .google.protobuf.Any 1", "n int64 2"),
}
"""Messages, each with fields as "name type number"; ? has presence, * is repeated, | is a member of the oneof."""


def messages() -> dict[str, Any]:
    """Return the descriptors of a file's messages, by name."""
    from google.protobuf import any_pb2

    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    pool = descriptor_pool.DescriptorPool()
    for each in (timestamp_pb2, wrappers_pb2, any_pb2):
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
        file.dependency.append(each.DESCRIPTOR.name)
    for name, fields in _FILE.items():
        _add(file.message_type.add(name=name), fields)
    entry = file.message_type[0].nested_type.add(name="CountsEntry")
    _add(entry, ("key string 1", "value int64 2"))
    entry.options.map_entry = True
    _add(file.message_type[1].nested_type.add(name="Inner"), ("n int64 1",))
    kind = file.enum_type.add(name="Kind")
    for name, number in {"UNKNOWN": 0, "GOOD": 1, "BAD": -1}.items():
        kind.value.add(name=name, number=number)
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"shop.{name}") for name in (*_FILE, "Place.Inner")}
    return found


def _add(message: Any, fields: Iterable[str]) -> None:
    for each in fields:
        given, kind, number = each.split()
        name = given.rstrip("?*|")
        field = message.field.add(name=name, number=int(number), label=3 if given.endswith("*") else 1)
        if kind in _TYPES:
            field.type = _TYPES[kind]
        else:
            field.type, field.type_name = (14, ".shop.Kind") if kind == "Kind" else (11, kind)
        if given.endswith("|"):
            if not message.oneof_decl:
                message.oneof_decl.add(name="who")
            field.oneof_index = 0
    for field, each in zip(message.field, fields, strict=True):
        if each.split()[0].endswith("?"):  # behind the real ones
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
