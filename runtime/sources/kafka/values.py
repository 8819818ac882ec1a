"""How the values of a topic are written: `hf.JSON` and `hf.Raw`.

Pure.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.arguments import checked
from holdfast.errors import ConfigError
from holdfast.runtime.formats.json_lines import TIMES, JsonLines, Times
from holdfast.runtime.rows.row_types import ArrowSchema, RowsOf, T
from holdfast.runtime.rows.schema import data_schema_of, defaults_of

RAW = pa.schema([pa.field("value", pa.binary())])
"""The column of `hf.Raw()`; null is a tombstone."""


class JSON(RowsOf[T]):
    """Values that are JSON objects.

    Fields that the schema does not name are ignored. A missing field takes the default of the dataclass, or becomes
    null; without a default, and where null is not allowed, the record is undecodable. So is one with a value of another
    type: text never becomes a number, and a fraction never an integer.

    Args:
        schema: A dataclass or pyarrow.Schema: the columns.
        time: How times are written: "rfc3339" is text with a zone, digits behind the microseconds are dropped; "s",
            "ms" and "us" are integers since 1970.

    Raises:
        ConfigError: a column has no form in JSON.
    """

    @checked("hf.JSON", "(Bid)")
    def __init__(self, schema: type[T] | ArrowSchema | None = None, time: Times = "rfc3339") -> None:
        if time not in TIMES:
            raise ConfigError(
                f"hf.JSON: time is {time!r}",
                not_done="the job was not planned",
                next_step=f"use one of {', '.join(TIMES)}",
            )
        self.row_type = schema if isinstance(schema, type) else None
        self.schema = None if schema is None else data_schema_of(schema)
        self.time: Times = time
        if self.schema is not None:
            JsonLines(self.schema, time)  # refuses columns without a form in JSON

    def __repr__(self) -> str:
        named = self.schema.names if self.row_type is None and self.schema is not None else self.row_type
        return f"JSON({getattr(named, '__qualname__', named)})"

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of the dataclass, by column."""
        return defaults_of(self.row_type)


class Raw:
    """Values as they are: one column, `value`, of bytes; null for a record without a value, a tombstone."""

    def __repr__(self) -> str:
        return "Raw()"
