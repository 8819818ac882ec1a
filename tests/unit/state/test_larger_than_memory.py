"""State of ten times its budget, in a process that is killed once it uses more memory than it may."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from holdfast.state.swap import unfit

MIB = 1 << 20
BUDGET = 16 * MIB
KEYS, ROWS, EPOCH_ROWS, COLUMNS = 750_000, 40_000, 20_000, 12

WORKER = """
import sys, time
from pathlib import Path
import numpy as np
import pyarrow as pa
from holdfast.model import Epoch, Generation, JobUuid, Timeline, WorkerId
from holdfast.state.compiled.sources import Input, sources_of
from holdfast.state.keys.batch import KeyType
from holdfast.state.store import Identity, StateStore
from holdfast.state.swap import Swap, resident_bytes
from holdfast.state.tables.kernels.layout import Do
from holdfast.state.tables.slab import PLAIN
from holdfast.state.tables.table import ColumnSpec, TableSpec

folder, budget, keys, rows, epoch_rows, columns, kind = Path(sys.argv[1]), *map(int, sys.argv[2:7]), sys.argv[7]
names = [f"c{i}" for i in range(columns)]
spec = TableSpec(1, "t", KeyType(("k",), (pa.int64(),)), tuple(ColumnSpec(name, np.dtype(np.int64)) for name in names))
identity = Identity(JobUuid("j"), Generation(1), Timeline(1), WorkerId("w"))

def opened(memory):
    return StateStore(identity, [spec], 128, (0, 128), memory=memory)

def feed(store, numbers):
    table = store.table(1)
    program = table.program([(Do.COUNT, "c0", 0), (Do.ADD_INT, "c1", 0), *((Do.SET, name, 0) for name in names[2:])])
    table.fold(spec.key.encode([pa.array(numbers)]), program, sources_of([Input(numbers)]))

def close(store, epoch):
    store.freeze(1, Epoch(epoch), Epoch(epoch - 1))
    store.deltas(Epoch(epoch))
    store.commit(Epoch(epoch))

warm = opened(PLAIN)  # so that what the libraries take is there before it is measured
feed(warm, np.arange(epoch_rows))
close(warm, 1)
del warm
print(resident_bytes(), flush=True)
memory = Swap(folder, resident_bytes() + budget, budget * 3 // 4)
store, epoch = opened(memory), 0
for first in range(0, keys, epoch_rows):
    epoch += 1
    feed(store, np.arange(first, min(first + epoch_rows, keys)))
    close(store, epoch)
chance = np.random.default_rng(7)
began, wall = time.process_time(), time.monotonic()
for _ in range(0, rows, epoch_rows):
    epoch += 1
    given = chance.integers(0, keys, epoch_rows) if kind == "uniform" else chance.zipf(1.2, epoch_rows) * 7919 % keys
    feed(store, given)
    close(store, epoch)
spent = (time.process_time() - began, time.monotonic() - wall, store.nbytes, memory.dropped_regions)
table = store.table(1)
with open(folder / "counts", "wb") as counts:
    for first in range(0, keys, epoch_rows):
        slots = table.find(spec.key.encode([pa.array(np.arange(first, min(first + epoch_rows, keys)))]))
        counts.write(table.values("c0", slots).tobytes())
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(int(peak) << 10, *spent, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uniform", "zipf"])
def test_a_state_of_ten_times_the_budget_is_counted_right_inside_the_budget(tmp_path: Path, kind: str) -> None:
    assert not unfit(tmp_path), f"{unfit(tmp_path)}; set TMPDIR to a folder on a disk"
    given = [str(tmp_path), *map(str, (BUDGET, KEYS, ROWS, EPOCH_ROWS, COLUMNS)), kind]
    with subprocess.Popen([sys.executable, "-c", WORKER, *given], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        base = int(worker.stdout.readline())
        limit = base + BUDGET * 5 // 4
        while worker.poll() is None:
            if resident_of(worker.pid) > limit:
                worker.kill()
                pytest.fail("the worker was killed: it used more memory than it may")
            try:
                worker.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
        peak, cpu, wall, state, regions = map(float, worker.stdout.read().split())
    print(f"{kind}: {1e6 * cpu / ROWS:.1f} us a row, {ROWS / wall:,.0f} rows/s, peak +{(peak - base) / MIB:.0f} MiB")
    print(f"state {state / MIB:.0f} MiB, {regions:.0f} regions, load {os.getloadavg()[0]:.1f}")
    assert state > 10 * BUDGET
    assert peak < limit
    chance, expected = np.random.default_rng(7), np.ones(KEYS, np.int64)
    for _ in range(0, ROWS, EPOCH_ROWS):
        zipf = kind != "uniform"
        rows = chance.zipf(1.2, EPOCH_ROWS) * 7919 % KEYS if zipf else chance.integers(0, KEYS, EPOCH_ROWS)
        np.add.at(expected, rows, 1)
    assert np.array_equal(np.fromfile(tmp_path / "counts", np.int64), expected)


def resident_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
