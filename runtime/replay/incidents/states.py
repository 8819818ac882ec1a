"""The state of a checkpoint as tables that any reader of Arrow opens, and a job in memory that has it again.

A table has the columns of the key under `key/NAME`, and the values under `value/ID`, by the names under which segments
hold them. The type of the key is in the metadata.

Invariants
    - Rows are those of the checkpoint, each key once; key groups follow from the keys.
    - Packed and unpacked, every operator has the same state, key by key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.checkpoint.forks import GENERATION, TIMELINE, NewJob, copy_path, first_record
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged, Where
from holdfast.frozen import replace
from holdfast.model import NO_EPOCH, JobUuid, ObjectRef, Pending, WorkerId
from holdfast.ports import ObjectStore
from holdfast.runtime.inspect.reading import reading_of
from holdfast.runtime.inspect.stored import Stored
from holdfast.state.changelog import SegmentHeader, seal
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.values import arrow, numpy
from holdfast.storage.objects import MemoryObjects

KEY, VALUE = "key/", "value/"
KEY_TYPE = b"holdfast.key"
OWNER = "incident"


class _KeyShape(msgspec.Struct, frozen=True):
    unrouted: int
    suffix: int


_KEY_SHAPE = msgspec.json.Decoder(_KeyShape)


def state_of(
    stored: Stored, manifest: Manifest, operator: str, key_groups: tuple[int, int] | None = None
) -> pa.Table | None:
    """Return the state of an operator at a checkpoint; None if it has none.

    Args:
        key_groups: Only the rows of these [first, end).

    Raises:
        ConfigError, Damaged, Unavailable: it cannot be read.
    """
    reading = reading_of(stored, operator, str(manifest.epoch), key_groups=key_groups)
    columns = reading.view.spec.columns
    batches = list[pa.RecordBatch]()
    for rows in reading.rows():
        kind = rows.kind
        fields = [field.with_name(f"{KEY}{field.name}") for field in kind.fields]
        fields += [pa.field(f"{VALUE}{each.id}", each.arrow) for each in columns]
        shape = msgspec.json.encode(_KeyShape(kind.unrouted, kind.suffix))
        arrays = [*rows.key_columns(), *(arrow(rows.columns[each.name]) for each in columns)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, {KEY_TYPE: shape})))
    return pa.Table.from_batches(batches) if batches else None


def key_type_of(schema: pa.Schema) -> KeyType:
    """Return the type of the keys of a table of state. Raises ValueError if it is none."""
    shape = _KEY_SHAPE.decode((schema.metadata or {}).get(KEY_TYPE, b""))
    fields = [field.with_name(field.name.removeprefix(KEY)) for field in schema if field.name.startswith(KEY)]
    return KeyType.of(fields, shape.unrouted, shape.suffix)


def job_with(
    name: str,
    manifest: Manifest,
    at_us: int,
    tables: Mapping[str, pa.Table],
    pending: Sequence[Pending] = (),
    parts: Mapping[str, bytes] | None = None,
) -> Stored:
    """Return a job in memory with one checkpoint.

    Args:
        manifest: That of the checkpoint; the objects that it names are replaced.
        at_us: When the checkpoint was completed.
        tables: The state of operators, by name.
        pending: The staged output that the checkpoint names.
        parts: Its objects.

    Raises:
        Damaged: a table is not the state of an operator.
    """
    store = MemoryObjects()
    for path, data in (parts or {}).items():
        store.create(path, data)
    new = NewJob(name, JobUuid(OWNER), OWNER, at_us)
    base = _sealed(store, new, manifest, tables)
    own = msgspec.structs.replace(
        manifest,
        job_uuid=new.uuid,
        generation=GENERATION,
        timeline=TIMELINE,
        follows=NO_EPOCH,
        state=tuple(replace(handle, base=base, base_epoch=manifest.epoch, segments=()) for handle in manifest.state),
        pending=tuple(pending),
        confirmed=(),
        changelog=msgspec.UNSET,
        committed_once=msgspec.UNSET,
    )
    repository = Repository(store)
    ref = repository.store_manifest(own, OWNER)
    repository.create_record(first_record(new, own, (), ref, 0, sum(each.size for each in base)))
    job = repository.read_log()
    assert job is not None, "its record was created"
    return Stored(name, OWNER, store, repository, job)


def _sealed(
    store: ObjectStore, new: NewJob, manifest: Manifest, tables: Mapping[str, pa.Table]
) -> tuple[ObjectRef, ...]:
    deltas = [
        _delta(each.id, manifest, each.name, tables[each.name])
        for each in manifest.operators
        if not each.dropped and each.name in tables
    ]
    if not deltas:
        return ()
    header = SegmentHeader(new.uuid, GENERATION, TIMELINE, manifest.epoch, NO_EPOCH, WorkerId(OWNER))
    data = seal(header, deltas)
    ref = ObjectRef(copy_path(new, manifest.epoch, 0), len(data), hashlib.sha256(data).hexdigest())
    store.create(ref.path, data)
    return (ref,)


def _delta(number: int, manifest: Manifest, name: str, table: pa.Table) -> OperatorDelta:
    try:
        kind = key_type_of(table.schema)
        whole = table.combine_chunks()
        arrays = {each: whole.column(each).combine_chunks() for each in table.schema.names}
        keys = kind.encode([arrays[f"{KEY}{each}"] for each in kind.names])
        values = {each.removeprefix(VALUE): numpy(arrays[each]) for each in arrays if each.startswith(VALUE)}
    except (msgspec.DecodeError, KeyError, ValueError, AssertionError) as error:
        raise Damaged(
            f"the state of operator {name!r} in the incident file cannot be read: {error}",
            not_done="nothing was replayed",
            next_step="copy the file again, and compare its checksum with that of the original",
            where=Where(operator=name, epoch=manifest.epoch),
        ) from error
    return OperatorDelta(manifest.epoch, NO_EPOCH, number, manifest.key_groups, keys, np.ones(len(keys), bool), values)
