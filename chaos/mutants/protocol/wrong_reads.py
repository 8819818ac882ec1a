"""Wrong versions of reads that may meet damaged, taken or old objects; mutants.py names the rule that each negates.

Source: PROTOCOL P4, P8, P14, P16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import structs

from holdfast.checkpoint import joblog
from holdfast.checkpoint.repository import Repository, record_path
from holdfast.errors import AlreadyExists, Fenced
from holdfast.model import ObjectRef, SegmentRef, SnapshotHandle
from holdfast.ports import ObjectStore

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def trusts_every_byte(_: Right) -> Right:
    def read(store: ObjectStore, ref: ObjectRef) -> pa.NativeFile:
        return pa.BufferReader(store.get(ref.path))

    return read


def takes_taken_for_lost(_: Right) -> Right:
    def create(repository: Repository, record: joblog.Record) -> joblog.Record:
        try:
            repository._store.create(record_path(record.seq), joblog.encode(record))
        except AlreadyExists:
            raise Fenced("the number is taken", next_step="let this process exit") from None
        return record

    return create


def trusts_every_record(_: Right) -> Right:
    return lambda data: True


def takes_whole_pieces(right: Right) -> Right:
    """State that another subtask wrote for key groups that this one owns now is restored beside its own."""

    def pieces(handle: SnapshotHandle) -> tuple[SegmentRef, ...]:
        return tuple(structs.replace(piece, key_groups=None) for piece in right(handle))

    return pieces


def reads_older_rows_last(right: Right) -> Right:
    """A reader of stored state takes the oldest row of a key for the newest."""
    return lambda pieces: right(pieces[::-1])


def reads_without_ranges(_: Right) -> Right:
    return lambda rows, ranks, pieces: np.zeros(len(rows), bool)
