"""What a barrier costs the operator thread, and what sealing costs the upload lane, by the share of dirty keys.

After a barrier the worker continues to fold; after every batch it copies some of the records that the barrier froze.
Once the epoch is committed, it writes some of the copies to the committed values after every batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from harness import Bench
from numpy.typing import NDArray

from holdfast.model import Epoch
from holdfast.state.compiled.sources import Input, sources_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.swap import resident_bytes
from holdfast.state.tables.delta import Delta
from holdfast.state.tables.epochs import COPIED_AT_ONCE
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.table import ColumnSpec, Table, TableSpec

COLUMNS = (ColumnSpec("count", np.dtype(np.int64)), ColumnSpec("sum", np.dtype(np.int64)))
NUMBER = KeyType(("k",), (pa.int64(),))
BATCH_ROWS = 65_536
SCHEMA = pa.schema(
    [("kg", pa.uint16()), ("key", pa.int64()), ("kind", pa.uint8()), ("end", pa.int64()), ("count", pa.int64()),
     ("sum", pa.int64())]
)  # fmt: skip
PART_ROWS = 1 << 16
"""Rows that are encoded at a time."""


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
        self.table = Table(TableSpec(1, "counts", NUMBER, COLUMNS), 128)
        self._program = self.table.program([(Do.COUNT, "count", 0), (Do.ADD_INT, "sum", 0)])
        self.numbers = np.random.default_rng(1).permutation(keys)
        self.rows = 0

    def fold(self, numbers: NDArray[np.int64]) -> None:
        self.table.fold(NUMBER.from_ints(numbers), self._program, sources_of([Input(numbers)]))
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
    """The work of sealing all keys of a table, part by part: CPU time of each step, and the memory that it takes."""
    keys = bench.size("keys", smoke=100_000, full=10_000_000)
    folded = Folded(keys)
    folded.fold_all(folded.numbers)
    folded.table.freeze(Epoch(1), Epoch(0))
    resident, delta = resident_bytes(), folded.table.delta(Epoch(1))
    spent, hashed, rows = dict[str, float](), xxhash.xxh3_64(), 0
    step = _stopwatch(spent)
    with bench.timed():
        parts = delta.sorted_parts(PART_ROWS)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=True)
        with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
            while (part := step("gather and sort", lambda: next(parts, None))) is not None:
                rows += part[0].size
                step("encode and compress", partial(writer.write_batch, _batch_of(*part)))
        data = sink.getvalue()
        step("hash", lambda: hashed.update(data))
    assert rows == keys
    bench.report(per=keys, unit="key", check=rows)
    bench.note(", ".join(f"{what} {1e3 * seconds:,.0f} ms" for what, seconds in spent.items()) + " of CPU time")
    more = (resident_bytes() - resident) >> 20
    bench.note(f"{data.size:,} bytes sealed; {more} MiB more memory; load {os.getloadavg()[0]:.1f}")


def _stopwatch(spent: dict[str, float]) -> Callable[[str, Callable[[], Any]], Any]:
    def step(what: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        spent[what] = spent.get(what, 0.0) + time.process_time() - start
        return result

    return step


def _batch_of(groups: NDArray[np.uint16], part: Delta) -> pa.RecordBatch:
    kinds = pa.array(np.where(part.puts, np.uint8(1), np.uint8(2)))
    columns = {"kg": pa.array(groups), "key": pa.array(part.keys.ints), "kind": kinds}
    return pa.record_batch(columns | {"end": pa.nulls(len(part), pa.int64())} | dict(part.columns))
