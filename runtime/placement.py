"""Whether a worker can see what the job keeps on the driver's disk.

A path without a host means another folder on every machine. A worker elsewhere would find an empty root, read no
input, or write results where nobody looks, and nothing would fail. So a worker that registers from another machine
ends a run that uses such paths, before a subtask is given to anybody.

Pure: no clock, thread or I/O. Driven by runtime/master.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, Where
from holdfast.runtime import messages as m
from holdfast.runtime.master_state import Rules

if TYPE_CHECKING:
    from holdfast.runtime.steps import Plan  # loads Polars, which commands that only look at a job do without


def local_paths(plan: Plan, root: str) -> tuple[str, ...]:
    """Return what the job has on a disk of this machine, each as a few words with the path."""
    named: list[tuple[str, object]] = [("the root", root)]
    named += [(f"source {source.name!r}", getattr(source.source, "path", None)) for source in plan.sources]
    named += [(f"sink {sink.name!r}", getattr(sink.sink, "path", None)) for sink in plan.sinks]
    return tuple(f"{what} at {path}" for what, path in named if isinstance(path, str) and _is_local(path))


def refusal(rules: Rules, worker: m.Register) -> Mapping[str, Any] | None:
    """Return why the run must end now that this worker came up, or None."""
    if not rules.local_paths or rules.machine is None or (worker.host, worker.boot_id) == rules.machine:
        return None
    error = ConfigError(
        f"a worker came up on {worker.host}, the driver is on {rules.machine[0]}, and the job has paths that every "
        f"machine takes for its own: {'; '.join(rules.local_paths)}",
        not_done="no subtask was given to a worker; nothing was read, state and output are untouched",
        next_step="use s3:// URLs for the root and for logs; or, if all machines mount the same file system at these "
        "paths, say so: HOLDFAST_SHARED_PATHS=true (not for SQLite unless its locks work there)",
        where=Where(job=rules.name),
    )
    return error.as_json()


def _is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file://")
