"""`holdfast status JOB`: how a job is doing, from its log and its driver's last report."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection
from typing import Any

from holdfast.quantities import BYTES
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, root_of
from holdfast.runtime.cli.operate.history import status_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.job.live import Checkpoint, LateRecords, Number, SourceRow, Status, WorkerRow
from holdfast.runtime.job.status import time_held
from holdfast.runtime.wire.clock import SystemClock

WATCH_EVERY_S = 1.0
FORMATS = ("text", "json", "openmetrics")
ENDED = ("stopped", "finished", "failed")
RESTARTS_SHOWN_MAX = 5
_CLEAR = "\x1b[H\x1b[2J"
_Table = tuple[str, tuple[str, ...], list[tuple[object, ...]]]
"""Title, headers and rows."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "status",
        "Show how a job is doing: state, last checkpoint, workers, sources, sinks, recoveries.",
        "holdfast status hot-auctions\nholdfast status hot-auctions --json\nholdfast status hot-auctions --watch\n"
        "holdfast status hot-auctions --format openmetrics",
    )
    parser.add_argument("job", metavar="JOB", help="name of the job under the root")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="json: as --json; openmetrics: metrics for Prometheus, as the port of setting metrics_port serves them",
    )
    parser.add_argument("--watch", action="store_true", help="show it again every second, until it has ended or Ctrl-C")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Show the status once, or repeatedly until the job has ended. Exit status: 0, whatever the state."""
    stored_job = open_job(root_of(args), args.job)
    if args.format == "openmetrics":
        return _metrics(stored_job)
    args.json = args.json or args.format == "json"
    while True:
        status = status_of(stored_job, SystemClock().wall_us())
        if args.json:
            print_json(status.as_json())
        else:
            before = _CLEAR if args.watch and sys.stdout.isatty() else ""
            print(before + render(status), flush=True)
        if not args.watch:
            break
        if status.state in ENDED:
            advise(f"{args.job} has ended ({status.state}): nothing changes until it is run again")
            break
        time.sleep(WATCH_EVERY_S)
    if not args.json:
        for problem in status.problems:
            advise(f"\n{problem.what}.\nNext: {problem.next or 'see ' + _log_of(stored_job)}")
    return 0


def _metrics(stored: Stored) -> int:
    from holdfast.runtime.job.openmetrics import check_installed, exposition

    check_installed()
    print(exposition(status_of(stored, SystemClock().wall_us()).as_json()).decode(), end="")
    return 0


def render(shown: Status) -> str:
    """Return the status as text, without sections about which nothing is known."""
    reason = f" ({shown.reason})" if shown.reason else ""
    lines = [
        f"{shown.job}: {shown.state}{reason}",
        f"  root        {shown.root}",
        f"  generation  {text.count(shown.generation)}, timeline {text.count(shown.timeline)}",
        f"  checkpoint  {_checkpoint(shown.checkpoint)}",
    ]
    if late := shown.late:
        since = f"epoch {late.since_epoch}" if late.since_epoch else "the job began"
        rows = text.plural(sum(late.operators.values()), "record")
        lines.append(f"  late        {rows} since {since}{_by_operator(late)}")
    if driver := shown.driver:
        lines.append(f"  driver      pid {driver.pid} on {driver.host}, seen {text.span(driver.seen_ms)} ago")
    for title, table in _tables(shown):
        lines += ["", title, table]
    return "\n".join(lines)


def _came_by(worker: WorkerRow) -> str | None:
    """Return how the worker came by its state, or how much of it is restored."""
    if worker.restore_bytes is None:
        return worker.how
    return f"{text.size(worker.restored_bytes)} of {text.size(worker.restore_bytes)} restored"


def _checkpoint(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return "none yet"
    return (
        f"epoch {checkpoint.epoch}, {text.span(checkpoint.age_ms)} ago, "
        f"took {text.span(checkpoint.duration_ms)}, {text.size(checkpoint.bytes)} of state"
    )


def _tables(shown: Status) -> list[tuple[str, str]]:
    restarts = shown.restarts[-RESTARTS_SHOWN_MAX:]
    left_out = len(shown.restarts) - len(restarts)
    recoveries = "recoveries" + (f" ({left_out} older ones left out)" if left_out else "")
    tables: list[_Table] = [
        (
            "workers",
            ("id", "host", "pid", "role", "subtasks", "memory", "lag", "came by"),
            [
                (
                    w.id,
                    w.host,
                    str(w.pid),
                    w.role,
                    " ".join(map(str, w.subtasks or w.follows)),
                    text.size(w.rss_bytes),
                    w.lag_epochs,
                    _came_by(w),
                )
                for w in shown.workers
            ],
        ),
        _sources(shown),
        (
            "sinks",
            ("name", "staged", "delivered", "error"),
            [(s.name, s.staged_epoch, s.delivered_epoch, s.error) for s in shown.sinks],
        ),
        (
            "operators",
            ("name", "rows in", "rows out", "late", "dropped", "dlq", "state"),
            [
                (o.name, o.rows_in, o.rows_out, o.late, o.dropped, o.dlq, text.size(o.state_bytes))
                for o in shown.operators
            ],
        ),
        (
            recoveries,
            ("at", "generation", "took", "cause"),
            [(_moment(r.at), r.generation, text.span(r.recovery_ms), r.cause) for r in restarts],
        ),
    ]
    return [(title, text.table(headers, rows, indent=2)) for title, headers, rows in tables if rows]


def _sources(shown: Status) -> _Table:
    time_holders = {row.place for row, _ in time_held(shown.sources)}
    has_event_time = any(row.watermark is not None for row in shown.sources)
    has_losses = any(row.lost for row in shown.sources)
    headers = ("name", "partition", "offset", "end", "lag")
    rows = [
        (
            *(s.name, s.partition if s.called is None else s.shown),
            *(_amount(s, n) for n in (_offset(s.offset), s.end_offset, s.lag)),
            *((s.lost,) if has_losses else ()),
            *((_time(s, time_holders),) if has_event_time else ()),
        )
        for s in shown.sources
    ]
    return "sources", (*headers, *(("lost",) if has_losses else ()), *(("event time",) if has_event_time else ())), rows


def _moment(at: Number | None) -> str:
    return text.moment(None if at is None else int(at))


def _offset(offset: int | None) -> int | None:
    return None if offset is None or offset < 0 else offset


def _amount(row: SourceRow, number: int | None) -> str | int | None:
    return number if number is None or row.unit != BYTES else f"{number:,} B"


def _time(row: SourceRow, held: Collection[tuple[str, int]]) -> str:
    return text.moment(row.watermark) + (", holds time back" if row.place in held else "")


def _by_operator(late: LateRecords) -> str:
    counts = [f"{name} {text.count(rows)}" for name, rows in late.operators.items() if rows]
    return f": {', '.join(counts)}" if counts else ""


def _log_of(stored: Stored) -> str:
    return f"the output of its driver, and {stored.folder}/log"
