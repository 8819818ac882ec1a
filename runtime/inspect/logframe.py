"""`hf.log`: an embedded log as a Polars frame, as it is or as a table."""

from __future__ import annotations

import os
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from holdfast.errors import ConfigError
from holdfast.runtime.sources.log import Log
from holdfast.storage.log.log import LogReader, read_meta
from holdfast.storage.log.table import read_table, table_schema
from holdfast.storage.objects import open_objects

READ_BYTES_MAX = 8 << 20


def log(path: str | os.PathLike[str], as_table: bool = False) -> pl.LazyFrame:
    """Read an embedded log, also while jobs write to it.

    Args:
        path: A folder or URL.
        as_table: Give the newest row of every key, without the keys that were deleted. The log must have a key.

    Returns:
        The rows that the log has when the frame is collected, in order of partition and offset, without those that a
        rewind took back; a table as of one commit. A changelog has the column `holdfast_deleted`, except as a table.

    Raises:
        ConfigError: there is no log, or it has no key and is to be read as a table.
        Damaged: its description differs from what was written. Errors while rows are read come from `collect`.
        Unavailable: the log is unreachable.
    """
    place = Log(path).path
    meta = read_meta(open_objects(place, writable=False))
    if meta is None:
        raise ConfigError(f"no log exists at {place}", not_done="nothing was read", next_step="check the path")
    columns = table_schema(meta) if as_table else meta.schema
    empty = pl.from_arrow(columns.empty_table())
    assert isinstance(empty, pl.DataFrame)

    def rows(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        left = n_rows
        for batch in _table(place) if as_table else _records(place):
            frame = pl.from_arrow(batch.select(columns.names))  # without columns that were added since
            assert isinstance(frame, pl.DataFrame)
            frame = frame if with_columns is None else frame.select(with_columns)
            frame = frame if left is None else frame.head(left)
            left = None if left is None else left - frame.height
            yield frame if predicate is None else frame.filter(predicate)
            if left == 0:
                return

    return register_io_source(rows, schema=empty.schema)


def _records(path: str) -> Iterator[pa.RecordBatch]:
    reader = LogReader(open_objects(path, writable=False))
    for partition in range(reader.meta.partitions):
        batch, following = reader.read(partition, 0, READ_BYTES_MAX)
        while batch is not None:
            yield batch
            batch, following = reader.read(partition, following, READ_BYTES_MAX)


def _table(path: str) -> Iterator[pa.RecordBatch]:
    for each in read_table(open_objects(path, writable=False)):
        yield each.rows
