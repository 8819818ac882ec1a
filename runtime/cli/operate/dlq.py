"""`holdfast dlq list|redrive JOB`: lists the records that a job could not process, and appends them to their log again.

Source: API.md, command line; docs/decisions/0009-dead-letters.md.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shlex
from dataclasses import asdict
from typing import Any

from holdfast.errors import ConfigError, Where
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, add_common, add_job, root_of
from holdfast.runtime.cli.log.output import LogRow, as_json_line
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.job import dlq_places
from holdfast.runtime.job.redrive import Count, Redrive, newest_letters, open_dlq, sources_in
from holdfast.runtime.rows.dead_letters import decode_row
from holdfast.storage.held_values import rows_of
from holdfast.storage.log.log import LogReader
from holdfast.storage.objects import open_objects

LIMIT = 20
SHOWN_ONLY = 3
WIDTH_MAX = 60
ERROR_WIDTH_MAX = 90
_BEFORE_CAUSE = re.compile(r"^\w+ on stream '[^']*' at [^ ]+: ")
"""The operator and its place, which the text of an error begins with; the operator has its own column."""
_ABOUT = """\
Append the source records of dead letters to the end of their log, so that the corrected job reads them again.
Shows the records; appends them with --apply. Each record is appended once per target, even if the command is killed
and repeated; letters that were redriven are not offered again.

A redriven record is a new record of that log, and every reader of the log takes it: other jobs, and branches of this
job that processed the original and now count it twice. A record that could not be decoded had reached no branch. To
send records to one branch only, give that branch a log of its own and redrive there, with --to. Redriven records follow
everything appended in the meantime: where order matters, expect late records."""


def add_parser(subparsers: Any) -> None:
    """Register the command and its actions."""
    examples = "holdfast dlq list hot-auctions\nholdfast dlq redrive hot-auctions --apply"
    about = "List dead letters, which are records that a job could not process, or redrive them."
    parser = add_command(subparsers, "dlq", about, examples, actions=True)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    formatter = argparse.RawDescriptionHelpFormatter
    show = actions.add_parser(
        "list",
        help="show dead letters",
        description="Show the dead letters of a job, the newest of each partition.",
        epilog="examples:\n  holdfast dlq list hot-auctions --limit 5\n  holdfast dlq list hot-auctions --json",
        formatter_class=formatter,
    )
    again = actions.add_parser(
        "redrive",
        help="append their records to the log that they came from",
        description=_ABOUT,
        epilog="examples:\n  holdfast dlq redrive hot-auctions\n  holdfast dlq redrive hot-auctions --apply\n"
        "  holdfast dlq redrive hot-auctions --source bids --to data/bids-again --apply",
        formatter_class=formatter,
    )
    for action, handler in ((show, list_all), (again, redrive)):
        add_common(action)
        add_job(action)
        action.set_defaults(handler=handler)
    show.add_argument("--limit", metavar="N", type=int, default=LIMIT, help=f"show at most N letters; default: {LIMIT}")
    again.add_argument("--source", metavar="S", help="redrive only letters of this source; default: every source")
    again.add_argument("--to", metavar="LOG", help="append to this log; default: the log that a record came from")
    again.add_argument(
        "--skip-unfit",
        action="store_true",
        help="permanently skip letters whose record is unknown or does not fit; default: refuse",
    )
    again.add_argument("--apply", action="store_true", help="append; without it nothing is changed")


def list_all(args: argparse.Namespace) -> int:
    """Show dead letters. Exit status: 0, even if there are none."""
    if args.limit < 1:
        raise ConfigError(f"--limit is {args.limit}", not_done="nothing was listed", next_step="give at least 1")
    places, log = _dlq(open_job(root_of(args), args.job))
    reader = _reader(log)
    letters, total = _newest(reader, args.limit), sum(map(reader.rows, reader.end_offsets()))
    if args.json:
        print_json({"job": args.job, "dlq": places.log, "total": total, "letters": letters})
        return 0
    headers = ("at", "operator", "source", "partition", "offset", "error", "record")
    rows = [
        (
            f"{f['dlq_partition']}:{f['dlq_offset']}",
            f["operator"],
            f["source"],
            f["partition"],
            f["offset"],
            _short(_BEFORE_CAUSE.sub("", f["error"]), ERROR_WIDTH_MAX),
            _short(f["record"] if isinstance(f["record"], str) else json.dumps(f["record"], ensure_ascii=False)),
        )
        for f in letters
    ]
    print(text.table(headers, rows) if rows else f"{args.job} has no dead letters")
    if total > len(letters):
        advise(f"{len(letters)} of {total:,} shown; for more: --limit {total}")
    if any(str(cell).endswith("…") for row in rows for cell in row[-2:]):
        advise("shortened errors and records end with …; whole ones: --json")
    return 0


def redrive(args: argparse.Namespace) -> int:
    """Append records to the log that they came from.

    Exit status: 0 appended, or nothing to append; 2 refused; 3 shown only, needs --apply; 5 the outcome is unknown.
    """
    places, log = _dlq(open_job(root_of(args), args.job))
    everything = sources_in(_reader(log))
    letters = {source: everything[source] for source in everything if args.source in (None, source)}
    ways = {source: _way(source, places, log, args.to) for source in sorted(letters, key=str)}
    plans = [_shown(source, letters[source], way, places, args.to) for source, way in ways.items()]
    todo = sum(each["records"] or 0 for each in plans)
    unfit = [each for each in plans if each["unfit"]]
    if args.apply and unfit and not args.skip_unfit:
        raise _unfit(args.job, unfit[0])
    if args.apply:
        for way in ways.values():
            if way is not None:
                way.apply()
    if args.json:
        print_json({"job": args.job, "dlq": places.log, "sources": plans, "applied": args.apply})
    else:
        _print(args, plans, todo)
    return SHOWN_ONLY if not args.apply and (todo or unfit) else 0


def _print(args: argparse.Namespace, shown: list[dict[str, Any]], todo: int) -> None:
    headers = ("source", "to", "letters", "waiting", "records", "same record again", "unfit")
    rows = [
        (
            e["source"],
            e["to"],
            e["letters"],
            e["waiting"],
            e["records"],
            e["repeated"],
            sum(each["letters"] for each in e["unfit"]),
        )
        for e in shown
    ]
    print(text.table(headers, rows) if rows else "there are no dead letters")
    for each in shown:
        for reason in each["unfit"]:
            source, letters = each["source"] or "unknown source", text.plural(reason["letters"], "letter")
            print(f"  {source}: {letters}: {reason['why']}")
    if args.apply:
        advise(f"{text.plural(todo, 'record')} appended")
    elif rows:
        unfit = any(each["unfit"] for each in shown)
        command = f"holdfast dlq redrive {args.job}"
        for flag, value in (("--root", args.root), ("--source", args.source), ("--to", args.to)):
            command += f" {flag} {shlex.quote(value)}" if value else ""
        command += " --apply" + (" --skip-unfit" if unfit else "")
        advise("Branches that processed these records will process them again: see holdfast dlq redrive --help.")
        advise(f"Nothing changed. To append {text.plural(todo, 'record')}: {command}")


def _shown(source: str | None, letters: int, way: Redrive | None, places: dlq_places.Places, to: str | None) -> Any:
    """Return the plan for one source, JSON-able; unknown values are null."""
    target = to or (None if source is None else places.sources.get(source))
    if way is None:
        why = "the source is not a log: see --to" if source else "the source of a row after a shuffle is unknown"
        count: dict[str, Any] = {"waiting": None, "records": None, "repeated": None}
        unfit = [{"why": why, "letters": letters}]
        return {"source": source, "to": target, "letters": letters, **count, "unfit": unfit}
    planned: Count = way.plan()
    unfit = [{"why": why, "letters": number} for why, number in sorted(planned.unfit.items())]
    return {"source": source, "to": target, "letters": letters, **asdict(planned), "unfit": unfit}


def _way(source: str | None, places: dlq_places.Places, log: str, to: str | None) -> Redrive | None:
    """Return how to redrive the letters of a source; None if they cannot be redriven."""
    own = None if source is None else places.sources.get(source)
    target = to or own
    if source is None or target is None:
        return None
    records = None if own is None else open_objects(own, writable=False)
    return Redrive(source, open_objects(log, writable=False), open_objects(target), records)


def _unfit(job: str, shown: dict[str, Any]) -> ConfigError:
    reason = shown["unfit"][0]
    return ConfigError(
        f"{text.plural(reason['letters'], 'dead letter')} of source {shown['source'] or '(unknown)'} cannot be redriven"
        f" to {shown['to'] or 'any log'}: {reason['why']}",
        not_done="nothing was appended",
        next_step="use --to to name a log that they fit, choose another --source, or skip them permanently with "
        "--skip-unfit; they stay among the dead letters",
        where=Where(job=job, source=shown["source"]),
    )


def _dlq(stored: Stored) -> tuple[dlq_places.Places, str]:
    """Return where the job's dead letters are.

    Raises:
        ConfigError: the job has none, or does not keep them in a log.
    """
    places = dlq_places.read(stored.store, stored.name)
    if places.log is None:
        raise ConfigError(
            f"the dead letters of job {stored.name!r} are in {places.target}, which is not a log",
            not_done="nothing was read",
            next_step="inspect them with the tools of that target; this command reads only logs",
            where=Where(job=stored.name),
        )
    return places, places.log


def _reader(log: str) -> LogReader:
    return open_dlq(open_objects(log, writable=False))


def _newest(reader: LogReader, limit: int) -> list[dict[str, Any]]:
    """Return the newest `limit` letters over all partitions, by partition and offset, with readable records."""
    letters = []
    for partition, offset, letter in newest_letters(reader, limit):
        raw: bytes = letter.pop("raw")
        place = {"dlq_partition": partition, "dlq_offset": offset}
        letters.append(
            {**place, **letter, "record": _record(letter["form"], raw), "raw": base64.b64encode(raw).decode()}
        )
    return letters


def _record(form: str, raw: bytes) -> Any:
    """Return a readable record: its columns, or its text; null for bytes that are not text."""
    if form in ("record", "row"):
        return json.loads(as_json_line(LogRow(0, 0, rows_of(decode_row(raw))[0])))["row"]
    if form == "text":
        return raw.decode("utf-8", "replace")
    try:
        found = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if any(character in _NO_TEXT for character in found) else found


_NO_TEXT = frozenset(map(chr, range(32))) - set("\t\r\n")
"""Characters that text does not have."""


def _short(value: str, width_max: int = WIDTH_MAX) -> str:
    plain = "".join(character if character.isprintable() else " " for character in value)
    return plain if len(plain) <= width_max else f"{plain[: width_max - 1]}…"
