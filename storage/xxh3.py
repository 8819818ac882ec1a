"""xxh3-64 of every value of a text or binary column.

Invariants
    - The hash is that of the bytes of the value (text: UTF-8), seed 0, for any number of values.

Source: xxHash specification.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import polars_hash as plh
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

FEW = 256
"""A query costs as much as hashing a few hundred values one by one; smaller batches are hashed one by one."""


def xxh3_of(values: pa.Array) -> NDArray[np.uint64]:
    """Return the hash of every value, 0 for a null."""
    if len(values) < FEW:
        return np.fromiter(map(_hash_of, values.to_pylist()), np.uint64, len(values))
    frame = pl.DataFrame({"value": pl.from_arrow(values)})
    hashed = frame.select(plh.col("value").nchash.xxh3_64().fill_null(0))
    return np.array(hashed.to_series().to_numpy(), np.uint64)


def _hash_of(value: str | bytes | None) -> int:
    if value is None:
        return 0
    return xxhash.xxh3_64_intdigest(value.encode() if isinstance(value, str) else value)
