"""Merging and reading stored pieces, in a process whose peak of memory is compared with the size of the state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
PIECES, WIDTH, LIMIT = 4, 240, 96 * MIB
"""Every piece replaces half of the rows of the one before it. Half of the limit is what Arrow's allocator keeps."""
VERIFY_LIMIT = 40 * MIB

CHILD = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from holdfast.checkpoint.bases import Merge
from holdfast.checkpoint.repository import open_verified
from holdfast.model import Epoch, Generation, JobUuid, ObjectRef, SegmentRef, SnapshotHandle
from holdfast.model import Subtask, Timeline, WorkerId
from holdfast.runtime.cli.operate.verify import CheckpointObject, damaged_of
from holdfast.runtime.wire.messages import ActiveRole, Deploy
from holdfast.runtime.worker.compaction import CompactJob
from holdfast.state import blocks, changelog
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.spec import ColumnSpec, TableSpec
from holdfast.storage.local import LocalObjects
import hashlib

what, folder, pieces, rows, width = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
KEY, GROUPS = KeyType(("k",), (pa.int64(),)), 128
SPEC = TableSpec(1, "t", KEY, (ColumnSpec("note", pa.utf8()),))
store = LocalObjects(folder)

def sealed(number, rows):
    keys = KEY.from_ints(np.arange(rows) + (number - 1) * rows // 2)
    notes = pa.array([str(number) * width], pa.large_utf8()).take(pa.array(np.zeros(rows, np.int64)))
    columns = {SPEC.columns[0].id: notes}
    delta = OperatorDelta(Epoch(number), Epoch(number - 1), 1, GROUPS, keys, np.ones(rows, bool), columns)
    owner = JobUuid("j"), Generation(1), Timeline(1)
    header = changelog.SegmentHeader(*owner, delta.epoch, delta.follows, WorkerId("w"))
    data = changelog.seal(header, [delta])
    store.put(f"segments/{number}-{rows}", data)

def ref(number, rows):
    data = Path(folder, "segments", f"{number}-{rows}").read_bytes()
    object = ObjectRef(f"segments/{number}-{rows}", len(data), hashlib.sha256(data).hexdigest())
    return SegmentRef(Epoch(number), Epoch(number - 1), object)

def merged(refs, through):
    handle = SnapshotHandle(Subtask(0), (0, GROUPS), (), Epoch(0), refs)
    owner = JobUuid("j"), Generation(1), Timeline(1)
    deploy = Deploy(*owner, Epoch(101), through, ActiveRole(Subtask(0)), (), handle, (), (), ())
    return CompactJob(deploy, WorkerId("w"), Merge(through, Epoch(0), refs), (SPEC,)).run(store)

def read(base):
    total = size = 0
    with open_verified(store, base.object) as file:
        for delta in blocks.deltas_of(changelog.opened(file), (0, GROUPS)):
            total, size = total + len(delta), size + sum(values.nbytes for values in delta.columns.values())
    return total, size

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10

if what == "write":
    for number in range(1, pieces + 1):
        sealed(number, rows)
        sealed(number, 1000)
elif what == "verify":
    named = [CheckpointObject(ref(number, rows).object, "segment", [number]) for number in range(1, pieces + 1)]
    assert damaged_of(store, GROUPS, [CheckpointObject(ref(1, 1000).object, "segment", [1])]) == []
    before = peak()
    assert damaged_of(store, GROUPS, named) == []
    print(before, peak())
else:
    read(merged(tuple(ref(number, 1000) for number in range(1, pieces + 1)), Epoch(8)))
    refs = tuple(ref(number, rows) for number in range(1, pieces + 1))
    before = peak()
    base = merged(refs, Epoch(9))
    after_merge = peak()
    total, size = read(base)
    print(before, after_merge, peak(), total, size)
"""


def child(what: str, folder: Path, rows: int) -> str:
    command = [sys.executable, "-c", CHILD, what, str(folder), *map(str, (PIECES, rows, WIDTH))]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.parametrize("rows", [300_000, pytest.param(1_100_000, marks=pytest.mark.slow)])
def test_a_merge_and_a_restore_need_memory_that_does_not_follow_the_size_of_the_state(
    tmp_path: Path, rows: int
) -> None:
    child("write", tmp_path, rows)
    printed = child("merge", tmp_path, rows)
    before, merged, read, found, size = map(int, printed.split())
    pieces = PIECES * rows * WIDTH
    print(
        f"merge of {pieces / MIB:.0f} MiB +{(merged - before) / MIB:.0f} MiB, with reading +{(read - before) / MIB:.0f}"
    )
    assert found == rows * (PIECES + 1) // 2 and size > found * WIDTH
    assert pieces > (10 if rows > 1_000_000 else 2.5) * LIMIT
    assert read - before < LIMIT


def test_verifying_needs_memory_that_does_not_follow_the_size_of_an_object(tmp_path: Path) -> None:
    rows = 300_000
    child("write", tmp_path, rows)
    before, after = map(int, child("verify", tmp_path, rows).split())
    assert rows * WIDTH > 1.5 * VERIFY_LIMIT
    assert after - before < VERIFY_LIMIT
