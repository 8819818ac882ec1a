"""Why a job makes no progress: findings derived from its status, each with the next step.

The status is read from outside, from the log and the driver's last report; unknown values are not guessed. Causes come
before symptoms: first a lost driver, then missing workers, then obstacles of the epoch, then sinks, then sources.

Pure: a status in, findings out.
Source: API.md, `holdfast explain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.quantities import of_sources, plural
from holdfast.runtime.config.settings import MICROBATCH
from holdfast.runtime.job.live import Activity, Failures, Status, Waiting
from holdfast.runtime.job.status import (
    HOSTS_SEVERED,
    LOCAL_STATE_REFUSED,
    MERGE_REFUSED,
    RECORDS_AT_RISK,
    REQUEST_UNREADABLE,
    ROOT_REFUSED,
    SOURCE_REFUSED,
    SOURCE_UNLISTED,
    time_held,
)
from holdfast.runtime.job.waiting import EPOCHS_MEASURED, busy_with

SLOW_EPOCHS = 3
"""An epoch is slow if it is open for longer than this many intervals and longer than SLOW_MIN_MS."""
SLOW_MIN_MS = 2_000
SILENT_MIN_MS = 2_000
LAUNCH_SLOW_MS = LISTING_SLOW_MS = 10_000
_REPORTED = (
    HOSTS_SEVERED,
    LOCAL_STATE_REFUSED,
    MERGE_REFUSED,
    RECORDS_AT_RISK,
    REQUEST_UNREADABLE,
    ROOT_REFUSED,
    SOURCE_REFUSED,
    SOURCE_UNLISTED,
)
"""Codes of problems that are findings as they are."""
GOOD = frozenset({"progress", "finished", "stopped", "caught_up", "dead_letters", "draining"})
"""Codes of findings that are not problems."""


@dataclass(frozen=True)
class JobFinding:
    """One reason why a job is held up, or a normal state that looks like one."""

    code: str
    what: str
    next: str | None
    """The next step; None if no action is needed."""

    def as_json(self) -> dict[str, Any]:
        """Return the finding as JSON-able values."""
        return {"code": self.code, "what": self.what, "next": self.next, "problem": self.code not in GOOD}


def findings(shown: Status) -> list[JobFinding]:
    """Return at least one finding, causes first."""
    job, state, now = shown.job, shown.state, shown.activity or Activity()
    if state in ("finished", "stopped", "failed", "unreachable"):
        return [_ended(job, state, shown), *_event_time(shown)]
    job_findings = [
        *_repairs(shown),
        *_workers(shown, now),
        *_local(shown),
        *_epoch(shown, now),
        *_trigger(shown, now),
        *_delivery(shown, now),
        *_event_time(shown),
        *_busy(now),
        *_sources(shown, now),
        *_caught_up(shown, now),
        *_letters(shown),
    ]
    if all(each.code in GOOD for each in job_findings):
        checkpoint = shown.checkpoint
        last = "no checkpoint yet" if checkpoint is None else f"last checkpoint {_span(checkpoint.age_ms)} ago"
        job_findings.insert(0, JobFinding("progress", f"nothing holds the job up: it is {state}, {last}", None))
    return job_findings


def _repairs(shown: Status) -> Iterator[JobFinding]:
    for each in shown.repairing:
        yield JobFinding(
            "repairing",
            f"the job was rewound, and sink {each.sink} is not repaired yet: {each.error or 'repair is running'}",
            "make its target reachable; the repair is retried automatically, and nothing runs before it is complete",
        )


def _ended(job: str, state: str, shown: Status) -> JobFinding:
    reason = f": {shown.reason}" if shown.reason else ""
    problem = shown.problems[0] if shown.problems else None
    advice = None if problem is None else problem.next
    match state:
        case "finished":
            return JobFinding("finished", "the job has finished: all input is read and delivered", None)
        case "stopped":
            next_step = "run it again: it resumes from its last checkpoint"
            return JobFinding("stopped", f"the job is stopped{reason}", next_step)
        case "failed":
            next_step = advice or f"see holdfast events {job}"
            return JobFinding("failed", f"the run failed{reason}", next_step)
        case _:
            next_step = advice or "check whether its driver is alive; if not, run the job again"
            if problem is not None and problem.code == ROOT_REFUSED:
                return JobFinding(ROOT_REFUSED, problem.what, next_step)
            return JobFinding("driver_silent", f"the job's driver is silent{reason}", next_step)


def _workers(shown: Status, now: Activity) -> Iterator[JobFinding]:
    parallelism, waiting, launching = now.parallelism, now.waiting, now.launching
    last_failure = None if now.failures is None else now.failures.last
    missing = None if parallelism is None else parallelism - sum(each.subtask is not None for each in waiting)
    if missing and parallelism is not None:
        came = f"{parallelism - missing} of {parallelism} subtasks have a worker"
        if now.next_launch_ms:
            yield JobFinding(
                "backoff",
                f"{came}; after {_failures(now.failures)} the next worker starts in {_span(now.next_launch_ms)}",
                f"remove the cause: {last_failure or 'see holdfast events ' + shown.job}",
            )
        elif any(each.since_ms > LAUNCH_SLOW_MS for each in launching):
            longest = max(each.since_ms for each in launching)
            yield JobFinding(
                "no_slots",
                f"{came}; {len(launching)} requested a slot from Spark up to {_span(longest)} ago and have not started",
                "check whether Spark has free slots: its UI, or holdfast doctor; lower --parallelism or add executors",
            )
        else:
            last = f"; last failure: {last_failure}" if last_failure else ""
            yield JobFinding("workers_coming", f"{came}, {len(launching)} are starting{last}", "wait a few seconds")
    for each in waiting:
        if each.silent_ms > SILENT_MIN_MS:
            yield JobFinding(
                "worker_silent",
                f"worker {each.worker} ({_subtask(each)}) was last heard from {_span(each.silent_ms)} ago",
                "check whether its process and host are alive; a worker that stays silent is replaced",
            )
        elif each.subtask is not None and not each.ready and not missing:
            yield JobFinding(
                "restoring",
                f"worker {each.worker} ({_subtask(each)}) is not ready: it is restoring its state",
                f"wait; if this lasts, check that the root can be read: holdfast checkpoints verify {shown.job}",
            )


def _local(shown: Status) -> Iterator[JobFinding]:
    for problem in shown.problems:
        if problem.code in _REPORTED:
            yield JobFinding(problem.code, problem.what, problem.next)


def _epoch(shown: Status, now: Activity) -> Iterator[JobFinding]:
    every, open_ = now.checkpoint_every_ms or 0, now.open_epoch
    slow_ms = max(SLOW_MIN_MS, SLOW_EPOCHS * every)
    if open_ is not None and open_.open_ms > slow_ms:
        since = f"epoch {open_.epoch} has been open for {_span(open_.open_ms)}"
        if open_.missing and shown.mode == MICROBATCH:
            refusal = next((each.refused for each in shown.workers if each.refused), "its Spark job has not ended")
            yield JobFinding(
                "not_acked",
                f"{since}: {refusal}",
                "see the job's stages in Spark's UI, and the log of the executors that run its tasks",
            )
        elif open_.missing:
            workers = {each.subtask: each.worker for each in now.waiting}
            who = ", ".join(f"{subtask} (worker {workers.get(subtask, 'unknown')})" for subtask in open_.missing)
            refusal = next((f": {each.refused}" for each in shown.workers if each.refused), "")
            yield JobFinding(
                "not_acked",
                f"{since}: subtask {who} has not reported its part as durable{refusal}",
                "check these workers: their load, their log, and whether they can write to the root; "
                f"the epoch is given up after {_span(open_.deadline_ms)} and merged into the next",
            )
        else:
            yield JobFinding(
                "log_slow",
                f"{since}: every subtask is done; the driver is writing the manifest or the record",
                "check that the root can be written to; the driver retries until it knows the outcome",
            )
    elif now.appending and open_ is None and shown.state != "running":
        yield JobFinding(
            "log_slow",
            f"the record {now.appending} is being appended to the job log",
            "wait a few seconds; if this lasts, check that the root can be written to",
        )
    if now.epochs_given_up:
        yield JobFinding(
            "epochs_given_up",
            f"epochs of this run that missed their deadline: {now.epochs_given_up:,}; no rows were lost",
            "if the number grows: checkpoint less often (--checkpoint-every), or find out which subtask is late",
        )
    if now.older_output_left:
        yield JobFinding(
            "older_output",
            "output of the writers from before the change of parallelism is not delivered yet; no epoch commits before "
            "it is",
            "check the sinks; epochs resume as soon as their output is delivered",
        )


def _trigger(shown: Status, now: Activity) -> Iterator[JobFinding]:
    """In continuous mode workers read on while an epoch is written, so its duration delays nothing."""
    every, took = now.checkpoint_every_ms, now.epoch_ms
    if shown.mode == MICROBATCH and every is not None and took is not None and took > every:
        yield JobFinding(
            "trigger_short",
            f"each of the last {EPOCHS_MEASURED} epochs took at least {_span(took)}, longer than the checkpoint "
            f"interval of {_span(every)}, so epochs run back to back",
            f"run with --every {-(-took // 1000):.0f}s or more; or in continuous mode, if results are needed sooner",
        )


def _delivery(shown: Status, now: Activity) -> Iterator[JobFinding]:
    backlog = {each.sink: each for each in now.backlog}
    for sink in shown.sinks:
        left = backlog.get(sink.name)
        behind = ""
        if left is not None:
            rows, epochs = plural(left.rows, "row"), plural(left.epochs, "epoch")
            behind = f"; {rows} of {epochs} waiting, the oldest is {left.oldest_epoch}"
        if sink.error:
            what = f"sink {sink.name} cannot deliver: {sink.error}"
            reported = next((each.next for each in shown.problems if each.what == what), None)
            retried = "make its target reachable; delivery is retried automatically, and nothing is skipped"
            yield JobFinding("sink_error", f"{what}{behind}", reported or retried)
        elif left is not None and left.epochs > SLOW_EPOCHS:
            yield JobFinding(
                "sink_backlog",
                f"sink {sink.name} falls behind{behind}",
                "find out what slows its target down; or checkpoint less often, for fewer, larger transactions",
            )


def _event_time(shown: Status) -> Iterator[JobFinding]:
    for row, furthest in time_held(shown.sources):
        at = "has not begun" if row.watermark is None else f"is at {_moment(row.watermark)}"
        silent = "" if row.idle_ms is None else f" and has had no records for {_span(row.idle_ms)}"
        yield JobFinding(
            "event_time_held",
            f"event time of source {row.name} {at}: partition {row.shown} holds it back{silent}; another "
            f"partition is at {_moment(furthest)}",
            "windows close when this partition gets newer records. Without --once, a partition that gets none for "
            "idle_after (app.source(..., idle_after=)) holds nothing back while others have records",
        )


def _busy(now: Activity) -> Iterator[JobFinding]:
    for found in busy_with(reason for each in now.waiting for reason in each.held_by):
        yield JobFinding(*found)


def _sources(shown: Status, now: Activity) -> Iterator[JobFinding]:
    hold_reasons = {reason for each in now.waiting for reason in each.held_by}
    lag = [row.lag for row in shown.sources]
    if "delivery" in hold_reasons:
        yield JobFinding(
            "delivery_full", "sources are not read, because too much output waits for its sink", "check the sink first"
        )
    if "memory" in hold_reasons:
        yield JobFinding(
            "memory_full",
            "sources are not read until the next epoch is completed, or the local disk has room: the changes of "
            "unfinished epochs, or a state that cannot leave memory, fill state_memory",
            "see whether epochs complete and the workers' local disks have room; raise state_memory, or lower "
            "checkpoint_every",
        )
    if "last barrier" in hold_reasons:
        yield JobFinding(
            "ending",
            f"sources are no longer read: the run is ending ({now.ending or 'all input is read'})",
            "wait until its last epoch is delivered",
        )
    if now.ending == "finish" and any(lag):
        left = of_sources((row.lag, row.unit) for row in shown.sources if row.lag)
        yield JobFinding(
            "draining",
            f"the job finishes after reading the records that its sources had at the time of the request: up to {left}",
            f"wait; to skip them: holdfast stop {shown.job} --finish --drop-unread",
        )
    if now.listing_ms is not None and now.listing_ms > LISTING_SLOW_MS:
        yield JobFinding(
            "listing_slow",
            f"the driver has been waiting for the partitions of the sources for {_span(now.listing_ms)}; meanwhile new "
            "partitions are not read, and a run whose input is over, or that is to finish, waits",
            "check whether the sources answer",
        )
    if "channel" in hold_reasons:
        sources = {row.name for row in shown.sources}
        slow = ", ".join(row.name for row in shown.operators if row.name not in sources) or "later operators"
        yield JobFinding(
            "backpressure",
            "sources wait for room: a subtask takes records more slowly than they are read",
            f"check the load of the workers; the operators downstream are {slow}; raise --parallelism",
        )
    if "event time" in hold_reasons and any(lag):
        yield JobFinding(
            "event_time_ahead",
            "some subtasks wait for others that are behind them in event time, so that the state does not grow",
            "see which partitions are behind (holdfast status), and what slows their subtasks down",
        )
    if "throttle" in hold_reasons and any(lag):
        yield JobFinding(
            "throttled", "sources are read as fast as --max-records-per-second allows", "raise or remove the limit"
        )


def _caught_up(shown: Status, now: Activity) -> Iterator[JobFinding]:
    ended = {(each.source, each.partition) for each in now.ended}
    rows = [row for row in shown.sources if row.place not in ended]
    if shown.sources and not rows:
        yield JobFinding("caught_up", "every source is read to its end", None)
    elif rows and all(row.lag == 0 for row in rows):
        names = ", ".join(sorted({row.name for row in rows}))
        yield JobFinding("caught_up", f"all existing records are read; {names} has no new ones", None)


def _letters(shown: Status) -> Iterator[JobFinding]:
    letter_counts = {row.name: row.dlq for row in shown.operators if row.dlq}
    if letter_counts:
        where = ", ".join(f"{count:,} at {name}" for name, count in letter_counts.items())
        yield JobFinding(
            "dead_letters",
            f"{plural(sum(letter_counts.values()), 'dead letter')} since the last start: {where}",
            f"see holdfast dlq list {shown.job}; when the cause is removed, holdfast dlq redrive {shown.job}",
        )


def _moment(at_us: int) -> str:
    try:
        return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{at_us:,} us"


def _failures(failures: Failures | None) -> str:
    if failures is None:
        return "some failures"
    return f"{plural(failures.count, 'failure')} (the run gives up at {failures.max})"


def _subtask(each: Waiting) -> str:
    return "no subtask" if each.subtask is None else f"subtask {each.subtask}"


def _span(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "an unknown time"
    return f"{milliseconds:.0f} ms" if milliseconds < 1_000 else f"{milliseconds / 1_000:,.1f} s"
