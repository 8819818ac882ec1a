"""Hashes that stand for the key of a row when a log is compacted: two of 64 bits each, of every key column.

Equal hashes are taken for equal keys, so that nothing has to be kept but numbers. With both, two keys out of a billion
meet with a probability below 1e-19. The hashes live as long as one compaction; nothing stores them.

Invariants
    - Equal keys have equal hashes, whatever batch they are in.
    - Different keys are hashed as different bytes: each column for itself, times in their own unit, null apart.

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
        ConfigError: a key column has a type that makes no key.
    """
    frame = pl.from_arrow(rows.select(list(key)))
    assert isinstance(frame, pl.DataFrame)
    texts = frame.select(_text(name, dtype) for name, dtype in frame.schema.items())
    return np.stack([_hashed(texts, seed) for seed in _SEEDS])


def _hashed(texts: pl.DataFrame, seed: int) -> NDArray[np.uint64]:
    columns = texts.select(plh.col(name).nchash.xxh3_64(seed=seed) for name in texts.columns)
    if columns.width > 1:
        # Of numbers, so that no text of one column can look like the border to the next.
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
            f"the key column {name!r} has the type {dtype}, which makes no key",
            not_done="the log was not compacted",
            next_step="a log to be compacted needs key columns of integers, strings, bytes, booleans or times",
        )
    return (pl.lit("v") + value).fill_null("n").alias(name)
