"""What a barrier costs the operator thread, and what sealing costs the upload lane, by the share of dirty keys.

After a barrier the worker continues to fold; after every batch it copies some of the records that the barrier froze.
Once the epoch is committed, it writes some of the copies to the committed values after every batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from harness import Bench
from numpy.typing import NDArray

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.changelog import SegmentHeader, seal_into
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.paging.swap import resident_bytes
from holdfast.state.tables.delta import OperatorDelta
from holdfast.state.tables.epochs import COPIED_AT_ONCE
from holdfast.state.tables.frozen import FrozenDelta
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.table import ColumnSpec, StateTable, TableSpec

COLUMNS = (ColumnSpec("count", np.dtype(np.int64)), ColumnSpec("sum", np.dtype(np.int64)))
NUMBER = KeyType(("k",), (pa.int64(),))
BATCH_ROWS = 65_536


class Pauses:
    """How long the operator thread was away, by reason."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = {}

    @contextmanager
    def of(self, reason: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.ms.setdefault(reason, []).append(1e3 * (time.perf_counter() - start))

    def lines(self) -> Iterator[str]:
        for reason, each in self.ms.items():
            middle, most = np.percentile(each, [50, 99])
            yield f"{reason}: p50 {middle:.1f}, p99 {most:.1f}, max {max(each):.1f} ms, {len(each)} times"


class Folded:
    """A table of many keys, and batches that fold into some of them, in random order."""

    def __init__(self, keys: int) -> None:
        self.table = StateTable(TableSpec(1, "counts", NUMBER, COLUMNS), 128)
        self._program = self.table.program([(Do.COUNT, "count", 0), (Do.ADD_INT, "sum", 0)])
        self.numbers = np.random.default_rng(1).permutation(keys)
        self.rows = 0

    def fold(self, numbers: NDArray[np.int64]) -> None:
        self.table.fold(NUMBER.from_ints(numbers), self._program, sources_of([KernelInput(numbers)]))
        self.rows += numbers.size

    def fold_all(self, numbers: NDArray[np.int64]) -> None:
        for first in range(0, numbers.size, BATCH_ROWS):
            self.fold(numbers[first : first + BATCH_ROWS])


@pytest.mark.parametrize("percent", [1, 10, 100])
def bench_barrier_pause(bench: Bench, percent: int) -> None:
    """Freeze, copy in steps while the same keys are folded, commit."""
    keys = bench.size("keys", smoke=100_000, full=10_000_000)
    epochs = bench.size("epochs", smoke=2, full=200 // percent + 8)
    folded, pauses, resident = Folded(keys), Pauses(), resident_bytes()
    table, dirty = folded.table, folded.numbers[: keys * percent // 100]
    folded.fold_all(folded.numbers)
    table.freeze(Epoch(1), Epoch(0))
    table.commit(Epoch(1))
    table.commit_all()
    copied, before = 0, folded.rows
    with bench.timed():
        for number in range(2, epochs + 2):
            folded.fold_all(dirty)
            with pauses.of("barrier"):
                table.freeze(Epoch(number), Epoch(number - 1))
            at = 0
            while table.uncopied:
                with pauses.of("a batch folded meanwhile"):
                    folded.fold(dirty[at : at + BATCH_ROWS] if at < dirty.size else dirty[:BATCH_ROWS])
                with pauses.of("a step of copying"):
                    table.advance(COPIED_AT_ONCE)
                at += BATCH_ROWS
            copied += len(table.delta(Epoch(number)))
            with pauses.of("commit"):
                table.commit(Epoch(number))
            while table.uncommitted:
                with pauses.of("a step of committing"):
                    table.advance(COPIED_AT_ONCE)
    assert copied == epochs * dirty.size
    assert int(table.column("count").sum()) == folded.rows
    bench.report(per=folded.rows - before, unit="row", check=copied)
    for line in pauses.lines():
        bench.note(line)
    bench.note(f"{(resident_bytes() - resident) / keys:.0f} bytes per key; load {os.getloadavg()[0]:.1f}")


def bench_seal_in_parts(bench: Bench) -> None:
    """Seal all keys of a table: CPU time of each step, and the memory that it takes."""
    keys = bench.size("keys", smoke=100_000, full=10_000_000)
    folded = Folded(keys)
    folded.fold_all(folded.numbers)
    folded.table.freeze(Epoch(1), Epoch(0))
    resident, delta, written = resident_bytes(), folded.table.delta(Epoch(1)), Counted()
    header = SegmentHeader(JobUuid("job"), Generation(1), Timeline(1), Epoch(1), Epoch(0), WorkerId("w"))
    stepwise = Stepwise(delta)
    start = time.process_time()
    with bench.timed():
        seal_into(written, header, [stepwise])
    spent = time.process_time() - start
    assert stepwise.rows == keys
    bench.report(per=keys, unit="key", check=stepwise.rows)
    gathered = 1e3 * stepwise.seconds
    bench.note(
        f"gather and sort {gathered:,.0f} ms of CPU time, pack, compress and hash {1e3 * spent - gathered:,.0f} ms"
    )
    more = (stepwise.resident - resident) >> 20
    bench.note(f"{written.size:,} bytes sealed; {more} MiB more memory at most; load {os.getloadavg()[0]:.1f}")


class Counted:
    """Receives a segment and keeps none of it."""

    size = 0

    def write(self, data: bytes) -> int:
        self.size += len(data)
        return len(data)


class Stepwise:
    """A delta that measures how long its parts take, and the memory of the process after each."""

    def __init__(self, delta: FrozenDelta) -> None:
        self.epoch, self.follows, self.operator = delta.epoch, delta.follows, delta.operator
        self.key_group_count, self.kind, self.through = delta.key_group_count, delta.kind, delta.through
        self._delta, self.rows, self.seconds, self.resident = delta, 0, 0.0, 0

    def __len__(self) -> int:
        return len(self._delta)

    def empty(self) -> OperatorDelta:
        return self._delta.empty()

    def sorted_parts(self, rows_max: int) -> Iterator[tuple[NDArray[np.uint16], OperatorDelta]]:
        parts = self._delta.sorted_parts(rows_max)
        while True:
            start = time.process_time()
            part = next(parts, None)
            self.seconds += time.process_time() - start
            if part is None:
                return
            self.rows += len(part[1])
            self.resident = max(self.resident, resident_bytes())
            yield part
