"""`holdfast replay FILE JOB.py`: an incident file replayed with the present code, where nothing else can be reached.

Source: API.md; docs/decisions/0133-incident-files.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import AlreadyExists, ConfigError, Damaged
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command
from holdfast.runtime.cli.replay.given import place, plain, positive, proof_as_json, shown, verdict_of
from holdfast.runtime.cli.replay.surroundings import changes_since
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.replay.incidents.container import Unpacked
from holdfast.runtime.replay.incidents.incident import Incident, read
from holdfast.runtime.replay.incidents.outcome import IncidentOutcome, ReplayStep, StateChange, outcome, steps
from holdfast.runtime.replay.incidents.tested import plain_row, written_test
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.sinks.contract.target import DELETE, OP
from holdfast.storage.local import LocalObjects

LIMIT = 20


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "replay",
        "Run a job's code on a file that holdfast incident has written, and show whether it gives the same again, how\n"
        "the state changes, and the rows of each sink. Root, sources and targets are not needed, and not opened.\n\n"
        "exit status: 0 equal, 2 wrong use, 4 something differs or the file is damaged, 7 the code fails",
        "holdfast replay wrong-total.incident job.py\n"
        "holdfast replay wrong-total.incident job.py --step\n"
        "holdfast replay wrong-total.incident job.py --test --out test_wrong_total.py",
    )
    parser.add_argument("file", metavar="FILE", help="the incident file")
    parser.add_argument("job", metavar="JOB.py", help="the job's Python file")
    parser.add_argument("--step", action="store_true", help="record by record; on a terminal, one at a time")
    parser.add_argument("--test", action="store_true", help="print a pytest file that replays this one")
    parser.add_argument("--out", metavar="FILE", help="with --test: the file to create; it is never replaced")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        default=LIMIT,
        help=f"changes, and rows of each sink; default: {LIMIT}",
    )
    add_app(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Replay and show. Exit status: 0 equal, 4 something differs."""
    positive(args.limit, "--limit")
    if args.step and args.test:
        raise _wrong("--step and --test were given together", "give one of them")
    if args.out is not None and not args.test:
        raise _wrong("--out is for --test, which was not given", "add --test, or leave --out out")
    incident, plan = opened(args.file), _plan(args)
    if args.step:
        return _step(args, incident, plan)
    result = outcome(incident, incident.code(plan))
    if args.test:
        return _write_test(args, incident, result)
    if args.json:
        print_json(_as_json(incident, result) | {"changed_since": changes_since(incident.about, args.job)})
    else:
        _print(args, incident, result)
    return Damaged.exit_status if result.proof.differences else 0


def opened(path: str) -> Incident:
    """Read an incident file. Raises ConfigError, Damaged."""
    try:
        with open(path, "rb") as file:
            return read(Unpacked(file, path))
    except OSError as error:
        raise _wrong(
            f"{path} cannot be read: {error.strerror or error}", "give the path of an incident file"
        ) from error


def _plan(args: argparse.Namespace) -> Plan:
    """Return the plan of the job's file. Raises ConfigError: also if it looks for something that is not here."""
    try:
        return load(args.job, args.app).plan()
    except ConfigError as error:
        raise ConfigError(
            error.what,
            not_done=NOT_REPLAYED,
            next_step="if a source looks its columns up in its system, give it a row type: hf.Log(path, Sale). Else: "
            + error.next_step,
            where=error.where,
        ) from error


def _step(args: argparse.Namespace, incident: Incident, plan: Plan) -> int:
    for number, step in enumerate(steps(incident, incident.code(plan)), 1):
        if args.json:
            print_json({"step": number, **_step_as_json(step)})
            continue
        print(_step_shown(number, step, args.limit))
        if asks(args) and input(f"step {number} of {incident.records}; Enter goes on, q ends: ").strip() == "q":
            break
    return 0


def asks(args: argparse.Namespace) -> bool:
    """Return whether a person reads the steps, one at a time."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not args.json


def _write_test(args: argparse.Namespace, incident: Incident, result: IncidentOutcome) -> int:
    folder = os.path.dirname(os.path.abspath(args.out)) if args.out else os.getcwd()
    job = os.path.abspath(args.job)
    module, suffix = os.path.splitext(os.path.basename(job))
    if suffix != ".py" or not module.isidentifier():
        raise _wrong(f"a test cannot import {args.job}", "rename the file so that its name is one of a module")
    beside = os.path.relpath(os.path.dirname(job), folder)
    folder_of_job = None if beside == "." else beside
    test = written_test(incident, result, os.path.relpath(args.file, folder), module, folder_of_job)
    if args.out is None:
        print(test, end="")
        return 0
    try:
        LocalObjects(folder).create(os.path.basename(args.out), test.encode())
    except AlreadyExists:
        raise _wrong(f"{args.out} exists", "delete it, or give another name", "no test was written") from None
    advise(f"wrote {args.out}: change EXPECTED in it to what the code should give, then run pytest {args.out}")
    return 0


def _print(args: argparse.Namespace, incident: Incident, result: IncidentOutcome) -> None:
    end = incident.end
    print(
        f"epoch {end.manifest.epoch} of {incident.job}, of {text.moment(end.at)}: "
        f"{text.plural(incident.records, 'record')} replayed, which {_verdict(incident, result)}"
    )
    rows = [(c.operator, shown(c.key), c.change, shown(c.before), shown(c.after)) for c in result.changes[: args.limit]]
    if rows:
        print("\n" + text.table(("operator", "key", "change", "before", "after"), rows))
    _print_more(len(result.changes), args.limit)
    for sink, given in result.rows.items():
        print(f"\n{sink}: {text.plural(len(given), 'row')}")
        print("\n".join(f"  {_row(row)}" for row in given[: args.limit]))
        _print_more(len(given), args.limit)
    for each in result.proof.differences:
        print(f"\n{each.kind} {each.name!r}: {each.what}")
    _advise(args, incident, result)


def _verdict(incident: Incident, result: IncidentOutcome) -> str:
    if incident.only is not None and not result.proof.differences:
        return f"equals the checkpoint for the key group of {incident.only.key}"
    return verdict_of(result.proof)


def _print_more(count: int, limit: int) -> None:
    if count > limit:
        print(f"  and {count - limit:,} more: --limit {count}")


def _advise(args: argparse.Namespace, incident: Incident, result: IncidentOutcome) -> None:
    if incident.redacted:
        advise(f"\nvalues of {', '.join(incident.redacted)} are pseudonyms in this file")
    if incident.about.verdict:
        advise(
            f"\nwhen the file was written, the replay differed too: {', '.join(incident.about.verdict)}; look for "
            "functions that use the time, random numbers or other systems"
        )
    elif result.proof.differences:
        advise("\nthe replay equalled the checkpoint when the file was written: the code gives other results since")
    if result.proof.differences and (changes := changes_since(incident.about, args.job)):
        advise("changed since: " + "; ".join(changes))


def _row(row: Mapping[str, Any]) -> str:
    deleted = "delete " if row.get(OP) == DELETE else ""
    return deleted + shown({name: value for name, value in row.items() if name != OP})


def _step_shown(number: int, step: ReplayStep, limit: int) -> str:
    record = "cannot be decoded" if step.record is None and step.at is not None else shown(step.record)
    lines = [f"{number}  {place(step.at)}  {record}"]
    for change in step.changes[:limit]:
        before, after = shown(change.before) or "-", shown(change.after) or "-"
        lines.append(f"    {change.operator} {shown(change.key)}: {change.change}  {before} -> {after}")
    for sink, rows in step.rows.items():
        lines += [f"    {sink} <- {_row(row)}" for row in rows[:limit]]
    return "\n".join(lines)


def _step_as_json(step: ReplayStep) -> dict[str, Any]:
    at = step.at
    return {
        "source": None if at is None else at.source,
        "partition": None if at is None else at.partition,
        "offset": None if at is None else at.first,
        "record": plain(step.record),
        "changes": _changes_as_json(step.changes),
        "rows": _rows_as_json(step.rows),
    }


def _as_json(incident: Incident, result: IncidentOutcome) -> dict[str, Any]:
    about = incident.about
    return {
        "job": incident.job,
        "epoch": incident.end.manifest.epoch,
        "at": incident.end.at,
        "records": incident.records,
        "key": None if incident.only is None else incident.only.key,
        "redacted": list(incident.redacted),
        "settings": dict(about.settings),
        "versions": dict(about.versions),
        "differed_when_written": list(about.verdict),
        **proof_as_json(result.proof),
        "changes": _changes_as_json(result.changes),
        "rows": _rows_as_json(result.rows),
    }


def _changes_as_json(changes: Iterable[StateChange]) -> list[dict[str, Any]]:
    return [
        {
            "operator": each.operator,
            "change": each.change,
            "key": plain(each.key),
            "before": plain(each.before),
            "after": plain(each.after),
        }
        for each in changes
    ]


def _rows_as_json(rows: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    return {sink: [plain_row(row) for row in given] for sink, given in rows.items()}


def _wrong(what: str, next_step: str, not_done: str = NOT_REPLAYED) -> ConfigError:
    return ConfigError(what, not_done=not_done, next_step=next_step)
