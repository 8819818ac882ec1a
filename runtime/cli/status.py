"""`holdfast status JOB`: how a job is doing, from its log and from what its driver last said."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, root_of
from holdfast.runtime.cli.history import Stored, open_job, status_of
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.status import time_held

WATCH_EVERY_S = 1.0
ENDED = ("stopped", "finished", "failed")
RESTARTS_SHOWN_MAX = 5
_CLEAR = "\x1b[H\x1b[2J"


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "status",
        "How a job is doing: state, last checkpoint, workers, sources, sinks, recoveries.",
        "holdfast status hot-auctions\nholdfast status hot-auctions --json\nholdfast status hot-auctions --watch",
    )
    parser.add_argument("job", metavar="JOB", help="name of the job under the root")
    parser.add_argument("--watch", action="store_true", help="show it again every second, until it has ended or Ctrl-C")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Show the status once, or again and again until the job has ended. Exit status: 0, whatever state it is in."""
    stored = open_job(root_of(args), args.job)
    while True:
        shown = status_of(stored, SystemClock().wall_us())
        if args.json:
            print_json(shown)
        else:
            before = _CLEAR if args.watch and sys.stdout.isatty() else ""
            print(before + render(shown), flush=True)
        if not args.watch:
            break
        if shown["state"] in ENDED:
            advise(f"{args.job} has ended ({shown['state']}): nothing changes until it is run again")
            break
        time.sleep(WATCH_EVERY_S)
    if not args.json:
        for problem in shown["problems"]:
            advise(f"\n{problem.get('what')}.\nNext: {problem.get('next') or 'see ' + _log_of(stored)}")
    return 0


def render(shown: dict[str, Any]) -> str:
    """Return the status as text; sections about which nothing is known are left out."""
    reason = f" ({shown['reason']})" if shown["reason"] else ""
    lines = [
        f"{shown['job']}: {shown['state']}{reason}",
        f"  root        {shown['root']}",
        f"  generation  {text.count(shown['generation'])}, timeline {text.count(shown['timeline'])}",
        f"  checkpoint  {_checkpoint(shown['checkpoint'])}",
    ]
    if late := shown.get("late"):
        since = f"epoch {late['since_epoch']}" if late["since_epoch"] else "the job began"
        rows = text.plural(sum(late["operators"].values()), "record")
        lines.append(f"  late        {rows} since {since}{_by_operator(late)}")
    if driver := shown["driver"]:
        lines.append(f"  driver      pid {driver['pid']} on {driver['host']}, seen {text.span(driver['seen_ms'])} ago")
    for title, table in _tables(shown):
        lines += ["", title, table]
    return "\n".join(lines)


def _checkpoint(checkpoint: dict[str, Any] | None) -> str:
    if checkpoint is None:
        return "none yet"
    return (
        f"epoch {checkpoint['epoch']}, {text.span(checkpoint['age_ms'])} ago, "
        f"took {text.span(checkpoint['duration_ms'])}, {text.size(checkpoint['bytes'])} of state"
    )


def _tables(shown: dict[str, Any]) -> list[tuple[str, str]]:
    restarts = shown["restarts"][-RESTARTS_SHOWN_MAX:]
    left_out = len(shown["restarts"]) - len(restarts)
    held = {(row["name"], row["partition"]) for row, _ in time_held(shown["sources"])}
    timed = any(row.get("watermark") is not None for row in shown["sources"])
    recoveries = "recoveries" + (f" ({left_out} older ones left out)" if left_out else "")
    tables: list[tuple[str, tuple[str, ...], list[tuple[object, ...]]]] = [
        ("workers", ("id", "host", "pid", "role", "subtasks", "memory", "lag", "came by"), [
            (w["id"], w["host"], str(w["pid"]), w["role"], " ".join(map(str, w["subtasks"])), text.size(w["rss_bytes"]),
             w["lag_epochs"], w.get("how"))
            for w in shown["workers"]
        ]),
        ("sources", ("name", "partition", "offset", "end", "lag", *(("event time",) if timed else ())), [
            (s["name"], s["partition"], _offset(s["offset"]), s["end_offset"], s["lag"],
             *((_time(s, held),) if timed else ()))
            for s in shown["sources"]
        ]),
        ("sinks", ("name", "staged", "delivered", "error"), [
            (s["name"], s["staged_epoch"], s["delivered_epoch"], s["error"]) for s in shown["sinks"]
        ]),
        ("operators", ("name", "rows in", "rows out", "late", "dropped", "dlq", "state"), [
            (o["name"], o["rows_in"], o["rows_out"], o["late"], o["dropped"], o["dlq"], text.size(o["state_bytes"]))
            for o in shown["operators"]
        ]),
        (recoveries, ("at", "generation", "took", "cause"), [
            (text.moment(r["at"]), r["generation"], text.span(r["recovery_ms"]), r["cause"]) for r in restarts
        ]),
    ]  # fmt: skip
    return [(title, text.table(headers, rows, indent=2)) for title, headers, rows in tables if rows]


def _offset(offset: int | None) -> int | None:
    return None if offset is None or offset < 0 else offset


def _time(row: dict[str, Any], held: set[tuple[str, int]]) -> str:
    return text.moment(row["watermark"]) + (", holds time back" if (row["name"], row["partition"]) in held else "")


def _by_operator(late: dict[str, Any]) -> str:
    counts = [f"{name} {text.count(rows)}" for name, rows in late["operators"].items() if rows]
    return f": {', '.join(counts)}" if counts else ""


def _log_of(stored: Stored) -> str:
    return f"the output of its driver, and {stored.folder}/log"
