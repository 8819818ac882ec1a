"""Maps the keys of a log to partitions.

Every writer of a keyed log must always use the same mapping, so the hash is xxh3-64 over a text form of the key that
no library version changes; tests compare golden values.

The text form: per key column `n` for null, else `v` and the value: integers and dates (days since 1970) in decimal,
timestamps as microseconds since 1970, booleans `true` or `false`, strings as they are, bytes in lower-case hex. The
columns of a key are joined by the byte 0x1f. The upper 32 bits of the hash choose the partition by multiply-shift.

Source: Lemire, Fast Random Integer Generation in an Interval, 2019; polars_hash (Polars' own hash is not stable).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import polars_hash as plh
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError


def partition_rows(table: pa.Table, key: Sequence[str], partitions: int) -> dict[int, pa.Table]:
    """Split rows by key; the order of rows is kept, partitions without rows are left out.

    Raises:
        ConfigError: a key column is missing or has a type that cannot be a key.
    """
    assert key, "without a key the caller chooses the partition"
    chosen = partitions_of(table, key, partitions)
    parts = {
        int(partition): table.take(pa.array(np.flatnonzero(chosen == partition))) for partition in np.unique(chosen)
    }
    assert sum(part.num_rows for part in parts.values()) == table.num_rows
    return parts


def dealt_out(table: pa.Table, first: int, partitions: int) -> dict[int, pa.Table]:
    """Split rows without a key: one to each partition in turn, beginning with `first`; their order is kept.

    So event time advances in all of them, and none holds it back.
    """
    turns = (np.arange(table.num_rows) + first) % partitions
    return {int(turn): table.take(pa.array(np.flatnonzero(turns == turn))) for turn in np.unique(turns)}


def partitions_of(table: pa.Table, key: Sequence[str], partitions: int) -> NDArray[np.uint64]:
    """Return the partition of every row: uint64, shape (n,), each in [0, partitions)."""
    if missing := [name for name in key if name not in table.schema.names]:
        raise _refused(f"the key column {missing[0]!r} is not among the columns {', '.join(table.schema.names)}")
    frame = pl.from_arrow(table.select(list(key)))
    assert isinstance(frame, pl.DataFrame)
    text = pl.concat_str([_text(name, dtype) for name, dtype in frame.schema.items()], separator="\x1f")
    hashed = frame.select(text.alias("key")).select(plh.col("key").nchash.xxh3_64())
    upper = hashed.to_series().to_numpy() >> np.uint64(32)
    return np.asarray((upper * np.uint64(partitions)) >> np.uint64(32), dtype=np.uint64)


def _text(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if dtype.is_integer() or dtype in (pl.Boolean, pl.String):
        value = column.cast(pl.String)
    elif dtype == pl.Binary:
        value = column.bin.encode("hex")
    elif dtype == pl.Date:
        value = column.cast(pl.Int32).cast(pl.String)
    elif isinstance(dtype, pl.Datetime):
        value = column.dt.epoch("us").cast(pl.String)
    else:
        raise _refused(f"the column {name!r} of type {dtype} cannot be a key")
    return (pl.lit("v") + value).fill_null("n")


def _refused(what: str) -> ConfigError:
    return ConfigError(
        what, not_done="no row was appended", next_step="use key columns of integers, strings, bytes, booleans or times"
    )
