"""What a run tells about itself: `live.json`, `holdfast status`, progress lines.

Unknown is null, never zero.

Pure: values in, JSON-able values out.
Source: API.md, JSON `status`; DESIGN section 13 (`live.json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import HoldfastError
from holdfast.model import LAST_US, NEVER_US
from holdfast.runtime import master, waiting
from holdfast.runtime.rewinding import no_way_back
from holdfast.runtime.vitals import FUNCTION, SOURCE

SCHEMA = 1
ENDED_NOW = "it was ended at once, without a last checkpoint"
LOCAL_STATE_REFUSED = "local_state_refused"
"""Code of the problem that a worker's disk takes nothing; nothing else stops for it."""
MERGE_REFUSED = "merge_refused"
REQUEST_UNREADABLE = "request_unreadable"
SINK_REFUSED = "sink_refused"
ROOT_REFUSED = "root_refused"
BEHIND_MIN_US = 1_000_000
"""A partition whose event time is less behind that of another one is not worth a word."""
STALE_AFTER_MS = 5_000
"""A `live.json` older than this says that its driver cannot be reached."""


def of_run(state: master.Master, root: str, mode: str, driver: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a job from inside its driver.

    Args:
        driver: See presence.myself.
    """
    job = state.log.job
    status = of_log(job, state.rules.name, root) if job is not None else _empty(state.rules.name, root)
    status["state"], status["reason"] = _phase(state)
    status["mode"] = mode
    status["driver"] = dict(driver)
    status["workers"] = [
        {
            "id": worker,
            "host": hosted.host,
            "pid": hosted.pid,
            "role": "worker",
            "subtasks": [] if hosted.subtask is None else [hosted.subtask],
            "rss_bytes": hosted.progress.rss_bytes or None,
            "lag_epochs": hosted.progress.lag_epochs,
            "how": hosted.how,
            "first_record_at": hosted.progress.first_record_at,
            "refused": hosted.progress.refused or None,
        }
        for worker, hosted in state.workers.items()
    ]
    status["sources"] = _sources(state)
    status["sinks"] = _sinks(state)
    status["operators"] = _operators(state)
    started_at = {start.generation: start.at for start in job.starts} if job is not None else {}
    status["restarts"] = [
        {
            "at": started_at.get(restart.generation),
            "cause": restart.cause,
            "generation": restart.generation,
            "rewind": restart.rewind,
            "recovery_ms": None if restart.ready_after is None else round(restart.ready_after * 1000),
            "logged_ms": round(restart.logged_after * 1000),
            "deployed_ms": None if restart.deployed_after is None else round(restart.deployed_after * 1000),
        }
        for restart in state.restarts
    ]
    if isinstance(state.phase, master.Running):
        status["late"] = late_of(state.phase.last)
    status["records_in"] = sum(hosted.progress.records_in for hosted in state.workers.values())
    status["epochs_given_up"] = state.given_up
    status |= waiting.of(state)
    if isinstance(state.phase, master.Over) and state.phase.error is not None:
        status["problems"] = [{"code": state.phase.outcome, **state.phase.error}]
    elif not isinstance(state.phase, master.Over):
        status["problems"] = [*_local_refusals(state), *_merge_refusals(state), *_sink_refusals(state)]
    return status


def late_of(manifest: Manifest | None) -> dict[str, Any] | None:
    """Return how many records were late as of a checkpoint, None if nothing can be, or it is not known."""
    audit = None if manifest is None else manifest.audited
    if audit is None or audit.late is UNSET:
        return None
    return {"since_epoch": audit.late.since, "operators": dict(sorted(audit.late.rows.items()))}


def of_log(job: joblog.Job, name: str, root: str) -> dict[str, Any]:
    """Return what the log alone tells about a job."""
    status = _empty(name, root)
    status["job_uuid"] = job.uuid
    status["generation"], status["timeline"] = job.generation, job.timeline
    status["key_groups"] = job.key_groups
    if job.ended is not None:
        status["state"] = "finished" if job.finished else "stopped"
    if job.completed:
        last = job.completed[-1]
        status["checkpoint"] = {
            "epoch": last.body.epoch,
            "at": last.at,
            "age_ms": None,
            "duration_ms": last.body.duration_ms,
            "bytes": last.body.bytes_total,
        }
        status["epochs"] = len(job.completed)
        status["rewind_horizon"] = _horizon(job)
    return status


def _horizon(job: joblog.Job) -> dict[str, Any] | None:
    """Return the oldest checkpoint that the job can go back to, outputs included."""
    possible = [each for each in job.completed if no_way_back(job, each.body.epoch) is None]
    return {"epoch": possible[0].body.epoch, "at": possible[0].at} if possible else None


def _empty(name: str, root: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "job": name, "root": root, "state": "unreachable", "reason": None, "mode": None,
        "generation": None, "timeline": None, "checkpoint": None, "driver": None, "workers": [], "sources": [],
        "sinks": [], "operators": [], "late": None, "restarts": [], "rewind_horizon": None, "problems": [],
    }  # fmt: skip


def _phase(state: master.Master) -> tuple[str, str | None]:
    match state.phase:
        case master.Over(outcome="finished"):
            return "finished", None
        case master.Over(outcome="stopped"):
            return "stopped", None
        case master.Over(outcome="ended"):
            return "stopped", ENDED_NOW
        case master.Over(outcome=outcome, error=error):
            return "failed", str((error or {}).get("what", outcome))
        case master.Running() if state.recover is None and state.recovering_since is None:
            ready = sum(hosted.ready for hosted in state.workers.values())
            if ready == state.rules.parallelism:
                return "running", None
            return "starting", f"{ready} of {state.rules.parallelism} subtasks are ready"
        case _ if state.recovering_since is not None:
            return "recovering", state.restarts[-1].cause if state.restarts else state.recover
        case _:
            return "starting", f"{len(state.workers)} of {state.rules.parallelism} workers have come up"


def _local_refusals(state: master.Master) -> list[dict[str, Any]]:
    """Return a problem for every worker whose local state takes nothing."""
    return [
        {
            "code": LOCAL_STATE_REFUSED,
            "what": f"worker {worker} on {hosted.host} has not been able to write its local state for "
            f"{told.for_ms / 1000:,.0f} s: {told.what}; it is {told.epochs} epochs ({told.bytes:,} bytes) behind. The "
            "job goes on, and its checkpoints hold everything; a worker that starts on that disk now may fail",
            "next": f"make room on the disk of {hosted.host}, or see why it refuses; the worker tries again by itself. "
            "To use another disk: stop the job, set TMPDIR on the executors to a folder there, run it again",
        }
        for worker, hosted in state.workers.items()
        if (told := hosted.progress.local_refused) is not None
    ]


def _merge_refusals(state: master.Master) -> list[dict[str, Any]]:
    """Return a problem for every worker that cannot merge what it has stored."""
    return [
        {
            "code": MERGE_REFUSED,
            "what": f"worker {worker} on {hosted.host} cannot merge its stored segments: "
            f"{hosted.progress.merge_refused}. The job goes on, and its checkpoints hold everything; until then they "
            "name ever more segments, and a restore takes longer",
            "next": "see that the worker can read and write the root; it tries again by itself",
        }
        for worker, hosted in state.workers.items()
        if hosted.progress.merge_refused
    ]


def _sink_refusals(state: master.Master) -> list[dict[str, Any]]:
    """Return a problem for every sink whose last attempt failed."""
    told = {sink: (what, hosted.progress) for hosted in state.workers.values()
            for sink, what in hosted.progress.sink_errors.items()}  # fmt: skip
    return [
        {"code": SINK_REFUSED, "what": f"sink {sink} cannot deliver: {what}", "next": progress.sink_advice.get(sink)}
        for sink, (what, progress) in sorted(told.items())
    ]


def root_refused(error: HoldfastError) -> dict[str, Any]:
    """Return the problem of a driver whose root does not take what it has to store."""
    what = f"the root does not take what the driver stores: {error.what}"
    return {"code": ROOT_REFUSED, "what": what, "next": error.next_step}


def unreadable_requests(root: str, unreadable: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a problem for every request, or answer, that the store refuses to read or write."""
    return [
        {
            "code": REQUEST_UNREADABLE,
            "what": f"the driver cannot read or answer a request: {why}. The request is not carried out; others are",
            "next": f"give the driver's user access to {root}/{path}, or remove it; the driver tries again by itself",
        }
        for path, why in sorted(unreadable.items())
    ]


def _sources(state: master.Master) -> list[dict[str, Any]]:
    ends = {(at.source, at.partition): at.offset for h in state.workers.values() for at in h.progress.ends}
    times = {(at.source, at.partition): at for h in state.workers.values() for at in h.progress.times}
    rows = []
    for hosted in state.workers.values():
        for at in hosted.progress.positions:
            time = times.get((at.source, at.partition))
            end = ends.get((at.source, at.partition))
            rows.append(
                {
                    "name": at.source,
                    "partition": at.partition,
                    "offset": at.offset,
                    "end_offset": end,
                    "lag": None if end is None else max(0, end - at.offset),
                    "oldest_offset": None,
                    "watermark": at.watermark,
                    "idle_ms": None if time is None else time.silent_ms,
                    "holds_time": None if time is None else time.holds,
                }
            )
    return sorted(rows, key=lambda row: (str(row["name"]), row["partition"]))


def time_held(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Return of every source whose event time one partition holds back that row of `sources`, and how far others are.

    A partition that still has something to read holds nothing up: it is read first. After a run which partitions held
    time is not known; those without event time did not.
    """
    sources: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        sources.setdefault(row["name"], []).append(row)
    for each in sources.values():
        times = [row["watermark"] for row in each if row.get("watermark") is not None]
        holding = [row for row in each if _may_hold_time(row)]
        if not times or not holding:
            continue
        lowest = min(holding, key=lambda row: NEVER_US if row["watermark"] is None else row["watermark"])
        behind_us = LAST_US if lowest["watermark"] is None else max(times) - lowest["watermark"]
        if behind_us >= BEHIND_MIN_US and not lowest["lag"]:
            yield lowest, max(times)


def _may_hold_time(row: Mapping[str, Any]) -> bool:
    told = row.get("holds_time")
    return row.get("watermark") is not None if told is None else bool(told)


def _sinks(state: master.Master) -> list[dict[str, Any]]:
    delivered: dict[str, int] = {}
    for writer, tag in state.confirmed.items():
        delivered[writer.sink] = max(delivered.get(writer.sink, 0), tag.epoch)
    staged: dict[str, int] = {}
    if isinstance(state.phase, master.Running) and state.phase.last is not None:
        for item in state.phase.last.pending:
            staged[item.writer.sink] = max(staged.get(item.writer.sink, 0), item.tag.epoch)
    errors = {sink: text for h in state.workers.values() for sink, text in h.progress.sink_errors.items()}
    names = sorted({*delivered, *staged, *errors})
    return [
        {
            "name": name,
            "staged_epoch": staged.get(name),
            "delivered_epoch": delivered.get(name),
            "error": errors.get(name),
        }
        for name in names
    ]


def _operators(state: master.Master) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for hosted in state.workers.values():
        for each in hosted.progress.operators:
            row = rows.setdefault(
                each.name,
                {
                    "name": each.name, "rows_in": 0, "rows_out": 0, "late": None, "dropped": None, "dlq": None,
                    "state_bytes": None, "blocked_by": None,
                },
            )  # fmt: skip
            row["rows_in"] += each.rows_in
            row["rows_out"] += each.rows_out
            if each.dropped is not None:
                row["dropped"] = (row["dropped"] or 0) + each.dropped
            if each.dlq is not None:
                row["dlq"] = (row["dlq"] or 0) + each.dlq
            if each.late is not None:
                row["late"] = (row["late"] or 0) + each.late
            if FUNCTION + each.name in hosted.progress.held_by:
                row["blocked_by"] = "its Python function"
            if SOURCE + each.name in hosted.progress.held_by:
                row["blocked_by"] = "a read"
    return [rows[name] for name in sorted(rows)]
