"""Rows as keys and values: `prefix` and the row's key, and a JSON object of all columns.

Pure: values in, values out. Source: docs/guide/redis.md; docs/decisions/0081-redis-sink.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError
from holdfast.sinks.contract.sink import check_null_keys
from holdfast.sinks.contract.target import DELETE, OP
from holdfast.sinks.json_values.rows import check_finite, keys_of, largest, objects

VALUE_BYTES_MAX = 64 << 20
"""The largest row. Redis takes values of up to 512 MiB, but a script holds a copy of each."""


@dataclass(frozen=True)
class KeyValueRows:
    """How the rows of a sink become keys and values.

    Args:
        where: How messages name the target.
    """

    where: str
    prefix: bytes
    key: tuple[str, ...]

    def pairs(self, batch: pa.RecordBatch) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the rows in order; a delete has no value.

        Raises:
            ConfigError: a row has no key.
        """
        check_null_keys(self.where, self.key, batch)
        delete_flags = [False] * batch.num_rows
        if OP in batch.schema.names:
            delete_flags = pc.equal(batch.column(OP), DELETE).to_pylist()
            batch = batch.drop_columns([OP])
        values = objects(batch, batch.schema.names)
        for name, value, gone in zip(keys_of(batch, self.key), values, delete_flags, strict=True):
            assert name is not None, "a row without a key was refused"
            yield self.prefix + name, None if gone else value

    def accept(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that the target can never take. Raises ConfigError."""
        check_null_keys(self.where, self.key, batch)
        if OP in batch.schema.names:
            batch = batch.filter(pc.not_equal(batch.column(OP), DELETE)).drop_columns([OP])
        check_finite(self.where, batch)
        if largest(batch) <= VALUE_BYTES_MAX:
            return
        size = max(len(name) + len(value or b"") for name, value in self.pairs(batch))
        if size > VALUE_BYTES_MAX:
            raise ConfigError(
                f"{self.where}: a row takes {size:,} bytes, the limit is {VALUE_BYTES_MAX:,}",
                not_done="the rows were not written",
                next_step="make the rows smaller, or keep large values elsewhere and write where they are",
            )
