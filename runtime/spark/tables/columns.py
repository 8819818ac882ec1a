"""The columns of Holdfast's data sources in Spark: types that Spark has, and rows converted to them.

Spark has no unsigned integers, so each becomes the next wider type; a type that Spark lacks altogether becomes text.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType

from holdfast.errors import ConfigError

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the columns as Spark names their types."""
    return StructType([StructField(field.name, spark_type(field.type), field.nullable) for field in schema])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns as Arrow has them, times in UTC; releases of Spark differ in how that is asked for."""
    asked: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **asked)


def spark_type(kind: pa.DataType) -> DataType:
    """Return the type under which Spark shows a column."""
    try:
        return from_arrow_type(_WIDER.get(kind, kind))
    except PySparkTypeError:
        return StringType()


def check_columns(source: str, has: StructType, asked: StructType, not_done: str) -> None:
    """Check that a source has the columns that a query reads; it may have more.

    Raises:
        ConfigError: it lacks one, or has it with another type.
    """
    types = {field.name: field.dataType for field in has}
    for field in asked:
        if field.name not in types:
            what = f"there is no column {field.name!r}"
        elif types[field.name] != field.dataType:
            found, wanted = types[field.name].simpleString(), field.dataType.simpleString()
            what = f"column {field.name!r} has the type {found}, not {wanted}"
        else:
            continue
        raise ConfigError(f"{source}: {what}", not_done=not_done, next_step=f"the columns are {', '.join(types)}")


def converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a batch that the schema names, in its order and with its types.

    Raises:
        ConfigError: Spark cannot hold a value, such as a time with nanoseconds.
    """
    columns = [_cast(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigError(
            f"column {field.name!r} has the type {column.type}, and Spark cannot hold its values: {error}",
            not_done="the query was not completed",
            next_step="leave the column out: name the columns to read with .schema(...)",
        ) from error
