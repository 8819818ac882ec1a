"""`holdfast check JOB.py`: replays the newest epochs and compares every source, sink and operator with what happened.

Source: API.md; docs/decisions/0130-replay.md.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from holdfast.errors import ConfigError, Damaged, Where
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_app, add_command, add_job
from holdfast.runtime.cli.replay.given import (
    advise_unordered,
    announce,
    job_and_code,
    positive,
    proof_as_json,
    unordered_as_json,
    unordered_of,
    verdict_of,
)
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.replay.checking import checked
from holdfast.runtime.replay.epochs import newest
from holdfast.runtime.replay.sources import NOT_REPLAYED

EPOCHS = 10


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = add_command(
        subparsers,
        "check",
        "Replay the newest epochs with the present code, in this process, and compare records, rows and state with\n"
        "the checkpoints. Finds code that does not give the same results again, and state that was changed from\n"
        "outside. Targets are not touched, and the job may run meanwhile.\n\n"
        "exit status: 0 equal, 2 wrong use, or records were removed, 4 something differs,\n"
        "5 a source or store is unreachable",
        "holdfast check job.py\nholdfast check job.py --epochs 100 --json",
    )
    add_job(parser, "the job's Python file")
    parser.add_argument("--epochs", metavar="N", type=int, default=EPOCHS, help=f"how many; default: {EPOCHS}")
    add_app(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Replay and compare. Exit status: 0 equal, 4 something differs."""
    positive(args.epochs, "--epochs")
    with ExitStack() as within:
        stored_job, code = job_and_code(args, within)
        epochs = newest(stored_job, args.epochs)
        if not epochs:
            raise ConfigError(
                f"job {stored_job.name!r} has no epoch whose beginning is retained",
                not_done=NOT_REPLAYED,
                next_step=f"wait for two checkpoints, or keep more: holdfast checkpoints list {stored_job.name}",
                where=Where(job=stored_job.name),
            )
        announce(epochs)
        proofs = list(zip(epochs, checked(code, epochs), strict=True))
        steps_that_may_differ = unordered_of(code, (proof for _, proof in proofs))
    if args.json:
        shown = [{"epoch": e.manifest.epoch, "records": e.records} | proof_as_json(proof) for e, proof in proofs]
        print_json({"job": stored_job.name, "epochs": shown, "may_differ": unordered_as_json(steps_that_may_differ)})
    else:
        rows = [(e.manifest.epoch, f"{e.records:,}", verdict_of(proof)) for e, proof in proofs]
        print(text.table(("epoch", "records", "replay"), rows))
        for epoch, proof in proofs:
            for each in proof.differences:
                print(f"\nepoch {epoch.manifest.epoch}, {each.kind} {each.name!r}: {each.what}")
        if any(proof.differences for _, proof in proofs):
            advise(
                "\nNext: if the code has changed since, this is what it would have given. Otherwise look for functions "
                "that use the time, random numbers or other systems"
            )
            advise_unordered(steps_that_may_differ, (proof for _, proof in proofs))
        unknown = next((proof.unknown for _, proof in proofs if proof.unknown is not None), None)
        if unknown is not None:
            advise(f"\nnot provable: {unknown}")
    return Damaged.exit_status if any(proof.differences for _, proof in proofs) else 0
