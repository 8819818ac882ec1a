"""`holdfast dlq list|redrive JOB`: what a job could not take, and the way back for it.

Source: API.md, command line; docs/design/0009-dead-letters.md.
"""

from __future__ import annotations

import argparse
import base64
import json
import shlex
from dataclasses import asdict
from typing import Any

from holdfast.errors import ConfigError, Where
from holdfast.runtime import dlq_places
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command, add_common, add_job, root_of
from holdfast.runtime.cli.history import Stored, open_job
from holdfast.runtime.cli.log_output import Placed, as_json_line
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.dead_letters import decode_row
from holdfast.runtime.redrive import Count, Redrive, newest_letters, open_dlq, sources_in
from holdfast.storage.log import LogReader
from holdfast.storage.objects import open_objects

LIMIT = 20
SHOWN_ONLY = 3
WIDTH_MAX = 60
_ABOUT = """\
Append the records behind dead letters to the end of the log that they came from, so that the corrected job takes them.
Shows what would be appended; does it with --apply. Each record is appended once per target, also if the command is
killed and given again; letters that were redriven are not offered again.

What is redriven is a new record of that log. Everything that reads the log takes it, also branches of the job that had
no trouble with it and have counted it before, and other jobs. A record that could not be decoded was seen by no branch
of its job. To bring records to one branch only, give that branch a log of its own and redrive there, with --to.
Records come after those that were appended since: where order matters, late records are what to expect."""


def add_parser(subparsers: Any) -> None:
    """Register the command and its actions."""
    examples = "holdfast dlq list hot-auctions\nholdfast dlq redrive hot-auctions --apply"
    parser = add_command(subparsers, "dlq", "Dead letters: what a job could not take.", examples, actions=True)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    formatter = argparse.RawDescriptionHelpFormatter
    show = actions.add_parser(
        "list", help="show dead letters", description="Show the dead letters of a job, the newest of each partition.",
        epilog="examples:\n  holdfast dlq list hot-auctions --limit 5\n  holdfast dlq list hot-auctions --json",
        formatter_class=formatter,
    )  # fmt: skip
    again = actions.add_parser(
        "redrive", help="append their records to the log that they came from", description=_ABOUT,
        epilog="examples:\n  holdfast dlq redrive hot-auctions\n  holdfast dlq redrive hot-auctions --apply\n"
        "  holdfast dlq redrive hot-auctions --source bids --to data/bids-again --apply",
        formatter_class=formatter,
    )  # fmt: skip
    for action, handler in ((show, list_all), (again, redrive)):
        add_common(action)
        add_job(action)
        action.set_defaults(handler=handler)
    show.add_argument("--limit", metavar="N", type=int, default=LIMIT, help=f"letters at most; default: {LIMIT}")
    again.add_argument("--source", metavar="S", help="only what this source gave; default: every source")
    again.add_argument("--to", metavar="LOG", help="append to this log; default: the log that a record came from")
    again.add_argument(
        "--skip-unfit", action="store_true",
        help="leave out letters whose record is not known or does not fit, for good; default: refuse",
    )  # fmt: skip
    again.add_argument("--apply", action="store_true", help="append; without it nothing is changed")


def list_all(args: argparse.Namespace) -> int:
    """Show dead letters. Exit status: 0, also if there are none."""
    if args.limit < 1:
        raise ConfigError(f"--limit is {args.limit}", not_done="nothing was listed", next_step="give at least 1")
    places, log = _dlq(open_job(root_of(args), args.job))
    reader = _reader(log)
    found, total = _newest(reader, args.limit), sum(map(reader.rows, reader.end_offsets()))
    if args.json:
        print_json({"job": args.job, "dlq": places.log, "total": total, "letters": found})
        return 0
    headers = ("at", "operator", "source", "partition", "offset", "error", "record")
    rows = [
        (f"{f['dlq_partition']}:{f['dlq_offset']}", f["operator"], f["source"], f["partition"], f["offset"],
         _short(f["error"]), _short(json.dumps(f["record"], ensure_ascii=False)))
        for f in found
    ]  # fmt: skip
    print(text.table(headers, rows) if rows else f"{args.job} has no dead letters")
    if total > len(found):
        advise(f"these are {len(found)} of {total:,}; for more: --limit {total}, or --json")
    return 0


def redrive(args: argparse.Namespace) -> int:
    """Append records to the log that they came from.

    Exit status: 0 appended, or nothing to append; 2 refused; 3 shown only, needs --apply; 5 the outcome is unknown.
    """
    places, log = _dlq(open_job(root_of(args), args.job))
    everything = sources_in(_reader(log))
    letters = {source: everything[source] for source in everything if args.source in (None, source)}
    ways = {source: _way(source, places, log, args.to) for source in sorted(letters, key=str)}
    shown = [_shown(source, letters[source], way, places, args.to) for source, way in ways.items()]
    todo = sum(each["records"] or 0 for each in shown)
    unfit = [each for each in shown if each["unfit"]]
    if args.apply and unfit and not args.skip_unfit:
        raise _unfit(args.job, unfit[0])
    if args.apply:
        for way in ways.values():
            if way is not None:
                way.apply()
    if args.json:
        print_json({"job": args.job, "dlq": places.log, "sources": shown, "applied": args.apply})
    else:
        _print(args, shown, todo)
    return SHOWN_ONLY if not args.apply and (todo or unfit) else 0


def _print(args: argparse.Namespace, shown: list[dict[str, Any]], todo: int) -> None:
    headers = ("source", "to", "letters", "waiting", "records", "same record again", "unfit")
    rows = [
        (e["source"], e["to"], e["letters"], e["waiting"], e["records"], e["repeated"],
         sum(each["letters"] for each in e["unfit"]))
        for e in shown
    ]  # fmt: skip
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
        advise("Branches that took these records before take them again: see holdfast dlq redrive --help.")
        advise(f"Nothing changed. To append {text.plural(todo, 'record')}: {command}")


def _shown(source: str | None, letters: int, way: Redrive | None, places: dlq_places.Places, to: str | None) -> Any:
    """Return the plan for one source, JSON-able; what cannot be known is null."""
    target = to or (None if source is None else places.sources.get(source))
    if way is None:
        why = "the source is no log: see --to" if source else "behind a shuffle a row no longer tells its source"
        count: dict[str, Any] = {"waiting": None, "records": None, "repeated": None}
        unfit = [{"why": why, "letters": letters}]
        return {"source": source, "to": target, "letters": letters, **count, "unfit": unfit}
    planned: Count = way.plan()
    unfit = [{"why": why, "letters": number} for why, number in sorted(planned.unfit.items())]
    return {"source": source, "to": target, "letters": letters, **asdict(planned), "unfit": unfit}


def _way(source: str | None, places: dlq_places.Places, log: str, to: str | None) -> Redrive | None:
    """Return how the letters of a source go back; None if there is no way."""
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
        next_step="name a log that they fit with --to, choose another --source, or leave them out for good with "
        "--skip-unfit; they stay among the dead letters",
        where=Where(job=job, source=shown["source"]),
    )


def _dlq(stored: Stored) -> tuple[dlq_places.Places, str]:
    """Return where the job's dead letters are.

    Raises:
        ConfigError: it has none, or they are in no log.
    """
    places = dlq_places.read(stored.store, stored.name)
    if places.log is None:
        raise ConfigError(
            f"the dead letters of job {stored.name!r} are in {places.target}, which is no log",
            not_done="nothing was read",
            next_step="look at them with the tools of that target; this command reads logs",
            where=Where(job=stored.name),
        )
    return places, places.log


def _reader(log: str) -> LogReader:
    return open_dlq(open_objects(log, writable=False))


def _newest(reader: LogReader, limit: int) -> list[dict[str, Any]]:
    """Return the newest letters of all partitions, `limit` in all, by partition and offset, for people."""
    found = []
    for partition, offset, letter in newest_letters(reader, limit):
        raw: bytes = letter.pop("raw")
        place = {"dlq_partition": partition, "dlq_offset": offset}
        found.append({**place, **letter, "record": _record(letter["form"], raw), "raw": base64.b64encode(raw).decode()})
    return found


def _record(form: str, raw: bytes) -> Any:
    """Return the record for people: its columns, its text, or null for bytes that only the source understands."""
    if form in ("record", "row"):
        return json.loads(as_json_line(Placed(0, 0, decode_row(raw).to_pylist()[0])))["row"]
    return raw.decode("utf-8", "replace") if form == "text" else None


def _short(value: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in value)
    return plain if len(plain) <= WIDTH_MAX else f"{plain[: WIDTH_MAX - 1]}…"
