"""`holdfast incident JOB.py --out FILE`: one epoch of a job in one file, to be replayed anywhere.

Source: API.md; docs/decisions/0133-incident-files.md.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from typing import Any

from holdfast.errors import AlreadyExists, ConfigError
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command, add_job
from holdfast.runtime.cli.replay.given import announce, job_and_code, proof_as_json, verdict_of
from holdfast.runtime.cli.replay.surroundings import code_of, versions
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.inspect.stored import LATEST
from holdfast.runtime.replay.epochs import replayable
from holdfast.runtime.replay.incidents.container import IncidentWriter
from holdfast.runtime.replay.incidents.incident import About, Incident, write
from holdfast.runtime.replay.incidents.making import made
from holdfast.runtime.replay.proof import Proof
from holdfast.storage.local import LocalObjects

NOT_WRITTEN = "no file was written, and the job was only read"
SETTINGS = ("mode", "checkpoint_every", "parallelism", "key_groups", "audit", "max_records_per_second")
"""Settings that may matter to a replay; none of them is a place or a secret."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "incident",
        "Write one epoch of a job to a file: state before and after it, its records, the rows that it gave, settings\n"
        "and versions. holdfast replay runs the job's code on it where neither root nor sources can be reached. The\n"
        "job is only read, and may run meanwhile; a file is never replaced.\n\n"
        "exit status: 0 written, 2 wrong use, records were removed, or a column cannot be redacted;\n"
        "4 a checkpoint is damaged; 5 a source or store is unreachable",
        "holdfast incident job.py --epoch 117 --out wrong-total.incident\n"
        "holdfast incident job.py --out wrong-total.incident --key north --redact customer --redact email",
    )
    add_job(parser, "the job's Python file")
    parser.add_argument(
        "--epoch", metavar="N", default=LATEST, help="its number, a savepoint's name, or latest, which is the default"
    )
    parser.add_argument("--key", metavar="K", help="keep the state of this key's key group only; records are all kept")
    parser.add_argument("--out", metavar="FILE", required=True, help="the file to create")
    parser.add_argument(
        "--redact",
        metavar="COLUMN",
        action="append",
        default=[],
        help="replace the values of this text column of the sources everywhere; equal values stay equal, and their "
        "order stays; may be repeated",
    )
    add_app(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Take an epoch, and write it. Exit status: 0 written."""
    folder, _, name = args.out.rpartition("/")
    if not name:
        raise ConfigError(f"--out {args.out!r} names no file", not_done=NOT_WRITTEN, next_step="give its name too")
    store = LocalObjects(folder or ("/" if args.out.startswith("/") else "."))
    if os.path.exists(args.out):
        raise _exists(args.out)
    with ExitStack() as within:
        stored, code = job_and_code(args, within)
        epoch = replayable(stored, args.epoch)
        announce([epoch])
        incident, proof = made(code, epoch, _about(args), args.key, args.redact)
    try:
        with store.writing(name) as file:
            write(incident, IncidentWriter(file))
    except AlreadyExists:
        raise _exists(args.out) from None
    _report(args, incident, proof)
    return 0


def _about(args: argparse.Namespace) -> About:
    app = load(args.job, args.app)
    settings = resolve(app, {"root": args.root}, os.environ)
    return About({name: settings.value(name) for name in SETTINGS}, versions(), code_of(args.job))


def _report(args: argparse.Namespace, incident: Incident, proof: Proof) -> None:
    size = os.path.getsize(args.out)
    epoch = incident.end.manifest.epoch
    if args.json:
        print_json(
            {
                "job": incident.job,
                "epoch": epoch,
                "file": args.out,
                "bytes": size,
                "records": incident.records,
                "key": None if incident.only is None else incident.only.key,
                "redacted": list(incident.redacted),
                **proof_as_json(proof),
            }
        )
        return
    verdict = verdict_of(proof) if incident.only is None or proof.differences else "equals the checkpoint"
    print(
        f"wrote {args.out}, {text.size(size)}: epoch {epoch} of {incident.job}, "
        f"{text.plural(incident.records, 'record')}; its replay {verdict}"
    )
    for each in proof.differences:
        print(f"  {each.kind} {each.name!r}: {each.what}")
    if not incident.redacted:
        advise("\nThe file has records and state as they are. To replace the values of a text column: --redact COLUMN")
    advise(f"Next: holdfast replay {args.out} {args.job}")


def _exists(path: str) -> ConfigError:
    return ConfigError(f"{path} exists", not_done=NOT_WRITTEN, next_step="delete it, or give another name")
