"""The parts that the commands of replay share: the job's code with its sources open, and what a replay is told."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.quantities import plural
from holdfast.runtime.cli.log.output import cell, finite
from holdfast.runtime.cli.operate.rewind import job_of
from holdfast.runtime.cli.reporting import advise
from holdfast.runtime.inspect.stored import Stored, open_job
from holdfast.runtime.replay.epochs import Replayable
from holdfast.runtime.replay.player import Code, opened
from holdfast.runtime.replay.proof import Proof
from holdfast.runtime.replay.sources import NOT_REPLAYED
from holdfast.runtime.replay.spans import Range
from holdfast.runtime.replay.unordered import Unordered, may_differ

ANNOUNCED_FROM = 500_000
"""So many records take some seconds."""


def job_and_code(args: argparse.Namespace, within: ExitStack) -> tuple[Stored, Code]:
    """Return the job as its root holds it, and its code with its sources open until the stack is closed.

    Raises:
        ConfigError: the argument is not a job's file, or there is no such job.
        Damaged, Unavailable: the job's log or a source cannot be read.
    """
    root, name, plan = job_of(args)
    if plan is None:
        raise ConfigError(
            f"a replay runs the job's code, and {args.job!r} is not a Python file",
            not_done=NOT_REPLAYED,
            next_step=f"give the file that builds the app, such as {name}.py",
        )
    return open_job(root, name), opened(plan, within)


def positive(value: int | None, flag: str) -> None:
    """Refuse a number below 1. Raises ConfigError."""
    if value is not None and value < 1:
        raise ConfigError(
            f"{flag} is {value}", not_done=NOT_REPLAYED, next_step=f"give a whole number from 1 on: {flag} 10"
        )


def announce(epochs: list[Replayable]) -> None:
    """Show how much is to be replayed, if that takes some seconds."""
    records = sum(each.records for each in epochs)
    if records >= ANNOUNCED_FROM:
        advise(f"replaying {records:,} records of {plural(len(epochs), 'epoch')}")


def verdict_of(proof: Proof) -> str:
    """Return how a replay compares with production, in words."""
    if proof.differences:
        return "differs from the checkpoint"
    if proof.unknown is not None:
        return "is not provable"
    return "equals the checkpoint" + (", but for rounding" if proof.rounded else "")


def unordered_of(code: Code, proofs: Iterable[Proof]) -> tuple[Unordered, ...]:
    """Return the operators and sinks that may differ in these replays; few if all followed the recorded order."""
    return may_differ(code.plan, recorded=all(proof.in_order for proof in proofs))


def advise_unordered(unordered: Sequence[Unordered], proofs: Iterable[Proof] = ()) -> None:
    """Say which operators and sinks may differ, and why."""
    unlike = next((proof.unlike for proof in proofs if proof.unlike is not None), None)
    if unlike is not None:
        advise(f"\nthe recorded order was not followed, since the code is not as it was: {unlike}")
    if unordered:
        advise("\nwithout the recorded order these may differ, whatever the code:")
        for each in unordered:
            advise(f"  {each.kind} {each.name!r}: {', '.join(each.why)}")


def unordered_as_json(unordered: Sequence[Unordered]) -> list[dict[str, object]]:
    """Return what may differ as JSON-able values."""
    return [{"kind": each.kind, "name": each.name, "why": list(each.why)} for each in unordered]


def proof_as_json(proof: Proof) -> dict[str, object]:
    """Return a comparison as JSON-able values."""
    return {
        "exact": proof.exact,
        "in_order": proof.in_order,
        "unlike": proof.unlike,
        "unknown": proof.unknown,
        "rounded": [{"kind": each.kind, "name": each.name} for each in proof.rounded],
        "differences": [{"kind": each.kind, "name": each.name, "what": each.what} for each in proof.differences],
    }


def plain(row: dict[str, Any] | None) -> Any:
    """Return a row as JSON-able values."""
    return None if row is None else msgspec.to_builtins(finite(row))


def shown(row: dict[str, Any] | None) -> str:
    """Return a row on one line; empty if there is none."""
    return "" if row is None else " ".join(f"{name}={cell(value)}" for name, value in row.items())


def place(at: Range | None) -> str:
    """Return where a record is, or that time alone is the cause."""
    return "time" if at is None else f"{at.source}:{at.partition}:{at.first}"
