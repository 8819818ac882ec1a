"""The changelog segment: keyed writes of one worker, sealed into one object: of one epoch, or of several merged.

    8 bytes   magic and version
    blocks    one Arrow IPC stream per operator, zstd level 1 from 1 KiB on, rows sorted by (key group, key):
              kg u16 | key int64 or canonical bytes | kind u8 | end (of a range) | values, which may be null
              a range is one row per key group, before the rows of its key group, which are newer
              a stream has as many record batches as it takes to keep each small; in a large one, columns may be packed
    footer    msgpack: the header, and operator, key schema, place and size of every block and its batches
    20 bytes  footer length u32, xxh3-64 of everything before, magic

One writer seals deltas and merges: it takes rows in order and holds one batch of them. Sealing runs on another thread,
on frozen deltas; sorting, compressing and hashing release the interpreter lock.

Invariants
    - A segment with any byte flipped, missing or added is Damaged.
    - unseal(seal(header, deltas)) has the same rows; a row appears at most once per operator.
    - Rows are sorted, so two binary searches find the rows of a range of key groups.
    - Memory to write a merge, or to read a segment in parts, does not depend on its size.

Pure: it reads and writes only the files that it is given. DESIGN sections 5 and 13; docs/formats; docs/decisions/0042.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from holdfast.errors import ConfigError, Damaged
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.keys.batch import KeyType
from holdfast.state.packing import packed, packed_columns, unpacked
from holdfast.state.segmentrows import FIXED_COLUMNS, PUT, RANGE, batch_of, ranges_in, with_ranges
from holdfast.state.tables.delta import EpochChanges, OperatorDelta
from holdfast.state.tables.values import has_numpy_form, numpy
from holdfast.storage.hashing import HASHED_BYTES, ByteSink, Hashed, hash_file

VERSION = 6
"""Segments with a packed column. Others are written as the oldest version with the fields that they need, so that
earlier releases read them."""
_VERSION_WITH_BATCHES, _VERSION_WITH_SUFFIX, _VERSION_WITH_NULLS, _VERSION_WITH_RANGES, _FIRST_VERSION = 5, 4, 3, 2, 1
"""5: with a block of several record batches, of which an earlier release would read only the first. 4: with keys that
have a suffix, for which an earlier release would compute other key groups. 3: with a null value, or values of variable
width."""
COMPRESSED_FROM_BYTES = 1 << 10
"""Smaller blocks hardly shrink by compressing their columns one by one, and take ten times as long to read."""
PACKED_FROM_BYTES = 1 << 18
"""A block whose first record batch is smaller is written unpacked, for earlier releases."""
BATCH_BYTES = 1 << 19
"""A record batch has at least as many bytes, except the last one, and at most about twice as many."""
ROWS_AT_ONCE = 1 << 16
"""Rows of a delta that are gathered at a time."""
KEY_TYPES_KEPT = 256
"""Types of keys that were decoded: a job has one per operator, and a restore reads them again in every segment."""
_MAGIC = b"HFSEG\r\n\x1a"
_TAIL = struct.Struct("<IQ8s")
Data: TypeAlias = bytes | memoryview | pa.Buffer | pa.NativeFile
"""A segment: its bytes, or a file that is read at any place, whose bytes were verified against a manifest."""


@dataclass(frozen=True)
class SegmentHeader:
    """The epoch and worker to which a segment belongs, and the epoch to which it applies."""

    job_uuid: JobUuid
    generation: Generation
    timeline: Timeline
    epoch: Epoch
    follows: Epoch
    worker: WorkerId


class BlockBatch(msgspec.Struct, frozen=True, array_like=True):
    """A record batch of a block; it begins where the one before it ends, the first after the schema."""

    rows: int
    end: int
    """Bytes from the beginning of the block."""
    first: int
    """The key group of its first row."""


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
    batches: tuple[BlockBatch, ...] = ()
    """Empty: one batch has all rows, as in every block before version 5."""
    packed: tuple[str, ...] = ()
    """Its columns that are packed (state/packing.py)."""

    @property
    def key(self) -> KeyType:
        """Return the type of its keys."""
        return _key_type(self.key_schema, self.unrouted, self.suffix)


@lru_cache(maxsize=KEY_TYPES_KEPT)
def _key_type(schema: bytes, unrouted: int, suffix: int) -> KeyType:
    return KeyType.of(pa.ipc.read_schema(pa.py_buffer(schema)), unrouted, suffix)


class _Footer(msgspec.Struct, frozen=True):
    version: int
    header: SegmentHeader
    blocks: tuple[Block, ...]


_FOOTER = msgspec.msgpack.Decoder(_Footer)


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment of which every byte was verified."""

    file: pa.NativeFile
    header: SegmentHeader
    blocks: tuple[Block, ...]


class SegmentWriter:
    """Writes one segment, operator by operator, as a stream; leaving the context completes it.

    Args:
        into: Receives the bytes, in pieces; none any longer once an error has left the context.
    """

    def __init__(self, into: ByteSink, header: SegmentHeader) -> None:
        self._hashed = Hashed(into, xxhash.xxh3_64())
        self._file = pa.output_stream(self._hashed, buffer_size=HASHED_BYTES)
        self._file.write(_MAGIC)
        self._header, self._version, self._blocks = header, _FIRST_VERSION, list[Block]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        else:  # Arrow flushes its buffers when it frees its streams, perhaps after `into` is closed
            self._hashed.discard()

    def block(self, operator: int, kind: KeyType, key_group_count: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the rows of one operator; nothing if there are none. Operators come in ascending order.

        Args:
            batches: Results of `batch_of`, of any size and all in the order of (key group, key).
        """
        assert not self._blocks or self._blocks[-1].operator < operator, "two blocks of one operator"
        first, block_batches, rows, stream, names = self._file.tell(), list[BlockBatch](), 0, None, tuple[str, ...]()
        for batch, size in _regrouped(batches):
            if stream is None:
                names = packed_columns(batch) if size >= PACKED_FROM_BYTES else ()
                stream = pa.ipc.new_stream(self._file, batch.schema, options=_options(size))
            stream.write_batch(packed(batch, names) if names else batch)
            self._version = max(self._version, _version_of(batch, kind))
            block_batches.append(BlockBatch(batch.num_rows, self._file.tell() - first, batch.column("kg")[0].as_py()))
            rows += batch.num_rows
        if stream is None:
            return
        stream.close()
        several = len(block_batches) > 1
        self._version = VERSION if names else max(self._version, _VERSION_WITH_BATCHES if several else _FIRST_VERSION)
        schema = _stored_key(kind)
        place = (operator, rows, first, self._file.tell() - first, key_group_count)
        listed = tuple(block_batches) if several else ()
        self._blocks.append(Block(*place, schema, kind.unrouted, kind.suffix, listed, names))

    def _finish(self) -> None:
        """Write the end of the segment, after the blocks."""
        footer = msgspec.msgpack.encode(_Footer(self._version, self._header, tuple(self._blocks)))
        self._file.write(footer)
        self._file.write(struct.pack("<I", len(footer)))
        self._file.flush()
        self._file.write(struct.pack("<Q8s", self._hashed.hash.intdigest(), _MAGIC))
        self._file.flush()


def seal(header: SegmentHeader, deltas: Iterable[EpochChanges]) -> bytes:
    """Return the segment of these deltas as bytes; `seal_into` needs no memory for them."""
    into = io.BytesIO()
    seal_into(into, header, deltas)
    return into.getvalue()


def seal_into(into: ByteSink, header: SegmentHeader, deltas: Iterable[EpochChanges]) -> None:
    """Write the segment of these deltas, at most one per operator; empty deltas are left out."""
    with SegmentWriter(into, header) as writer:
        for delta in sorted(deltas, key=lambda delta: delta.operator):
            assert delta.epoch == header.epoch and delta.follows == header.follows
            writer.block(delta.operator, delta.kind, delta.key_group_count, _batches_of(delta))


def opened(data: Data) -> Segment:
    """Return a segment for reading; its bytes are verified against its own hash unless they were verified before.

    Raises:
        Damaged: a byte differs from what was sealed.
        ConfigError: a newer version of Holdfast wrote it.
    """
    verified = isinstance(data, pa.NativeFile)
    file = data if verified else pa.BufferReader(data)
    footer = _footer(file, verified=verified)
    return Segment(file, footer.header, footer.blocks)


def write_as(data: Data, job_uuid: JobUuid, generation: Generation, timeline: Timeline, into: ByteSink) -> Segment:
    """Write the same segment as one of another job; rows, epochs and worker stay. Return the segment that was read.

    Raises as `opened`, and OSError.
    """
    segment = opened(data)
    file, footer = segment.file, _footer(segment.file, verified=True)
    size = file.size()
    length, _, _ = _TAIL.unpack(file.read_at(_TAIL.size, size - _TAIL.size))
    out = Hashed(into, xxhash.xxh3_64())
    stream = file.get_stream(0, size - _TAIL.size - length)
    while piece := stream.read(HASHED_BYTES):
        out.write(piece)
    header = replace(footer.header, job_uuid=job_uuid, generation=generation, timeline=timeline)
    ending = msgspec.msgpack.encode(msgspec.structs.replace(footer, header=header))
    out.write(ending + struct.pack("<I", len(ending)))
    out.write(struct.pack("<Q8s", out.hash.intdigest(), _MAGIC))
    return segment


def unseal(data: Data, key_groups: tuple[int, int] | None = None) -> tuple[SegmentHeader, list[OperatorDelta]]:
    """Return a segment's header and deltas; with `key_groups`, only the rows of these key groups [first, end).

    All rows are in memory together; blocks.py reads them in parts. Raises as `opened`.
    """
    segment = opened(data)
    found = (_read_block(segment, block, key_groups) for block in segment.blocks)
    return segment.header, [delta for delta in found if delta is not None]


def delta_of(batch: pa.RecordBatch, block: Block, header: SegmentHeader) -> OperatorDelta:
    """Return rows of a block, with their ranges, as a delta."""
    kind = block.key
    kinds, through = batch.column("kind").to_numpy(), None
    if (ranges := kinds == RANGE).any():
        through = ranges_in(batch.filter(pa.array(ranges)), block.key_group_count)
        batch, kinds = batch.filter(pa.array(~ranges)), kinds[~ranges]
    key = batch.column("key")
    keys = kind.from_ints(key.to_numpy()) if kind.injective else kind.from_canonical(key)
    columns = {name: numpy(batch.column(name)) for name in batch.schema.names[FIXED_COLUMNS:]}
    epoch, follows = header.epoch, header.follows
    return OperatorDelta(epoch, follows, block.operator, block.key_group_count, keys, kinds == PUT, columns, through)


def _options(size: int) -> pa.ipc.IpcWriteOptions:
    codec = pa.Codec("zstd", compression_level=1) if size >= COMPRESSED_FROM_BYTES else None
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


def _version_of(batch: pa.RecordBatch, kind: KeyType) -> int:
    """Return the oldest version with the fields of a batch."""
    if kind.suffix:
        return _VERSION_WITH_SUFFIX
    if any(not has_numpy_form(values) for values in batch.columns[FIXED_COLUMNS:]):
        return _VERSION_WITH_NULLS
    return _FIRST_VERSION if batch.column("end").null_count == batch.num_rows else _VERSION_WITH_RANGES


@lru_cache(maxsize=KEY_TYPES_KEPT)
def _stored_key(kind: KeyType) -> bytes:
    """Return the schema of the columns of a key, as a footer has it."""
    schema: bytes = pa.schema(kind.fields).serialize().to_pybytes()
    return schema


def _regrouped(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the same rows in batches of BATCH_BYTES to twice as many, with their bytes; the last may be smaller."""
    pending_batches, size = list[pa.RecordBatch](), 0
    for batch in batches:
        if batch.num_rows:
            pending_batches.append(batch)
            size += batch.nbytes  # takes as long as to write a small batch, so it is read once
        if size >= BATCH_BYTES:
            yield from _cut(pending_batches, size)
            pending_batches, size = [], 0
    if pending_batches:
        yield from _cut(pending_batches, size)


def _cut(held: list[pa.RecordBatch], size: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    whole = pa.concat_batches(held) if len(held) > 1 else held[0]
    step = -(-whole.num_rows // max(1, -(-size // (2 * BATCH_BYTES))))
    if step == whole.num_rows and len(held) == 1:
        yield whole, size
        return
    for first in range(0, whole.num_rows, step):
        part = whole.slice(first, step)
        yield part, part.nbytes


def _batches_of(delta: EpochChanges) -> Iterator[pa.RecordBatch]:
    def batch(groups: NDArray[np.uint16], part: OperatorDelta) -> pa.RecordBatch:
        key = pa.array(part.keys.ints) if part.keys.ints is not None else part.keys.canonical()
        return batch_of(groups, key, part.puts, part.columns)

    batches = (batch(groups, part) for groups, part in delta.sorted_parts(ROWS_AT_ONCE))
    if delta.through is None:
        return batches
    return with_ranges(batches, delta.through, batch(np.empty(0, np.uint16), delta.empty()))


def _read_block(segment: Segment, block: Block, key_groups: tuple[int, int] | None) -> OperatorDelta | None:
    """Return the rows of some key groups, None if there are none."""
    try:
        data = segment.file.read_at(block.size, block.offset)
        with pa.ipc.open_stream(data) as reader:
            batch = pa.concat_batches([unpacked(batch, block.packed) for batch in reader])
        if key_groups is not None:
            groups = batch.column("kg").to_numpy()
            first, end = (int(np.searchsorted(groups, edge)) for edge in key_groups)
            batch = batch.slice(first, end - first)
        return delta_of(batch, block, segment.header) if batch.num_rows else None
    except (pa.ArrowInvalid, KeyError, ValueError, OSError) as error:
        raise unreadable_block(block, error) from error


def _footer(file: pa.NativeFile, *, verified: bool) -> _Footer:
    size = file.size()
    if size < len(_MAGIC) + _TAIL.size or file.read_at(len(_MAGIC), 0) != _MAGIC:
        raise _damaged("it does not begin with the header of a segment")
    length, hashed, magic = _TAIL.unpack(file.read_at(_TAIL.size, size - _TAIL.size))
    hashed_bytes = size - struct.calcsize("<Q8s")
    if magic != _MAGIC or not (verified or hash_file(file, xxhash.xxh3_64(), hashed_bytes).intdigest() == hashed):
        raise _damaged("its hash does not match its bytes")
    try:
        footer = _FOOTER.decode(file.read_at(length, size - _TAIL.size - length))
    except msgspec.MsgspecError as error:
        raise _damaged(f"its footer cannot be read: {error}") from error
    if not _FIRST_VERSION <= footer.version <= VERSION:
        raise ConfigError(
            f"a changelog segment has version {footer.version}; this Holdfast reads versions up to {VERSION}",
            not_done="nothing was restored",
            next_step="run the version of Holdfast that wrote it, or a newer one",
        )
    return footer


def unreadable_block(block: Block, error: Exception) -> Damaged:
    """Return the report of a block that no writer writes."""
    return _damaged(f"the block of operator {block.operator} cannot be read: {error}")


def _damaged(why: str) -> Damaged:
    return Damaged(
        f"a changelog segment is damaged: {why}",
        not_done="none of it was restored",
        next_step="restore from an older base or checkpoint; to find all damaged objects: holdfast checkpoints verify",
    )
