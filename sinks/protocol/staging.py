"""Staged output: the rows of one writer for one epoch, as bytes.

A sink's rows are staged before the checkpoint is acknowledged and delivered after it is
committed. Between the two they are objects in the checkpoint root that only the delivery
reads. One part is one Arrow IPC file, zstd-compressed, with the stream's columns and, for an
upsert stream, the int8 column `_op` last (0 put, 1 delete).

Only the last row of a key in an epoch is staged: visibility is atomic per epoch, so no reader
could ever have seen the others.

Invariants
    - Rows keep their order; parts are delivered in the order that the manifest names them.
    - An upsert part holds each key once.
    - Truncated or malformed bytes raise Damaged. The hash of the object reveals a changed bit inside the data; each
      reader checks it first.

Pure: bytes in, bytes out. PROTOCOL P8: parts of an epoch that did not complete are named again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import count

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Damaged
from holdfast.model import RowDigest
from holdfast.sinks.contract.target import DELETE, OP, PUT
from holdfast.storage.rowhash import digest_of

FORMAT_KEY = b"holdfast.staged"
FORMAT_VERSION = b"1"
BATCH_ROWS = 65_536
"""Rows per Arrow batch inside a part; a delivery holds one batch in memory at a time."""
FEW_ROWS = 128
"""A query costs as much as looking at some hundred rows one by one; small parts are looked at so."""
COMPRESSED_FROM_BYTES = 1 << 10
"""Smaller parts hardly shrink when their columns are compressed one by one, and take ten times as long to read."""
PARALLEL_FROM_BYTES = 1 << 18
"""Arrow compresses smaller parts on this thread alone: to wake others for each column costs more than the work."""


@dataclass(frozen=True)
class StagedPart:
    """One encoded part, and the rows in it."""

    data: bytes
    rows: int
    digest: RowDigest


def staged_schema(schema: pa.Schema, upsert_key: tuple[str, ...] | None) -> pa.Schema:
    """Return the columns of a part: the stream's, and `_op` last for an upsert stream."""
    fields = list(schema)
    if upsert_key is not None:
        fields.append(pa.field(OP, pa.int8(), nullable=False))
    return pa.schema(fields, metadata={FORMAT_KEY: FORMAT_VERSION})


def last_per_key(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Keep the last row of every key, in the order of the rows."""
    if rows.num_rows < FEW_ROWS and all(_is_plain(rows.schema.field(name).type) for name in key):
        places = dict(zip(zip(*(rows.column(name).to_pylist() for name in key), strict=True), count(), strict=False))
        return rows if len(places) == rows.num_rows else rows.take(pa.array(sorted(places.values()), pa.int64()))
    keys = pl.from_arrow(rows.select(list(key)))
    assert isinstance(keys, pl.DataFrame)
    last = keys.with_row_index("row").unique(subset=list(key), keep="last").get_column("row").sort()
    return rows if len(last) == rows.num_rows else rows.take(last.to_arrow())


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values are equal exactly if they are as Python values: not so floats (NaN) and times in ns."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind))


def encode(rows: pa.Table) -> bytes:
    """Return the rows as one Arrow IPC file."""
    buffer = pa.BufferOutputStream()
    codec, parallel = "zstd" if rows.nbytes >= COMPRESSED_FROM_BYTES else None, rows.nbytes >= PARALLEL_FROM_BYTES
    options = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=True, use_threads=parallel)
    with pa.ipc.new_file(buffer, rows.schema, options=options) as file:
        file.write_table(rows.combine_chunks(), max_chunksize=BATCH_ROWS)
    return bytes(buffer.getvalue().to_pybytes())


def decode(data: bytes) -> list[pa.RecordBatch]:
    """Return the batches of one part, in order.

    Raises:
        Damaged: the bytes are not a part as `encode` writes it.
    """
    options = pa.ipc.IpcReadOptions(use_threads=len(data) >= PARALLEL_FROM_BYTES)
    try:
        file = pa.ipc.open_file(pa.py_buffer(data), options=options)
        batches = [file.get_batch(i) for i in range(file.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(f"not a readable Arrow file ({error})") from error
    version = (file.schema.metadata or {}).get(FORMAT_KEY)
    if version != FORMAT_VERSION:
        raise _damaged(f"its format is {version!r}, this version reads {FORMAT_VERSION!r}")
    if OP in file.schema.names:
        _check_ops(file.schema, batches)
    return batches


class Stage:
    """Collects one writer's rows until the barrier, then seals them into a part.

    Args:
        schema: The stream's columns, without `_op`.
        upsert_key: The key of an upsert stream, None for an append stream.
        accept: The sink's; refuses rows that the target can never take, before they are committed.
    """

    def __init__(
        self,
        schema: pa.Schema,
        upsert_key: tuple[str, ...] | None,
        accept: Callable[[pa.RecordBatch], None] | None = None,
    ) -> None:
        self._schema, self._key, self._accept = staged_schema(schema, upsert_key), upsert_key, accept
        self._batches: list[pa.RecordBatch] = []
        self.buffered_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows in; in an upsert stream a batch without `_op` puts every row.

        Raises:
            ConfigError: the target can never take one of these rows.
        """
        if self._key is not None and OP not in batch.schema.names:
            batch = batch.append_column(self._schema.field(OP), pa.repeat(pa.scalar(PUT, pa.int8()), batch.num_rows))
        assert batch.schema.names == self._schema.names, (
            f"the stream's columns are {self._schema.names}, the batch has {batch.schema.names}"
        )
        if self._key is not None:
            batch = _without_void_deletes(batch, self._key)
        if batch.num_rows == 0:
            return
        if self._accept is not None:
            self._accept(batch)
        self._batches.append(batch)
        self.buffered_bytes += batch.nbytes

    def seal(self, hashed: bool = False) -> StagedPart | None:
        """Return the rows added since the last seal, or None if there are none; then start a new part.

        Args:
            hashed: The digest has more than the number of rows.
        """
        batches, self._batches, self.buffered_bytes = self._batches, [], 0
        if not batches:
            return None
        rows = pa.concat_tables([_as(self._schema, batch) for batch in batches])
        if self._key is not None:
            rows = last_per_key(rows, self._key)
        return StagedPart(encode(rows), rows.num_rows, audited(rows, self._key) if hashed else RowDigest(rows.num_rows))


def _as(schema: pa.Schema, batch: pa.RecordBatch) -> pa.Table:
    """Return the rows with exactly this schema; most batches have it but for the metadata."""
    has_void = any(not field.nullable and batch.column(i).null_count for i, field in enumerate(schema))
    if batch.schema.equals(schema) and not has_void:
        return pa.Table.from_arrays(batch.columns, schema=schema)
    return pa.table(batch).cast(schema)


def audited(rows: pa.Table, key: tuple[str, ...] | None) -> RowDigest:
    """Return the digest of output: only the key of a delete counts, as the target keeps nothing else of it."""
    if key is None or OP not in rows.schema.names:
        return digest_of(rows)
    return digest_of(rows, rows.column(OP).to_numpy() == DELETE, (*key, OP))


def _without_void_deletes(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.RecordBatch:
    """Leave out deletes whose key has a null: no target takes such a row, so there is none to delete.

    They come from a filter that leaves null keys out, as `check_null_keys` advises.
    """
    nullable = [batch.column(name) for name in key if batch.column(name).null_count]
    if not nullable:
        return batch
    void = pc.equal(batch.column(OP), DELETE)
    void = pc.and_(void, reduce(pc.or_, (column.is_null() for column in nullable)))
    return batch.filter(pc.invert(void))


def _check_ops(schema: pa.Schema, batches: list[pa.RecordBatch]) -> None:
    if schema.names[-1] != OP or schema.field(OP).type != pa.int8():
        raise _damaged(f"{OP!r} is not its last column, of type int8")
    for batch in batches:
        ops = batch.column(OP)
        if ops.null_count or not _all_known(ops.to_numpy()):
            raise _damaged(f"{OP!r} holds something other than {PUT} and {DELETE}")


def _all_known(ops: NDArray[np.int8]) -> bool:
    return bool(((ops == PUT) | (ops == DELETE)).all())


def _damaged(why: str) -> Damaged:
    return Damaged(
        f"a staged part is broken: {why}",
        not_done="neither its epoch nor a later one was delivered",
        next_step="check the store that holds the job's root; holdfast checkpoints verify JOB names what is broken",
    )
