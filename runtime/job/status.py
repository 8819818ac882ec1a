"""Makes the status of a job, from its log and from the state of a run's master.

Every report takes it from here: `live.json`, `holdfast status`, `holdfast explain`, progress lines. Unknown is None,
never zero.

Pure: values in, values out.
Source: API.md, JSON `status`; DESIGN section 13 (`live.json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import HoldfastError
from holdfast.model import LAST_US, NEVER_US, DriverProcess
from holdfast.quantities import BYTES, plural
from holdfast.runtime.driver import failover
from holdfast.runtime.driver.requests import first_way_back
from holdfast.runtime.driver.state import Interrupted, Master, Over, Running
from holdfast.runtime.job import standbys, waiting
from holdfast.runtime.job.live import (
    Checkpoint,
    Horizon,
    LateRecords,
    OperatorRow,
    Problem,
    RestartRow,
    SinkRow,
    SourceRow,
    State,
    Status,
    WorkerRow,
)
from holdfast.runtime.plan.loss import Risk, described
from holdfast.runtime.plan.source import Kept
from holdfast.runtime.wire.vitals import FUNCTION, SOURCE

ENDED_NOW = "it was ended immediately, without a last checkpoint"
HOSTS_SEVERED = "hosts_severed"
"""Code of the problem that two hosts reach the driver but not each other."""
LOCAL_STATE_REFUSED = "local_state_refused"
"""Code of the problem that a worker's disk refuses writes; the job continues anyway."""
MERGE_REFUSED = "merge_refused"
RECORDS_AT_RISK = "records_at_risk"
"""Code of the problem that a source removes records before the job has read them."""
REQUEST_UNREADABLE = "request_unreadable"
SINK_REFUSED = "sink_refused"
ROOT_REFUSED = "root_refused"
SOURCE_REFUSED = "source_refused"
SOURCE_UNLISTED = "source_unlisted"
KEEP_LONGER = (
    "let the source keep records for longer (retention.ms and retention.bytes of a topic), or the job read faster: "
    "holdfast explain JOB names the obstacle, and --parallelism more workers"
)
BEHIND_MIN_US = 1_000_000
"""A partition is reported as holding back event time only if another partition is ahead by at least this much."""
STALE_AFTER_MS = 5_000
"""A `live.json` older than this means that its driver is unreachable."""


def of_run(state: Master, root: str, mode: str, driver: DriverProcess | None) -> Status:
    """Return the status of a job from inside its driver."""
    job, deployment = state.log.job, state.deployed
    status = of_log(job, state.rules.name, root) if job is not None else _empty(state.rules.name, root)
    shown, reason = _phase(state)
    return replace(
        status,
        state=shown,
        reason=reason,
        mode=mode,
        driver=driver,
        workers=_workers(state),
        sources=_sources(state),
        sinks=_sinks(state),
        operators=_operators(state),
        late=None if deployment is None else late_of(deployment.last),
        restarts=_restarts(state),
        problems=_problems(state),
        activity=waiting.of(state),
        changelog=None if state.rules.changelog is None else dict(state.rules.changelog),
    )


def _workers(state: Master) -> tuple[WorkerRow, ...]:
    return tuple(
        WorkerRow(
            id=worker,
            host=worker_state.host,
            pid=worker_state.pid,
            role="standby" if standbys.is_standby(worker_state) else "worker",
            subtasks=() if worker_state.subtask is None else (worker_state.subtask,),
            follows=standbys.follows(worker_state),
            rss_bytes=worker_state.heartbeat.progress.rss_bytes or None,
            state_bytes=worker_state.heartbeat.progress.state_bytes or None,
            lag_epochs=standbys.lag_epochs(state, worker_state),
            lag_bytes=standbys.lag_bytes(worker_state),
            how=worker_state.how,
            first_record_at=worker_state.heartbeat.progress.first_record_at,
            refused=worker_state.heartbeat.progress.refused or None,
            restored_bytes=None
            if worker_state.heartbeat.progress.restored is None
            else worker_state.heartbeat.progress.restored[0],
            restore_bytes=None
            if worker_state.heartbeat.progress.restored is None
            else worker_state.heartbeat.progress.restored[1],
        )
        for worker, worker_state in state.workers.items()
    )


def _restarts(state: Master) -> tuple[RestartRow, ...]:
    job = state.log.job
    started_at = {start.generation: start.at for start in job.starts} if job is not None else {}
    return tuple(
        RestartRow(
            at=started_at.get(restart.generation),
            cause=restart.cause,
            generation=restart.generation,
            rewind=restart.rewind,
            recovery_ms=_ms(restart.ready_after),
            logged_ms=_ms(restart.logged_after),
            deployed_ms=_ms(restart.deployed_after),
        )
        for restart in state.restarts
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _problems(state: Master) -> tuple[Problem, ...]:
    if not isinstance(state.phase, Over):
        refusals = (*_local_refusals(state), *_merge_refusals(state), *_sink_refusals(state))
        held = (*_busy(state), *_unlisted(state), *_severed(state), *standbys.problems(state))
        return (*refusals, *_source_refusals(state), *held)
    if state.phase.error is None:
        return ()
    return (Problem(code=state.phase.outcome, **state.phase.error.as_json()),)


def _busy(state: Master) -> list[Problem]:
    """Return a problem for every function or read with which a worker has been busy for seconds."""
    marks = (reason for hosted in state.workers.values() for reason in hosted.heartbeat.progress.held_by)
    return [Problem(code=code, what=what, next=next_step) for code, what, next_step in waiting.busy_with(marks)]


def late_of(manifest: Manifest | None) -> LateRecords | None:
    """Return how many records were late as of a checkpoint; None if none can be, or the number is unknown."""
    audit = None if manifest is None else manifest.audited
    if audit is None or audit.late is UNSET:
        return None
    return LateRecords(audit.late.since, dict(sorted(audit.late.rows.items())))


def of_log(job: joblog.Job, name: str, root: str) -> Status:
    """Return the part of a job's status that follows from the log alone."""
    status = replace(
        _empty(name, root),
        generation=job.generation,
        timeline=job.timeline,
        job_uuid=job.uuid,
        key_groups=job.key_groups,
    )
    if job.ended is not None:
        status = replace(status, state="finished" if job.finished else "stopped")
    if job.completed:
        last = job.completed[-1]
        checkpoint = Checkpoint(last.body.epoch, last.at, None, last.body.duration_ms, last.body.bytes_total)
        status = replace(status, checkpoint=checkpoint, epochs=len(job.completed), rewind_horizon=_horizon(job))
    return status


def _horizon(job: joblog.Job) -> Horizon | None:
    """Return the oldest checkpoint that the job can be rewound to, outputs included."""
    if (first := first_way_back(job)) is None:
        return None
    oldest = job.completed[first]
    return Horizon(oldest.body.epoch, oldest.at)


def _empty(name: str, root: str) -> Status:
    return Status(
        job=name,
        root=root,
        state="unreachable",
        reason=None,
        mode=None,
        generation=None,
        timeline=None,
        workers=(),
        sources=(),
        sinks=(),
        operators=(),
        restarts=(),
        problems=(),
    )


def _phase(state: Master) -> tuple[State, str | None]:
    match state.phase:
        case Over(outcome="finished"):
            return "finished", None
        case Over(outcome="stopped"):
            return "stopped", None
        case Over(outcome="ended"):
            return "stopped", ENDED_NOW
        case Over(outcome=outcome, error=error):
            return "failed", outcome if error is None else error.what
        case Running() if state.recovering_since is None:
            ready = sum(hosted.ready for hosted in state.workers.values())
            if ready == state.rules.parallelism:
                return "running", None
            return "starting", f"{ready} of {state.rules.parallelism} subtasks are ready"
        case phase if state.recovering_since is not None:
            cause = phase.cause if isinstance(phase, Interrupted) else None
            return "recovering", state.restarts[-1].cause if state.restarts else cause
        case _:
            return "starting", f"{len(state.workers)} of {state.rules.parallelism} workers have started"


def _severed(state: Master) -> list[Problem]:
    """Return a problem for every two hosts that keep the job from going on because they exchange no data."""
    return [
        Problem(
            code=HOSTS_SEVERED,
            what=f"workers on {one[0]} ({one[1]}) and {other[0]} ({other[1]}) exchange no data, although both reach "
            "the driver; no epoch has been completed since",
            not_done="state and output stay as of the last checkpoint; the job is restarted until data arrives",
            next="let the two hosts reach each other on all ports, in both directions; or give Spark a free slot on "
            "a third host, to which the job then moves",
        )
        for one, other in failover.in_the_way(state)
    ]


def _local_refusals(state: Master) -> list[Problem]:
    """Return a problem for every worker that cannot write its local state."""
    return [
        Problem(
            code=LOCAL_STATE_REFUSED,
            what=f"worker {worker} on {worker_state.host} has not been able to write its local state for "
            f"{refusal.for_ms / 1000:,.0f} s: {refusal.what}; it is {plural(refusal.epochs, 'epoch')} "
            f"({plural(refusal.bytes, 'byte')}) behind. The job continues, and its checkpoints hold everything; a "
            "worker that starts on that disk now may fail",
            next=f"free space on the disk of {worker_state.host}, or find out why it refuses writes; the worker "
            "retries. "
            "To use another disk: stop the job, set TMPDIR on the executors to a folder there, run it again",
        )
        for worker, worker_state in state.workers.items()
        if (refusal := worker_state.heartbeat.progress.local_refused) is not None
    ]


def _merge_refusals(state: Master) -> list[Problem]:
    """Return a problem for every worker that cannot merge its stored segments."""
    return [
        Problem(
            code=MERGE_REFUSED,
            what=f"worker {worker} on {worker_state.host} cannot merge its stored segments: "
            f"{worker_state.heartbeat.progress.merge_refused}. The job continues, and its checkpoints hold everything; "
            "until a merge succeeds, they name ever more segments, and a restore takes longer",
            next="make sure that the worker can read and write the root; it retries",
        )
        for worker, worker_state in state.workers.items()
        if worker_state.heartbeat.progress.merge_refused
    ]


def _sink_refusals(state: Master) -> list[Problem]:
    """Return a problem for every sink whose last attempt failed."""
    errors = {
        sink: (what, hosted.heartbeat.progress)
        for hosted in state.workers.values()
        for sink, what in hosted.heartbeat.progress.sink_errors.items()
    }
    return [
        Problem(code=SINK_REFUSED, what=f"sink {sink} cannot deliver: {what}", next=progress.sink_advice.get(sink))
        for sink, (what, progress) in sorted(errors.items())
    ]


def _source_refusals(state: Master) -> list[Problem]:
    """Return a problem for every source that a worker cannot read."""
    errors = {
        source: (what, hosted.heartbeat.progress.source_advice.get(source))
        for hosted in state.workers.values()
        for source, what in hosted.heartbeat.progress.source_errors.items()
    }
    return [
        Problem(
            code=SOURCE_REFUSED,
            source=source,
            what=f"source {source} cannot be read: {what}. Reading waits, and no record is skipped",
            next=advice,
        )
        for source, (what, advice) in sorted(errors.items())
    ]


def _unlisted(state: Master) -> list[Problem]:
    """Return a problem if the sources could not be listed at the last attempt."""
    if (error := state.list_error) is None:
        return []
    what = f"the partitions of the sources cannot be listed: {error.what}. Until they are, new partitions are not read"
    what += ", and a run whose input is over, or that is to finish, waits"
    return [
        Problem(
            code=SOURCE_UNLISTED,
            what=what,
            next=f"make the source reachable; the driver retries. {error.next[:1].upper()}{error.next[1:]}",
        )
    ]


def root_refused(error: HoldfastError) -> Problem:
    """Return the problem of a driver whose root refuses its writes."""
    what = f"the root refuses objects of the driver: {error.what}"
    return Problem(code=ROOT_REFUSED, what=what, next=error.next_step)


def refused(error: HoldfastError) -> Problem:
    """Return the problem that is this error."""
    return Problem(code=error.kind, what=error.what, next=error.next_step)


def records_at_risk(risks: Mapping[tuple[str, int], Risk], within_s: float) -> list[Problem]:
    """Return a problem for every partition with records that its source removes before the job has read them."""
    return [
        Problem(
            code=RECORDS_AT_RISK,
            source=source,
            partition=partition,
            offset=risk.position,
            what=described(source, partition, risk, f"{within_s:,.0f} s"),
            next=KEEP_LONGER,
        )
        for (source, partition), risk in sorted(risks.items())
    ]


def with_oldest(shown: Status, kept: Mapping[tuple[str, int], Kept]) -> Status:
    """Add the lowest offsets that can still be read, and the names of partitions, as far as known."""
    rows = (
        replace(row, oldest_offset=found.first, called=found.called) if (found := kept.get(row.place)) else row
        for row in shown.sources
    )
    return replace(shown, sources=tuple(rows))


def unreadable_requests(root: str, unreadable: Mapping[str, str]) -> list[Problem]:
    """Return a problem for every request, or answer, that the store refuses to read or write."""
    return [
        Problem(
            code=REQUEST_UNREADABLE,
            what=f"the driver cannot read or answer a request: {why}. The request is not carried out; others are",
            next=f"give the driver's user access to {root}/{path}, or remove it; the driver retries",
        )
        for path, why in sorted(unreadable.items())
    ]


def _sources(state: Master) -> tuple[SourceRow, ...]:
    ends = {(at.source, at.partition): at.offset for h in state.workers.values() for at in h.heartbeat.progress.ends}
    times = {(at.source, at.partition): at for h in state.workers.values() for at in h.heartbeat.progress.times}

    def unit(source: str) -> str:
        return BYTES if source in state.rules.in_bytes else "records"

    rows = []
    for hosted in state.workers.values():
        for at in hosted.heartbeat.progress.positions:
            time = times.get((at.source, at.partition))
            end = ends.get((at.source, at.partition))
            rows.append(
                SourceRow(
                    name=at.source,
                    partition=at.partition,
                    offset=at.offset,
                    end_offset=end,
                    lag=None if end is None else max(0, end - max(0, at.offset)),
                    watermark=at.watermark,
                    idle_ms=None if time is None else time.silent_ms,
                    holds_time=None if time is None else time.holds,
                    lost=at.lost,
                    unit=unit(at.source),
                )
            )
    reported = {row.place for row in rows}
    waiting = [at for at in state.discovered if at.offset >= 0 and (at.source, at.partition) not in reported]
    rows += [SourceRow(at.source, at.partition, at.offset, lost=0, unit=unit(at.source)) for at in waiting]
    return tuple(sorted(rows, key=lambda row: row.place))


def time_held(rows: Iterable[SourceRow]) -> Iterator[tuple[SourceRow, int]]:
    """Yield, for every source whose event time one partition holds back, that partition's row and the newest time.

    A partition that still has records to read does not count: it is read first. After a run it is unknown which
    partitions held back event time; those without event time did not.
    """
    sources: dict[str, list[SourceRow]] = {}
    for row in rows:
        sources.setdefault(row.name, []).append(row)
    for each in sources.values():
        times = [row.watermark for row in each if row.watermark is not None]
        holding = [row for row in each if _may_hold_time(row)]
        if not times or not holding:
            continue
        lowest = min(holding, key=lambda row: NEVER_US if row.watermark is None else row.watermark)
        behind_us = LAST_US if lowest.watermark is None else max(times) - lowest.watermark
        if behind_us >= BEHIND_MIN_US and not lowest.lag:
            yield lowest, max(times)


def _may_hold_time(row: SourceRow) -> bool:
    return row.watermark is not None if row.holds_time is None else row.holds_time


def _sinks(state: Master) -> tuple[SinkRow, ...]:
    delivered_epochs: dict[str, int] = {}
    for writer, tag in state.confirmed.items():
        delivered_epochs[writer.sink] = max(delivered_epochs.get(writer.sink, 0), tag.epoch)
    staged_epochs: dict[str, int] = {}
    if state.deployed is not None and state.deployed.last is not None:
        for item in state.deployed.last.pending:
            staged_epochs[item.writer.sink] = max(staged_epochs.get(item.writer.sink, 0), item.tag.epoch)
    errors = {sink: text for h in state.workers.values() for sink, text in h.heartbeat.progress.sink_errors.items()}
    names = sorted({*delivered_epochs, *staged_epochs, *errors})
    return tuple(SinkRow(name, staged_epochs.get(name), delivered_epochs.get(name), errors.get(name)) for name in names)


def _operators(state: Master) -> tuple[OperatorRow, ...]:
    rows: dict[str, OperatorRow] = {}
    for worker_state in state.workers.values():
        for each in worker_state.heartbeat.progress.operators:
            row = rows.get(each.name, OperatorRow(each.name))
            rows[each.name] = OperatorRow(
                name=each.name,
                rows_in=_sum(row.rows_in, each.rows_in),
                rows_out=_sum(row.rows_out, each.rows_out),
                late=_sum(row.late, each.late),
                dropped=_sum(row.dropped, each.dropped),
                dlq=_sum(row.dlq, each.dlq),
                blocked_by=_blocked_by(each.name, worker_state.heartbeat.progress.held_by) or row.blocked_by,
            )
    return tuple(rows[name] for name in sorted(rows))


def _sum(known: int | None, more: int | None) -> int | None:
    return known if more is None else (known or 0) + more


def _blocked_by(operator: str, held_by: Iterable[str]) -> str | None:
    if SOURCE + operator in held_by:
        return "a read"
    return "its Python function" if FUNCTION + operator in held_by else None
