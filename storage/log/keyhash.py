"""Hashes that represent the key of a row while a log is compacted: two of 64 bits each, over all key columns.

A compaction treats equal hashes as equal keys, so it keeps only numbers. With both hashes, the probability that any
two of a billion keys collide is below 1e-19. The hashes live as long as one compaction; nothing stores them.

Invariants
    - Equal keys have equal hashes, in any batch.
    - Different keys are hashed as different bytes: each column separately, times in their own unit, null distinct.

Source: xxh3-64 with two seeds; the birthday bound n^2 / 2^129.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import polars_hash as plh
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError

_SEEDS = (0, 0x9E3779B97F4A7C15)


def key_hashes(rows: pa.RecordBatch, key: Sequence[str]) -> NDArray[np.uint64]:
    """Return two hashes per row: uint64, shape (2, n).

    Raises:
        ConfigError: a key column has a type that cannot be a key.
    """
    frame = pl.from_arrow(rows.select(list(key)))
    assert isinstance(frame, pl.DataFrame)
    texts = frame.select(_text(name, dtype) for name, dtype in frame.schema.items())
    return np.stack([_hashed(texts, seed) for seed in _SEEDS])


def _hashed(texts: pl.DataFrame, seed: int) -> NDArray[np.uint64]:
    columns = texts.select(plh.col(name).nchash.xxh3_64(seed=seed) for name in texts.columns)
    if columns.width > 1:
        # Numbers are joined, not texts, so no value of a column can contain the separator.
        joined = columns.select(pl.concat_str(pl.all(), separator=",").alias("key"))
        columns = joined.select(plh.col("key").nchash.xxh3_64(seed=seed))
    return columns.to_series().to_numpy()


def _text(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if dtype.is_integer() or dtype in (pl.Boolean, pl.String):
        value = column.cast(pl.String)
    elif dtype == pl.Binary:
        value = column.bin.encode("hex")
    elif dtype.is_temporal():
        value = column.to_physical().cast(pl.String)
    else:
        raise ConfigError(
            f"the key column {name!r} has the type {dtype}, which cannot be a key",
            not_done="no row was compared with others of its key, and nothing was changed",
            next_step="use a log whose key columns are integers, strings, bytes, booleans or times",
        )
    return (pl.lit("v") + value).fill_null("n").alias(name)
