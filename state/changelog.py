"""The changelog segment: the keyed writes of one worker in one epoch, sealed into one object.

    8 bytes   magic and version
    blocks    one Arrow IPC stream per operator, zstd level 1 from 1 KiB on, rows sorted by (key group, key):
              kg u16 | key int64 or canonical bytes | kind u8 | end (of a range) | values, which may be null
              a range is one row per key group, before the rows of its key group, which are newer
    footer    msgpack: the header, and operator, key schema, place and size of every block
    20 bytes  footer length u32, xxh3-64 of everything before, magic

Sealing runs on another thread, on frozen deltas; sorting, compressing and hashing release the
interpreter lock.

Invariants
    - A segment with any byte flipped, missing or added is Damaged.
    - unseal(seal(header, deltas)) has the same rows; a row appears at most once per operator.
    - Rows are sorted, so two binary searches find the rows of a range of key groups.

Pure: bytes in, bytes out. DESIGN sections 5 and 13; docs/formats.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from holdfast.errors import ConfigError, Damaged
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.delta import Delta
from holdfast.state.tables.expiry import NOTHING, RANGE_FIRST, Through, last_of, range_end
from holdfast.state.tables.values import arrow, numpy, taken, void_of

VERSION = 4
"""Segments with keys that have a suffix: an earlier release would compute other key groups for them. Others are written
as the oldest version that has what they hold, so that earlier releases read them."""
_VERSION_WITH_NULLS, _VERSION_WITH_RANGES, _FIRST_VERSION = 3, 2, 1
"""3: with a null value, or values of variable width."""
COMPRESSED_FROM_BYTES = 1 << 10
"""Smaller blocks hardly shrink by compressing their columns one by one, and take ten times as long to read."""
PARALLEL_FROM_BYTES = 1 << 18
"""Arrow compresses smaller blocks on this thread alone: waking others for each column costs more than the work."""
_MAGIC = b"HFSEG\r\n\x1a"
_TAIL = struct.Struct("<IQ8s")
PUT, DELETE, RANGE = 1, 2, 3
"""Values of the column `kind`."""
FIXED_COLUMNS = 4
"""The columns before the values: `kg`, `key`, `kind`, `end`."""
PART_ROWS = 1 << 18
"""Rows of one part of a segment that is restored."""


@dataclass(frozen=True)
class SegmentHeader:
    """The epoch and worker to which a segment belongs, and the epoch to which it applies."""

    job_uuid: JobUuid
    generation: Generation
    timeline: Timeline
    epoch: Epoch
    follows: Epoch
    worker: WorkerId


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of one operator in a segment."""

    operator: int
    rows: int
    offset: int
    size: int
    key_group_count: int
    key_schema: bytes
    unrouted: int
    suffix: int = 0

    @property
    def key(self) -> KeyType:
        """Return the type of its keys."""
        return KeyType.of(pa.ipc.read_schema(pa.py_buffer(self.key_schema)), self.unrouted, self.suffix)


class _Footer(msgspec.Struct, frozen=True):
    version: int
    header: SegmentHeader
    blocks: tuple[Block, ...]


_FOOTER = msgspec.msgpack.Decoder(_Footer)


def seal(header: SegmentHeader, deltas: Iterable[Delta]) -> bytes:
    """Return the segment of these deltas, at most one per operator; empty deltas are left out."""
    sink = pa.BufferOutputStream()
    sink.write(_MAGIC)
    blocks: list[Block] = []
    version = _FIRST_VERSION
    for delta in sorted(deltas, key=lambda delta: delta.operator):
        assert delta.epoch == header.epoch and delta.follows == header.follows
        assert all(block.operator != delta.operator for block in blocks), "two deltas of one operator"
        if not len(delta):
            continue
        version = max(version, _version_of(delta))
        first, kind = sink.tell(), delta.keys.type
        _write_block(sink, delta)
        size = sink.tell() - first
        schema = pa.schema(kind.fields).serialize().to_pybytes()
        place = (delta.operator, len(delta), first, size, delta.key_group_count)
        blocks.append(Block(*place, schema, kind.unrouted, kind.suffix))
    footer = msgspec.msgpack.encode(_Footer(version, header, tuple(blocks)))
    sink.write(footer)
    sink.write(struct.pack("<I", len(footer)))
    body = sink.getvalue()
    hashed = xxhash.xxh3_64_intdigest(body)
    return b"".join((body, struct.pack("<Q8s", hashed, _MAGIC)))


def header_of(data: bytes) -> SegmentHeader:
    """Return the header of a segment, after verifying every byte of it."""
    return _footer(data).header


def blocks_of(data: bytes | memoryview) -> tuple[Block, ...]:
    """Return where the rows of each operator are, after verifying every byte. Raises as `unseal` does."""
    return _footer(data).blocks


def unseal(data: bytes, key_groups: tuple[int, int] | None = None) -> tuple[SegmentHeader, list[Delta]]:
    """Return a segment's header and deltas; with `key_groups`, only the rows of these key groups [first, end).

    Raises:
        Damaged: a byte differs from what was sealed.
        ConfigError: a newer version of Holdfast wrote it.
    """
    footer = _footer(data)
    deltas = [delta for block in footer.blocks for delta in _read_block(data, block, footer.header, key_groups, None)]
    return footer.header, deltas


def _version_of(delta: Delta) -> int:
    """Return the oldest version that has what a delta holds."""
    if delta.keys.type.suffix:
        return VERSION
    if any(not isinstance(numpy(values), np.ndarray) for values in map(arrow, delta.columns.values())):
        return _VERSION_WITH_NULLS
    return _FIRST_VERSION if delta.through is None else _VERSION_WITH_RANGES


def unseal_in_parts(data: bytes, key_groups: tuple[int, int]) -> tuple[SegmentHeader, Iterator[Delta]]:
    """Return a segment's header, and its rows of these key groups [first, end) in deltas of at most PART_ROWS rows.

    Written in this order they have the effect of the whole: a range comes before the rows of its key group, which are
    newer. Only the rows of one part exist as arrays at a time.

    Raises:
        Damaged: a byte differs from what was sealed; also while the parts are read.
        ConfigError: a newer version of Holdfast wrote it.
    """
    footer = _footer(data)
    blocks = (_read_block(data, block, footer.header, key_groups, PART_ROWS) for block in footer.blocks)
    return footer.header, (delta for deltas in blocks for delta in deltas)


def _write_block(sink: Any, delta: Delta) -> None:
    groups = delta.keys.key_groups(delta.key_group_count)
    order = delta.keys.order(groups)
    keys = delta.keys.take(order)
    key = pa.array(keys.ints) if keys.ints is not None else keys.canonical()
    kinds = np.where(delta.puts[order], np.uint8(PUT), np.uint8(DELETE))
    columns = {"kg": pa.array(groups[order]), "key": key, "kind": pa.array(kinds), "end": pa.nulls(len(keys), key.type)}
    columns |= {name: arrow(taken(values, order)) for name, values in delta.columns.items()}
    batch = pa.record_batch(columns)
    if delta.through is not None:
        batch = _with_ranges(batch, delta, delta.through)
    size = batch.nbytes
    codec = pa.Codec("zstd", compression_level=1) if size >= COMPRESSED_FROM_BYTES else None
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=size >= PARALLEL_FROM_BYTES)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)


def _with_ranges(batch: pa.RecordBatch, delta: Delta, through: Through) -> pa.RecordBatch:
    """Insert one row per range before the rows of its key group."""
    groups = delta.range_groups()
    count, binary = groups.size, pa.large_binary()
    ranges: dict[str, Any] = {
        "kg": pa.array(groups.astype(np.uint16)),
        "key": pa.array([RANGE_FIRST] * count, binary),
        "kind": pa.array(np.full(count, RANGE, np.uint8)),
        "end": pa.array([range_end(last) for last in through[groups].tolist()], binary),
    }
    ranges |= {name: void_of(values, count) for name, values in delta.columns.items()}
    rows = pa.concat_batches([pa.record_batch(ranges), batch])
    return rows.take(pa.array(np.argsort(rows.column("kg").to_numpy(), kind="stable")))


def _ranges(batch: pa.RecordBatch, key_group_count: int) -> Through:
    through = np.full(key_group_count, NOTHING)
    ends = [last_of(end) for end in batch.column("end").to_pylist()]
    through[batch.column("kg").to_numpy()] = ends
    return through


def _read_block(
    data: bytes, block: Block, header: SegmentHeader, key_groups: tuple[int, int] | None, rows_max: int | None
) -> Iterator[Delta]:
    """Yield the rows of some key groups in parts of `rows_max` rows, or in one; nothing if there are none."""
    options = pa.ipc.IpcReadOptions(use_threads=block.size >= PARALLEL_FROM_BYTES)
    try:
        with pa.ipc.open_stream(pa.py_buffer(data).slice(block.offset, block.size), options=options) as reader:
            batch = reader.read_next_batch()
        if key_groups is not None:
            groups = batch.column("kg").to_numpy()
            first, end = (int(np.searchsorted(groups, edge)) for edge in key_groups)
            batch = batch.slice(first, end - first)
        step = rows_max or max(batch.num_rows, 1)
        for first in range(0, batch.num_rows, step):
            yield _delta_of(batch.slice(first, step), block, header)
    except (pa.ArrowInvalid, KeyError, ValueError, OSError) as error:
        raise _damaged(f"the block of operator {block.operator} cannot be read: {error}") from error


def _delta_of(batch: pa.RecordBatch, block: Block, header: SegmentHeader) -> Delta:
    kind = block.key
    kinds, through = batch.column("kind").to_numpy(), None
    if (ranges := kinds == RANGE).any():
        through = _ranges(batch.filter(pa.array(ranges)), block.key_group_count)
        batch, kinds = batch.filter(pa.array(~ranges)), kinds[~ranges]
    key = batch.column("key")
    keys = kind.from_ints(key.to_numpy()) if kind.injective else kind.from_canonical(key)
    columns = {name: numpy(batch.column(name)) for name in batch.schema.names[FIXED_COLUMNS:]}
    epoch, follows = header.epoch, header.follows
    return Delta(epoch, follows, block.operator, block.key_group_count, keys, kinds == PUT, columns, through)


def _footer(data: bytes | memoryview) -> _Footer:
    view = memoryview(data)
    if len(data) < len(_MAGIC) + _TAIL.size or view[: len(_MAGIC)] != _MAGIC:
        raise _damaged("it does not begin with the header of a segment")
    length, hashed, magic = _TAIL.unpack_from(data, len(data) - _TAIL.size)
    if magic != _MAGIC or xxhash.xxh3_64_intdigest(view[:-16]) != hashed:
        raise _damaged("its hash does not match its bytes")
    try:
        footer = _FOOTER.decode(view[len(data) - _TAIL.size - length : -_TAIL.size])
    except msgspec.MsgspecError as error:
        raise _damaged(f"its footer cannot be read: {error}") from error
    if not _FIRST_VERSION <= footer.version <= VERSION:
        raise ConfigError(
            f"a changelog segment has version {footer.version}; this Holdfast reads versions up to {VERSION}",
            not_done="nothing was restored",
            next_step="run the version of Holdfast that wrote it, or a newer one",
        )
    return footer


def _damaged(why: str) -> Damaged:
    return Damaged(
        f"a changelog segment is damaged: {why}",
        not_done="none of it was restored",
        next_step="restore from an older base or checkpoint; to find all damaged objects: holdfast checkpoints verify",
    )
