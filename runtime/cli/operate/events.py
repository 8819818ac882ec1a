"""`holdfast events JOB`: events of a job, from its log: starts, restarts and their causes, savepoints, ends, and
since which checkpoint it reads partitions that were added to its sources.

Only the driver knows how long a recovery took, and only for its own run; otherwise the duration is unknown. For every
start the log does show when the first checkpoint after it was completed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from holdfast.checkpoint import joblog
from holdfast.model import EPOCHS_GIVEN_UP_MAX, NO_EPOCH, Generation
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, add_job, root_of
from holdfast.runtime.cli.operate.history import status_of
from holdfast.runtime.cli.operate.newest import add_last, advise_of_rest, newest_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.wire.clock import SystemClock

NEWEST_SHOWN = 40
PRUNED = 0
"""In place of the number of a record that was pruned: only its part in the fold is left."""
GAPS = (
    f"epoch numbers skip {EPOCHS_GIVEN_UP_MAX} at every start and rewind: epochs begun earlier and not completed may "
    "have used some of them, and no number is used twice"
)
STARTED = "started"
"""The cause of a start by a user begins with this; the causes that the master gives to recoveries do not."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "events",
        "List events of a job: starts, restarts with cause and duration, new partitions, savepoints, rewinds, stops, "
        "its end.",
        "holdfast events hot-auctions\nholdfast events hot-auctions --all --last 100",
    )
    add_job(parser)
    add_last(parser, NEWEST_SHOWN)
    parser.add_argument("--all", action="store_true", help="also list completed and expired checkpoints")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """List the events, oldest first. Exit status: 0."""
    stored = open_job(root_of(args), args.job)
    events = events_of(stored, checkpoints=args.all)
    newest_events = newest_of(events, args, NEWEST_SHOWN)
    if args.json:
        print_json(newest_events)
        return 0
    headers = ("at", "event", "generation", "epoch", "took", "first checkpoint after", "what")
    print(text.table(headers, [_row(event) for event in newest_events]))
    advise_of_rest(newest_events, events)
    if any(event["first_epoch"] and event["epoch"] for event in newest_events):
        advise(GAPS)
    return 0


def events_of(stored: Stored, *, checkpoints: bool) -> list[dict[str, Any]]:
    """Return the events in the log, oldest first.

    Returns:
        Per event: seq (None if its record may be pruned), at, event, generation, timeline, epoch, cause, host,
        savepoint, first_epoch (start: the number at which epochs resume), duration_ms (restart: the recovery;
        checkpoint: from barrier to record; end: the run; fork: the copying) and first_checkpoint_ms.
    """
    live = status_of(stored, SystemClock().wall_us()).restarts
    recovery_ms = {restart.generation: restart.recovery_ms for restart in live}
    events: list[dict[str, Any]] = []
    run_began: int | None = None
    start: dict[str, Any] | None = None
    for record in _reported(stored.repository.records(), stored.repository.forked):
        event = _unknown_event(record)
        visible = True
        match record.body:
            case joblog.JobCreated():
                event |= {"event": "created"}
            case joblog.Forked(origins=(*_, origin), duration_ms=took):
                event |= {"event": "forked", "epoch": origin.epoch, "duration_ms": took}
                event["cause"] = f"forked from epoch {origin.epoch} of {origin.job}"
            case joblog.GenerationStarted(base_epoch=base, cause=cause, host=host):
                by_hand = cause.startswith(STARTED)
                run_began = record.at if by_hand or run_began is None else run_began
                start = event
                event |= {"event": "started" if by_hand else "restarted", "epoch": base or None, "cause": cause}
                event |= {"host": host, "duration_ms": recovery_ms.get(record.generation)}
                event["first_epoch"] = record.body.first_epoch
            case joblog.Rewound(base_epoch=base, cause=cause, host=host):
                start = event
                event |= {"event": "rewound", "epoch": base, "cause": cause, "host": host}
                event |= {"duration_ms": recovery_ms.get(record.generation), "first_epoch": record.body.first_epoch}
            case joblog.CheckpointCompleted(epoch=epoch, follows=follows, duration_ms=took, savepoint=name):
                if start is not None and follows == (start["epoch"] or NO_EPOCH):  # else the first has expired
                    start["first_checkpoint_ms"] = _ms(start["at"], record.at)
                start = None
                event |= {"event": "checkpoint" if name is None else "savepoint", "epoch": epoch, "savepoint": name}
                event["duration_ms"] = took
                visible = checkpoints or name is not None
                if record.body.added:
                    new = {"event": "partitions", "epoch": epoch, "cause": _new(record.body)}
                    events.append(_unknown_event(record) | new)
            case joblog.SavepointNamed(epoch=epoch, name=name):
                event |= {"event": "savepoint", "epoch": epoch, "savepoint": name}
            case joblog.Stopped(epoch=epoch) | joblog.Finished(epoch=epoch):
                kind = "stopped" if isinstance(record.body, joblog.Stopped) else "finished"
                took_ms = None if run_began is None else _ms(run_began, record.at)
                event |= {"event": kind, "epoch": epoch, "duration_ms": took_ms}
                run_began = start = None
            case joblog.Expired(through=through):
                event |= {"event": "expired", "epoch": through}
                visible = checkpoints
            case joblog.LogStart():
                visible = False
        if visible:
            events.append(event)
    return events


def _unknown_event(record: joblog.Record) -> dict[str, Any]:
    """Return an event with the fields that every record has; the rest is None."""
    return {
        "seq": record.seq or None,
        "at": record.at,
        "event": "",
        "generation": record.generation,
        "timeline": record.timeline,
        "epoch": None,
        "cause": None,
        "host": None,
        "savepoint": None,
        "duration_ms": None,
        "first_checkpoint_ms": None,
        "first_epoch": None,
    }


def _new(done: joblog.CheckpointCompleted) -> str:
    """Name the partitions that a checkpoint has and the one before it lacks."""
    some = [f"{source} {', '.join(map(str, partitions))}" for source, partitions in sorted(done.added.items())]
    return f"new partitions: {'; '.join(some)}"


def _reported(records: Sequence[joblog.Record], forked: Callable[[], joblog.Record | None]) -> list[joblog.Record]:
    """Return the records, with pruned ones reconstructed from the `LogStart` in their place.

    Args:
        forked: Reads the first record of a fork.
    """
    if not records or not isinstance(records[0].body, joblog.LogStart):
        return list(records)
    job = records[0].body.job

    def record(at: int, generation: Generation, body: joblog.Body) -> joblog.Record:
        return joblog.Record(PRUNED, job.uuid, generation, job.timeline, "", at, body)

    created = record(job.created_at, Generation(0), joblog.JobCreated(job.name, job.key_groups))
    if (first := forked()) is not None:
        created = record(first.at, first.generation, first.body)
    pruned_records = [created]
    rewound = {rewind.first_epoch for rewind in job.rewinds}
    for s in job.starts:
        kind = joblog.Rewound if s.first_epoch in rewound else joblog.GenerationStarted
        body = kind(first_epoch=s.first_epoch, base_epoch=s.base_epoch, host=s.host, cause=s.cause)
        pruned_records.append(record(s.at, s.generation, body))
    for checkpoint in job.retained:
        names = job.names_of(checkpoint.body.epoch)
        pruned_records.append(
            record(checkpoint.at, checkpoint.generation, structs.replace(checkpoint.body, savepoint=None))
        )
        pruned_records += [
            record(checkpoint.at, checkpoint.generation, joblog.SavepointNamed(checkpoint.body.epoch, name))
            for name in names
        ]
    if job.ended is not None and job.ended_at is not None:
        pruned_records.append(record(job.ended_at, job.generation, job.ended))
    return [*sorted(pruned_records, key=lambda each: each.generation), *records]


def _row(event: dict[str, Any]) -> tuple[object, ...]:
    epoch = None if event["epoch"] is None else str(event["epoch"])
    return (
        text.moment(event["at"]),
        event["event"],
        str(event["generation"]),
        epoch,
        text.span(event["duration_ms"]),
        text.span(event["first_checkpoint_ms"]),
        _what(event),
    )


def _what(event: dict[str, Any]) -> object:
    """Return the cause; for all starts but the first, also the number at which epochs resume."""
    first = event["first_epoch"]
    if first and event["epoch"]:
        return f"{event['cause']}; epochs from {first} on"
    return event["savepoint"] or event["cause"]


def _ms(first_us: int, last_us: int) -> int:
    """Return the time between; never negative, although the clocks of two hosts may differ."""
    return max(0, (last_us - first_us) // 1000)
