"""A job of ten hours, played epoch by epoch with retention deleting: nothing of the driver or the root grows with time.

The first hours fill what is retained. After them the largest number of files, of retained checkpoints and of objects of
Python must stay. Times are reported only.
"""

from __future__ import annotations

from pathlib import Path

from harness import Bench
from long_run import LongRun, Stretch

from holdfast.checkpoint.catalogue import Retention
from holdfast.runtime.execution.heap import spared

HOURS = 10
"""Of a played job, each as long as its retention."""
FIRST, LAST = slice(2, 6), slice(6, 10)
"""The hours that are compared. The log is cut about every two hours, so each span has the largest number of files."""
MORE_FILES, MORE_OBJECTS = 1.25, 1.02
OBJECTS = 1_000
"""So many more objects of Python are no sign of growth: caches of the libraries."""


def bench_ten_hours(bench: Bench, tmp_path: Path) -> None:
    """The driver, with stand-ins for two workers, and the default retention."""
    hour = bench.size("epochs per hour", smoke=60, full=36_000)
    run, last = played(bench, hour, tmp_path / "out.db", real=False)
    assert len(run.job.completed) <= 1.2 * hour
    bench.report(per=HOURS * hour, unit="epoch", check=last.epochs)


def bench_whole_job_for_long(bench: Bench, tmp_path: Path) -> None:
    """Driver, workers and target: the target has counted every row that was read."""
    hour = bench.size("epochs per hour", smoke=30, full=3_600)
    run, last = played(bench, hour, tmp_path / "out.db", real=True)
    read, counted = run.rows()
    assert read == counted >= HOURS * hour
    bench.report(per=HOURS * hour, unit="epoch", check=last.epochs)


def played(bench: Bench, hour: int, table: Path, *, real: bool) -> tuple[LongRun, Stretch]:
    """Play ten hours, note each, and compare the last with those before."""
    with spared(), bench.timed():
        run = LongRun(table, Retention(age_us=hour * 100_000), real=real)
        hours = [run.stretch(number * hour) for number in range(1, HOURS + 1)]
    for each in hours:
        bench.note(str(each))
    before, after = ([sum(each.files.values()) for each in hours[span]] for span in (FIRST, LAST))
    assert max(after) <= MORE_FILES * max(before), "files of the root grow with time"
    before, after = ([each.objects for each in hours[span]] for span in (FIRST, LAST))
    assert max(after) <= MORE_OBJECTS * max(before) + OBJECTS, "objects of Python grow with time"
    return run, hours[-1]
