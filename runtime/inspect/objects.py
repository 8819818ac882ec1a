"""Objects of a checkpoint, held for as long as a reader needs them.

A running job deletes the objects of expired checkpoints. A reader that holds all its objects before it gives its first
row is never left with part of an answer.

Invariants
    - Every object was verified against its size and SHA-256.
    - Memory is bounded: of what the store cannot map, all above MEMORY_BYTES is in unlinked temporary files.
"""

from __future__ import annotations

import hashlib
import mmap
import tempfile
from collections.abc import Iterable

import pyarrow as pa

from holdfast.checkpoint.repository import read_verified
from holdfast.errors import Damaged, NotFound
from holdfast.model import ObjectRef
from holdfast.ports import ObjectStore
from holdfast.storage.objects import MappedStore

MEMORY_BYTES = 64 << 20


def held(store: ObjectStore, refs: Iterable[ObjectRef]) -> dict[str, pa.Buffer]:
    """Return the bytes of objects by path.

    Raises:
        Damaged: an object is missing, or differs from what was written.
    """
    buffers: dict[str, pa.Buffer] = {}
    in_memory = 0
    for ref in refs:
        if ref.path in buffers:
            continue
        if isinstance(store, MappedStore):
            buffers[ref.path] = _mapped(store, ref)
            continue
        data = read_verified(store, ref)
        in_memory += len(data)
        buffers[ref.path] = pa.py_buffer(data) if in_memory <= MEMORY_BYTES else _in_file(data)
    return buffers


def _mapped(store: MappedStore, ref: ObjectRef) -> pa.Buffer:
    try:
        data = store.mapped(ref.path)
    except NotFound:
        raise _damaged(f"object {ref.path} is missing") from None
    if data.size != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise _damaged(f"object {ref.path} differs from what was written ({data.size} bytes, {ref.size} expected)")
    return data


def _damaged(what: str) -> Damaged:
    return Damaged(what, not_done="no state was read", next_step="find an intact one: holdfast checkpoints verify JOB")


def _in_file(data: bytes) -> pa.Buffer:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        return pa.py_buffer(mmap.mmap(file.fileno(), len(data), access=mmap.ACCESS_READ))
