"""Rows as values in Avro: what each column becomes.

The codec is given integers, bytes and text only (storage/kafka/avro.py). A row is written as a record with all columns
of the stream; deletes have no value.

| column | field |
|---|---|
| int8 to int32, uint8, uint16 | int, long |
| int64, uint32 | long |
| float, double | float, double; float only of float |
| bool | boolean |
| string | string, enum |
| binary, fixed_size_binary | bytes, fixed |
| timestamp[us, UTC], timestamp[ms, UTC] | timestamp-micros, timestamp-millis; finer digits are dropped |
| date32 | date |
| time64[us] | time-micros, time-millis; finer digits are dropped |
| decimal | decimal, of the same scale or a higher one |
| list, map, struct | array, map, record |

Pure: values in, values out. Source: Avro 1.12 specification; docs/decisions/0088-avro-values.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.sinks.json_values.rows import check_forms, largest
from holdfast.sinks.kafka import encoding
from holdfast.sinks.kafka.avro_schema import INTS, LONGS, NoForm, is_list
from holdfast.storage.kafka.avro import BadSchema, Type, codec_schema, parsed
from holdfast.storage.kafka.registry import no_library

Values = list[Any]
Take = Callable[[pa.Array], Values]
"""Returns a column's values as the codec takes them. Raises NoForm."""
_EXACT = Context(prec=100)
_UNBOUNDED = 1 << 62
_KEPT = 64
"""Schemas whose encoders a process keeps."""
_MULTIPLIED: Mapping[tuple[str, str | None], int] = {
    ("us", "timestamp-micros"): 1,
    ("us", "timestamp-millis"): -1_000,
    ("ms", "timestamp-micros"): 1_000,
    ("ms", "timestamp-millis"): 1,
}
"""By the unit of a column and the type of its field; negative: divided."""


@dataclass(frozen=True)
class AvroRows(encoding.Values):
    """Each value is a record of this schema; see encoding.Values.

    Args:
        avsc: The schema.
    """

    avsc: str

    def check(self, where: str, schema: pa.Schema, key: tuple[str, ...]) -> None:
        """Keys have the forms of JSON."""
        check_forms(where, pa.schema([schema.field(name) for name in key]), key)
        try:
            _takers(self.avsc, schema, True)
        except (NoForm, BadSchema) as error:
            raise ConfigError(
                f"{where}: the stream does not fit the schema of its values: {error}",
                not_done="the job was not planned",
                next_step="select and cast the columns before the sink, or correct what hf.Avro is given",
            ) from None

    def check_library(self) -> None:
        _library()

    def accept(self, where: str, batch: pa.RecordBatch) -> None:
        """Most types have a form for every value."""
        if _is_partial(_schema(self.avsc)) or any(pa.types.is_nested(each.type) for each in batch.schema):
            try:
                self.encode(batch)
            except NoForm as error:
                raise ConfigError(
                    f"{where}: {error}",
                    not_done="the rows were not written",
                    next_step="before the sink, replace such values or drop the rows with .filter(...)",
                ) from None

    def encode(self, batch: pa.RecordBatch) -> list[bytes | None]:
        write = _library().schemaless_writer
        takers = _takers(self.avsc, batch.schema, False)
        names = [name for name, _ in takers]
        columns = [take(batch.column(name)) for name, take in takers]
        codec, written = _codec(self.avsc), _Written()
        for row in zip(*columns, strict=True):
            write(written, codec, dict(zip(names, row, strict=True)))
        return list(map(bytes, written))

    def largest(self, batch: pa.RecordBatch) -> int:
        """Avro is shorter than JSON."""
        if any(pa.types.is_nested(each.type) for each in batch.schema) or _is_partial(_schema(self.avsc)):
            return _UNBOUNDED
        return largest(batch)


class _Written(list[bytes]):
    """Takes each value in one piece, as a file would."""

    def write(self, data: bytes) -> None:
        self.append(data)


@lru_cache(_KEPT)
def _schema(avsc: str) -> Type:
    return parsed(avsc)


def _library() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise no_library("fastavro", error) from error
    return fastavro


@lru_cache(_KEPT)
def _codec(avsc: str) -> Any:
    return _library().parse_schema(codec_schema(_schema(avsc)))


@lru_cache(_KEPT)
def _takers(avsc: str, schema: pa.Schema, nulls: bool) -> tuple[tuple[str, Take], ...]:
    """Return how columns become the fields of a schema, in its order.

    Args:
        nulls: Refuse a column that may be null for a field that may not: when a job is planned. Staged rows have lost
            what is known of that.

    Raises:
        NoForm: they do not.
    """
    written = _schema(avsc)
    if written.kind != "record":
        raise NoForm(f"it is {written}, but columns are the fields of a record")
    return tuple(_fields(written, list(schema), "", nulls))


def _fields(written: Type, columns: list[pa.Field], path: str, nulls: bool) -> Iterable[tuple[str, Take]]:
    columns_by_name, names = {each.name: each for each in columns}, [name for name, _ in written.fields]
    for name in columns_by_name:
        if name not in names:
            raise NoForm(f"the column '{path}{name}' is not in the schema")
    for name, kind in written.fields:
        if name not in columns_by_name:
            raise NoForm(f"the schema has a field '{path}{name}', but there is no such column")
        yield name, _taker(columns_by_name[name], kind, f"{path}{name}", nulls)


def _taker(field: pa.Field, given: Type, path: str, nulls: bool) -> Take:
    """Return how a column becomes values of a type. Raises NoForm."""
    avro_type, nullable = given.without_null
    if nulls and field.nullable and not nullable:
        raise NoForm(f"the column {path!r} may be null, but its field is {given}")
    kind = field.type
    if is_list(kind) and avro_type.kind == "array":
        assert avro_type.items is not None
        return _lists(_inner(kind.value_field, avro_type.items, f"{path}[]"))
    if pa.types.is_map(kind) and avro_type.kind == "map":
        assert avro_type.items is not None
        return _maps(_inner(kind.item_field, avro_type.items, f"{path}{{}}"))
    if pa.types.is_struct(kind) and avro_type.kind == "record":
        strict = {name for name, each in avro_type.fields if not each.without_null[1] and kind.field(name).nullable}
        return _records(list(_fields(avro_type, list(kind), f"{path}.", False)), strict, path)
    found = _simple(kind, avro_type, path)
    if found is None:
        raise NoForm(f"the column {path!r} has type {kind}, which does not become {given} exactly")
    return found


def _inner(field: pa.Field, written: Type, path: str) -> Take:
    """Return how what a list or a map holds becomes values of a type. Raises NoForm.

    The type of a column does not show whether a null is within it, so nulls are refused row by row.
    """
    take = _taker(field, written, path, False)
    if not field.nullable or written.without_null[1]:
        return take

    def checked(column: pa.Array) -> Values:
        values = take(column)
        if any(each is None for each in values):
            raise _holds_null(path, written)
        return values

    return checked


def _holds_null(path: str, written: object) -> NoForm:
    return NoForm(f"the column {path!r} holds a null, but its field is {written}")


def _simple(kind: pa.DataType, written: Type, path: str) -> Take | None:
    name, to = str(kind), written.kind
    if written.logical is None and ((name in INTS and to == "int") or (name in LONGS and to == "long")):
        return _as_they_are
    if (name == "float" and to in ("float", "double")) or (name == "double" and to == "double"):
        return lambda column: _packed(column, np.dtype("<f4" if to == "float" else "<f8"))
    if pa.types.is_boolean(kind) and to == "boolean":
        return lambda column: [None if each is None else b"\1" if each else b"\0" for each in column.to_pylist()]
    if name in ("string", "large_string") and to == "string":
        return _as_they_are
    if name in ("string", "large_string") and to == "enum":
        return lambda column: _numbers(column, written, path)
    if name in ("binary", "large_binary") or pa.types.is_fixed_size_binary(kind):
        return _binary(written, path)
    if pa.types.is_timestamp(kind) and kind.tz == "UTC" and (kind.unit, written.logical) in _MULTIPLIED:
        return lambda column: _times(column, _MULTIPLIED[kind.unit, written.logical])
    if kind == pa.time64("us") and written.logical in ("time-micros", "time-millis"):
        return lambda column: _times(column, 1 if written.logical == "time-micros" else -1_000)
    if pa.types.is_date32(kind) and written.logical == "date":
        return lambda column: column.cast(pa.int32()).to_pylist()
    if pa.types.is_decimal(kind) and written.logical == "decimal" and _holds(written, kind):
        return lambda column: [_unscaled(each, written, path) for each in column.to_pylist()]
    return None


def _as_they_are(column: pa.Array) -> Values:
    values: Values = column.to_pylist()
    return values


def _lists(items: Take) -> Take:
    def take(column: pa.Array) -> Values:
        return _cut(items(column.flatten()), pc.list_value_length(column).to_pylist())

    return take


def _maps(items: Take) -> Take:
    def take(column: pa.Array) -> Values:
        offsets = column.offsets.to_numpy()
        first, count = int(offsets[0]), int(offsets[-1] - offsets[0])  # a slice has the entries of the whole
        keys, values = column.keys.slice(first, count).to_pylist(), items(column.items.slice(first, count))
        rows = _cut(list(zip(keys, values, strict=True)), np.diff(offsets).tolist())
        return [dict(row) if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]

    return take


def _records(fields: list[tuple[str, Take]], strict: Collection[str], path: str) -> Take:
    def take(column: pa.Array) -> Values:
        children = dict(zip([each.name for each in column.type], column.flatten(), strict=True))
        taken = [take(children[name]) for name, take in fields]
        names = [name for name, _ in fields]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*taken, strict=True)]
        records = [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
        for name in strict:
            if any(row is not None and row[name] is None for row in records):
                raise _holds_null(f"{path}.{name}", "not null")
        return records

    return take


def _cut(found: Values, lengths: list[int | None]) -> Values:
    """Return lists of these lengths, one after the other; None for None."""
    rows: Values = []
    first = 0
    for length in lengths:
        rows.append(None if length is None else found[first : first + length])
        first += length or 0
    return rows


def _packed(column: pa.Array, kind: np.dtype[Any]) -> Values:
    data = np.asarray(pc.fill_null(column, 0.0), dtype=kind).tobytes()
    width = kind.itemsize
    parts: Values = [data[at : at + width] for at in range(0, len(data), width)]
    for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
        parts[row] = None
    return parts


def _numbers(column: pa.Array, written: Type, path: str) -> Values:
    number_by_symbol: dict[str | None, int | None] = {None: None, **{each: n for n, each in enumerate(written.symbols)}}
    values = column.to_pylist()
    for each in values:
        if each not in number_by_symbol:
            raise NoForm(f"the column {path!r} holds {each!r}, which is not a symbol of the enum {written.name}")
    return [number_by_symbol[each] for each in values]


def _binary(written: Type, path: str) -> Take | None:
    if written.kind == "bytes" and written.logical is None:
        return _as_they_are
    if written.kind != "fixed" or written.logical not in (None, "uuid"):
        return None

    def take(column: pa.Array) -> Values:
        values: Values = column.to_pylist()
        for each in values:
            if each is not None and len(each) != written.size:
                raise NoForm(f"the column {path!r} holds {len(each):,} bytes, but {written.name} has {written.size:,}")
        return values

    return take


def _times(column: pa.Array, factor: int) -> Values:
    numbers = column.cast(pa.int64()).to_pylist()
    if factor < 0:
        return [None if each is None else each // -factor for each in numbers]
    return [None if each is None else each * factor for each in numbers]


def _holds(written: Type, kind: pa.DataType) -> bool:
    """Return whether each value of a decimal column has the same value in the field."""
    whole = kind.precision - kind.scale
    return bool(0 <= kind.scale <= written.scale and whole <= written.precision - written.scale)


def _unscaled(value: Decimal | None, written: Type, path: str) -> bytes | None:
    if value is None:
        return None
    number = int(_EXACT.scaleb(value, written.scale))
    if written.kind == "bytes":
        return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)
    try:
        return number.to_bytes(written.size, "big", signed=True)
    except OverflowError:
        raise NoForm(f"the column {path!r} holds {value}, for which {written.name} is too short") from None


def _is_partial(written: Type) -> bool:
    """Return whether some values of a column have no form in a type."""
    if written.kind in ("enum", "fixed"):
        return True
    inner = (*(each for _, each in written.fields), *written.branches, *([written.items] if written.items else []))
    return any(map(_is_partial, inner))
