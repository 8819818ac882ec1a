"""Merges stored segments into one equivalent segment, as a stream.

Pieces are merged operator by operator, and between the edges of their key groups: after a rescale, pieces of different
owners are never read at the same time.

Invariants
    - Restoring the result gives the state that restoring the pieces gives.
    - The result has the present declaration of every operator, whatever the pieces were written with.
    - A base, which follows nothing, has neither tombstones nor ranges; any other result keeps them.
    - Memory follows the number of pieces of one key group and the width of rows, not the size of the state.

Pure: it reads and writes only the files that it is given. DESIGN section 5; docs/decisions/0007, 0038, 0042.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from holdfast.model import NO_EPOCH
from holdfast.state.blocks import BlockReader, StateRows
from holdfast.state.changelog import Block, Data, SegmentHeader, SegmentWriter, opened
from holdfast.state.evolution import unreadable
from holdfast.state.merged import merged
from holdfast.state.segmentrows import batch_of, with_ranges
from holdfast.state.tables.expiry import NOTHING, Through
from holdfast.state.tables.spec import TableSpec
from holdfast.state.tables.values import default_of
from holdfast.storage.hashing import ByteSink

Stored = tuple[pa.NativeFile, Block, tuple[int, int]]
"""A block of a segment, and the key groups [first, end) to use."""


def compact(
    header: SegmentHeader, pieces: Iterable[tuple[Data, tuple[int, int]]], specs: Iterable[TableSpec], into: ByteSink
) -> None:
    """Write one segment with the effect of these pieces.

    Args:
        header: Header of the result. With `follows` 0, the result is a base.
        pieces: Segments with the key groups [first, end) to use, in the order of their epochs.
            Pieces of one epoch have no key group in common.
        specs: The present operators; rows of others are left out.

    Raises:
        ConfigError: a piece was written with a declaration that the present one cannot read.
        Damaged: a byte of a piece differs from what was sealed.
    """
    segments = [(opened(data), key_groups) for data, key_groups in pieces]
    with SegmentWriter(into, header) as writer:
        for spec in sorted(specs, key=lambda spec: spec.operator):
            source_blocks = [
                (segment.file, block, key_groups)
                for segment, key_groups in segments
                for block in segment.blocks
                if block.operator == spec.operator
            ]
            if not source_blocks:
                continue
            count = source_blocks[-1][1].key_group_count
            through = np.full(count, NOTHING)
            batches = _batches(source_blocks, spec, through, base=header.follows == NO_EPOCH)
            writer.block(spec.operator, spec.key, count, with_ranges(batches, through, _empty(spec)))


def _batches(stored: list[Stored], spec: TableSpec, through: Through, *, base: bool) -> Iterator[pa.RecordBatch]:
    """Yield the merged rows in order; unless the result is a base, add their ranges to `through` before."""
    edges = sorted({edge for _, _, key_groups in stored for edge in key_groups})
    for first, end in pairwise(edges):
        here = [(file, block) for file, block, of in stored if of[0] <= first and end <= of[1]]
        readers = [BlockReader(file, block, (first, end), spec=spec) for file, block in here]
        for reader in readers:
            if reader.kind != spec.key or reader.through.size != through.size:
                raise unreadable(spec)
        for rows in merged(readers, tombstones=not base):
            _note(readers, through, base)
            yield _batch_of(rows, spec)
        _note(readers, through, base)


def _note(readers: list[BlockReader], through: Through, base: bool) -> None:
    """Add the ranges read so far."""
    for reader in () if base else readers:
        np.maximum(through, reader.through, out=through)


def _batch_of(rows: StateRows, spec: TableSpec) -> pa.RecordBatch:
    keys = rows.as_keys()
    key = keys.canonical() if keys.ints is None else pa.array(keys.ints)
    return batch_of(rows.groups, key, rows.puts, {column.id: rows.columns[column.name] for column in spec.columns})


def _empty(spec: TableSpec) -> pa.RecordBatch:
    keys = spec.key.empty()
    key = keys.canonical() if keys.ints is None else pa.array(keys.ints)
    columns = {column.id: default_of(column, 0) for column in spec.columns}
    return batch_of(np.empty(0, np.uint16), key, np.empty(0, bool), columns)
