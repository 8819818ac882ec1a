"""State of half its budget, of its budget, and of ten times its budget: rows a second, memory, and a miss."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import Bench
from large_state import KEY_BYTES, Work, figures, is_right, running

MIB = 1 << 20


@pytest.mark.parametrize("keys", ["integer", "text"])
@pytest.mark.parametrize("drawn", ["uniform", "zipf"])
@pytest.mark.parametrize("tenths", [5, 10, 100], ids=["half the budget", "the budget", "ten budgets"])
def bench_larger_than_memory(bench: Bench, tmp_path: Path, tenths: int, drawn: str, keys: str) -> None:
    """Counts and eleven more columns per key, frozen and committed every two batches, in a process of its own.

    The rate is that of known keys, by the time of the processor; loading and starting are not in it.
    """
    budget = bench.size("budget MiB", smoke=4, full=64) * MIB
    batch_rows = bench.size("batch rows", smoke=2_000, full=65_536)
    batches = bench.size("batches", smoke=2, full=16)
    known = bench.size("keys", smoke=2_000 * tenths // 10, full=64 * MIB * tenths // 10 // KEY_BYTES)
    rows = batches * batch_rows
    work = Work(str(tmp_path), budget, known, rows, batch_rows, 2, drawn == "zipf", keys == "text")
    with bench.timed(), running(work) as (worker, base):
        found = figures(worker)
        assert worker.wait() == 0
    bench.seconds = 1e-6 * rows * found.row_us
    assert is_right(work)
    bench.report(per=rows, unit="row", check=found.state)
    bench.note(f"{found.load_us:.2f} us a new key; {found.rows_per_s:,.0f} rows/s of elapsed time")
    grown = f"peak {(found.peak - base) / MIB:.1f} MiB above the start, state {found.state / MIB:.0f} MiB"
    bench.note(f"{grown}, {found.dropped:,} regions left memory, load {os.getloadavg()[0]:.1f}")
    if found.miss_us:
        bench.note(f"{found.miss_us:.0f} us for a region of 2 MiB that is brought, changed and dropped")
