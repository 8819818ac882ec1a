"""A process that counts keys in a state of any size inside a budget of memory; it prints figures as JSON, a line each.

The first line is the resident memory before the state exists, so that another process can watch the rest from then on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.compiled.sources import KernelInput, sources_of
from holdfast.state.keys.batch import Keys, KeyType
from holdfast.state.paging.swap import SwapMemory, resident_bytes
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.slab import PLAIN, UNIT_BYTES, Memory
from holdfast.state.tables.table import ColumnSpec, TableSpec

COLUMNS = 12
KEY_BYTES = 230
"""Of state, about: record, committed values and index."""
RECORD_BYTES = 8 * (COLUMNS + 2)
SWEPT_RECORDS = 64
"""One of so many records is changed in a sweep."""
COUNTS = "counts"
ZIPF, SPREAD = 1.2, 7919
"""Frequent keys are not neighbours."""
_SEED = 7


@dataclass(frozen=True)
class Work:
    """What the process does.

    Args:
        budget: Resident memory above the start; three quarters are for tables.
        rows: Rows after every key has had one.
        batch_rows, epoch_batches: Of these rows; every epoch is frozen, sealed in memory and committed.
    """

    folder: str
    budget: int
    keys: int
    rows: int
    batch_rows: int
    epoch_batches: int
    zipf: bool
    text: bool

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the keys, batch by batch."""
        chance = np.random.default_rng(_SEED)
        for _ in range(0, self.rows, self.batch_rows):
            if self.zipf:
                yield chance.zipf(ZIPF, self.batch_rows) * SPREAD % self.keys
            else:
                yield chance.integers(0, self.keys, self.batch_rows)

    def counts(self) -> NDArray[np.int64]:
        """Return how often every key occurs in the end."""
        counts = np.ones(self.keys, np.int64)
        for numbers in self.batches():
            np.add.at(counts, numbers, 1)
        return counts


@dataclass(frozen=True)
class Figures:
    """What the process reports in the end; times are of the processor unless they are rates."""

    peak: int
    state: int
    load_us: float
    """Per new key, with freeze and commit."""
    row_us: float
    """Per row of a known key, with freeze and commit."""
    rows_per_s: float
    dropped: int
    """Regions that left memory while these rows were folded."""
    miss_us: float
    """Per region of records that a sweep brings into memory, changes and drops; 0 if all are resident."""
    held: int
    """How many regions the records have."""


class Counting:
    """A state store with one table, and what feeds it."""

    def __init__(self, work: Work, memory: Memory) -> None:
        self.work, self.names = work, [f"c{i}" for i in range(COLUMNS)]
        key = KeyType(("k",), (pa.utf8() if work.text else pa.int64(),))
        self.spec = TableSpec(1, "t", key, tuple(ColumnSpec(name, np.dtype(np.int64)) for name in self.names))
        identity = Identity(JobUuid("j"), Generation(1), Timeline(1), WorkerId("w"))
        self.store = StateStore(identity, [self.spec], 128, (0, 128), memory=memory)
        self.epoch = 0

    def keys(self, numbers: NDArray[np.int64]) -> Keys:
        column = pa.array(numbers)
        return self.spec.key.encode([column.cast(pa.utf8()) if self.work.text else column])

    def feed(self, numbers: NDArray[np.int64]) -> None:
        table = self.store.table(1)
        sets = [(Do.SET, name, 0) for name in self.names[2:]]
        program = table.program([(Do.COUNT, "c0", 0), (Do.ADD_INT, "c1", 0), *sets])
        table.fold(self.keys(numbers), program, sources_of([KernelInput(numbers)]))

    def close(self) -> None:
        """Freeze and commit an epoch."""
        self.epoch += 1
        self.store.freeze(1, Epoch(self.epoch), Epoch(self.epoch - 1))
        self.store.deltas(Epoch(self.epoch))
        self.store.commit(Epoch(self.epoch))

    def slices(self) -> Iterator[NDArray[np.int64]]:
        for first in range(0, self.work.keys, self.work.batch_rows):
            yield np.arange(first, min(first + self.work.batch_rows, self.work.keys))

    def write_counts(self) -> None:
        """Write the counts of all keys, in the order of their numbers."""
        table = self.store.table(1)
        with open(Path(self.work.folder) / COUNTS, "wb") as counts:
            counts.writelines(table.values("c0", table.find(self.keys(numbers))).tobytes() for numbers in self.slices())

    def sweep(self, memory: SwapMemory) -> tuple[float, int]:
        """Change one record in SWEPT_RECORDS; return the time per region of records, if any had left, and how many."""
        table, before, began = self.store.table(1), memory.dropped_regions, time.process_time()
        table.touch(np.arange(0, len(table), SWEPT_RECORDS))
        regions = -(-len(table) * RECORD_BYTES // UNIT_BYTES)
        spent = 1e6 * (time.process_time() - began) / regions
        return (spent if memory.dropped_regions > before else 0.0), regions


@contextmanager
def running(work: Work) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start the process; yield it, and its resident memory before the state exists. It is killed if it is left."""
    with subprocess.Popen([sys.executable, __file__, json.dumps(asdict(work))], stdout=PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            yield worker, int(worker.stdout.readline())
        finally:
            worker.kill()


def figures(worker: subprocess.Popen[str]) -> Figures:
    """Return what the process reports."""
    assert worker.stdout is not None
    return Figures(**json.loads(worker.stdout.readline()))


def is_right(work: Work) -> bool:
    """Return whether the process has counted every key right."""
    return np.array_equal(np.fromfile(Path(work.folder) / COUNTS, np.int64), work.counts())


def main(work: Work) -> None:
    """Do the work; write the counts of all keys to a file `counts` in the folder."""
    warm = Counting(work, PLAIN)  # so that what the libraries take is there before it is measured
    warm.feed(np.arange(work.batch_rows))
    warm.close()
    del warm
    base = resident_bytes()
    print(base, flush=True)
    memory = SwapMemory(Path(work.folder), base + work.budget, work.budget * 3 // 4)
    counting = Counting(work, memory)
    began = time.process_time()
    for numbers in counting.slices():
        counting.feed(numbers)
        counting.close()
    loaded, wall, before = time.process_time(), time.monotonic(), memory.dropped_regions
    for batch, numbers in enumerate(work.batches(), 1):
        counting.feed(numbers)
        if batch % work.epoch_batches == 0:
            counting.close()
    ended, wall = time.process_time(), time.monotonic() - wall
    dropped = memory.dropped_regions - before
    counting.write_counts()
    miss_us, held = counting.sweep(memory)
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) << 10
    load_us, row_us = 1e6 * (loaded - began) / work.keys, 1e6 * (ended - loaded) / work.rows
    state, rows_per_s = counting.store.nbytes, work.rows / wall
    print(json.dumps(asdict(Figures(peak, state, load_us, row_us, rows_per_s, dropped, miss_us, held))), flush=True)


if __name__ == "__main__":
    main(Work(**json.loads(sys.argv[1])))
