"""`hf.Collect`: rows for the program that runs the job, as a Polars frame.

The rows are in a SQLite file in the job's own folder, delivered exactly once like those of `hf.SQLite`: a run that
resumes adds to the rows of earlier runs, and a rewind takes rows back. The place is known when a run starts, so the
plan of a run holds a copy that is bound to its file.

Source: sinks/sqlite/sink.py.
"""

from __future__ import annotations

import math
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import polars as pl
import pyarrow as pa

from holdfast.errors import ConfigError
from holdfast.sinks.json_values.nested import column_of, is_nested
from holdfast.sinks.sql.dialect import translated
from holdfast.sinks.sql.session import Session
from holdfast.sinks.sql.values import TIME_OF_DAY, TIMESTAMP, Value
from holdfast.sinks.sqlite.dialect import NAN
from holdfast.sinks.sqlite.sink import SQLite
from holdfast.traits import SinkTraits

TABLE = "rows"


class Collect(SQLite):
    """A sink whose rows the program reads after `app.run()`, with `frame()`.

    For notebooks, scripts and tests. Takes the columns that `hf.SQLite` takes. Refused by `holdfast run` and
    `app.main()`, which leave no program that could read the rows.
    """

    _columns: pa.Schema | None

    def __init__(self) -> None:
        super().__init__("unbound", TABLE)
        self._place("", None, None)

    def __repr__(self) -> str:
        return "Collect()"

    @property
    def where(self) -> str:
        return f"hf.Collect at {self.path}" if self.path else "hf.Collect"

    @property
    def traits(self) -> SinkTraits:
        """Until it is bound to a separate file, it has no target that another sink could share."""
        table, bound = super().traits, bool(self.path)
        paths = (self.path,) if bound else ()
        return replace(table, kind="Collect", local_paths=paths, exclusive=table.exclusive and bound)

    def check(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        """Takes the key of the stream."""
        self._place(self.path, upsert_key, schema)
        super().check(schema, upsert_key)

    def prepare(self, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> None:
        Path(self.path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().prepare(schema, upsert_key)

    def bound(self, folder: str, schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> Collect:
        """Return the sink as a run uses it: with a file in this folder."""
        sink = Collect()
        sink._place(os.path.join(folder, "rows.db"), upsert_key, schema)
        return sink

    def follow(self, bound: Collect) -> None:
        """Read from now on the rows that a run delivers to this bound copy."""
        self._place(bound.path, bound.key, bound._columns)

    def frame(self) -> pl.DataFrame:
        """Return the rows delivered so far, with the columns of the stream.

        Rows of a stream that replaces rows by a key are in the order of the key; others in that of delivery.

        Raises:
            ConfigError: no run of this process has used the sink yet.
            Unavailable: the file is locked or cannot be read now.
        """
        if not self.path or self._columns is None:
            raise ConfigError(
                "hf.Collect: no run has filled it yet",
                not_done="no rows were read",
                next_step="run the job in this program first: app.run(once=True)",
            )
        dialect, names = self.dialect, self._columns.names
        with translated(dialect, self.where), closing(dialect.connect("read")) as db:
            s = Session(dialect, db)
            order = dialect.row_order if self.key is None else s.listed(self.key)
            rows = s.execute(f"SELECT {s.listed(names)} FROM {dialect.table(self.table)} ORDER BY {order}").fetchall()
        return pl.DataFrame([_series(field, [row[at] for row in rows]) for at, field in enumerate(self._columns)])

    def _place(self, path: str, key: tuple[str, ...] | None, schema: pa.Schema | None) -> None:
        for name, value in (("path", path), ("key", key), ("_columns", schema)):
            object.__setattr__(self, name, value)


def _series(field: pa.Field, values: list[Value]) -> pl.Series:
    """Return values of SQLite as a column of the stream's type."""
    if field.type == TIMESTAMP:
        return pl.Series(field.name, values, pl.String).str.to_datetime(
            "%Y-%m-%dT%H:%M:%S%.6fZ", time_unit="us", time_zone="UTC"
        )
    if pa.types.is_date32(field.type):
        return pl.Series(field.name, values, pl.String).str.to_date("%Y-%m-%d")
    if field.type == TIME_OF_DAY:
        return pl.Series(field.name, values, pl.String).str.to_time("%H:%M:%S%.6f")
    if is_nested(field.type):
        return pl.Series(field.name, column_of(cast(list[str | None], values), field.type))
    if pa.types.is_boolean(field.type):
        return pl.Series(field.name, values, pl.Int64).cast(pl.Boolean)
    if pa.types.is_floating(field.type):
        values = [math.nan if value == NAN else value for value in values]
    empty = pl.from_arrow(pa.array([], field.type))
    assert isinstance(empty, pl.Series)
    return pl.Series(field.name, values, empty.dtype)
