"""Whether a worker can see the job's files on the driver's disk.

A path without a host names a different folder on every machine. A worker elsewhere would find an empty root, read no
input, or write results that no reader finds, and nothing would fail. So a worker that registers from another machine
ends a run that uses such paths, before any subtask is assigned.

Pure: no clock, thread or I/O. Driven by runtime/driver/master.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, ErrorReport, Where
from holdfast.runtime.driver.state import Rules
from holdfast.runtime.wire import messages as m
from holdfast.traits import local

if TYPE_CHECKING:
    from holdfast.runtime.plan.model import Plan  # loads Polars, which commands that only inspect a job do not need


def local_paths(plan: Plan, root: str) -> tuple[str, ...]:
    """Return the job's files on a disk of this machine, each as a few words with the path."""
    from holdfast.runtime.plan.topic import outputs_of  # imports Polars, which `status` does not need

    named = [("the root", path) for path in local(root)]
    named += [(f"source {spec.name!r}", path) for spec in plan.sources for path in spec.source.traits.local_paths]
    named += [(f"sink {spec.name!r}", path) for spec in outputs_of(plan) for path in spec.sink.traits.local_paths]
    return tuple(f"{what} at {path}" for what, path in named if not path.startswith("memory://"))


def refusal(rules: Rules, worker: m.Register) -> ErrorReport | None:
    """Return why the run must end because this worker registered, or None."""
    return elsewhere(rules.name, rules.machine, rules.local_paths, (worker.host, worker.boot_id))


def elsewhere(
    job: str, driver: tuple[str, str] | None, paths: tuple[str, ...], here: tuple[str, str]
) -> ErrorReport | None:
    """Return why a job with these local paths must not run here, or None.

    Args:
        driver: Host name and boot id of the driver's machine.
        here: Those of a worker's, or a task's.
    """
    if not paths or driver is None or here == driver:
        return None
    error = ConfigError(
        f"a worker started on {here[0]}, the driver is on {driver[0]}, and the job uses paths that are "
        f"local to each machine: {'; '.join(paths)}",
        not_done="nothing was read there; state and output are untouched",
        next_step="use s3:// URLs for the root and for logs; or, if all machines mount the same file system at these "
        "paths, set HOLDFAST_SHARED_PATHS=true (not for SQLite unless its locks work there)",
        where=Where(job=job),
    )
    return error.report()
