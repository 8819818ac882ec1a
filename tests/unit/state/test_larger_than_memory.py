"""State of ten times its budget, in a process that is killed once it uses more memory than it may."""

import os
import subprocess
from pathlib import Path

import pytest
from large_state import KEY_BYTES, Work, figures, is_right, running

from holdfast.state.paging.swap import unfit

MIB = 1 << 20
BUDGET = 32 * MIB
EPOCH_ROWS, EPOCHS, TIMES = 20_000, 4, 10
KEYS = TIMES * BUDGET // KEY_BYTES * 105 // 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uniform", "zipf"])
def test_a_state_of_ten_times_the_budget_is_counted_right_inside_the_budget(tmp_path: Path, kind: str) -> None:
    assert not unfit(tmp_path), f"{unfit(tmp_path)}; set TMPDIR to a folder on a disk"
    work = Work(str(tmp_path), BUDGET, KEYS, EPOCHS * EPOCH_ROWS, EPOCH_ROWS, 1, kind == "zipf", False)
    with running(work) as (worker, base):
        limit = base + BUDGET * 5 // 4
        while worker.poll() is None:
            if resident_of(worker.pid) > limit:
                pytest.fail("the worker was killed: it used more memory than it may")
            try:
                worker.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
        found = figures(worker)
    print(f"{kind}: {found.row_us:.1f} us a row, {found.rows_per_s:,.0f} rows/s, +{(found.peak - base) / MIB:.0f} MiB")
    print(f"state {found.state / MIB:.0f} MiB, {found.dropped} regions left memory, load {os.getloadavg()[0]:.1f}")
    assert found.state > TIMES * BUDGET
    assert found.peak < limit
    assert is_right(work)


def resident_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
