"""`holdfast plan JOB.py`: shows the plan of a job, and its differences from the job's history. Changes nothing."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.repository import Repository
from holdfast.errors import HoldfastError
from holdfast.model import SourcePosition
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.cli.start.run import add_drop_state, add_job_arguments, flags_of
from holdfast.runtime.config.settings import Settings, misspelt, resolve
from holdfast.runtime.execution.checks import secrets, sources
from holdfast.runtime.execution.checks.ordered import OF_SETTINGS, pass_all
from holdfast.runtime.execution.checks.targets import fork_targets
from holdfast.runtime.execution.facts import facts_of
from holdfast.runtime.execution.inputs import look_at
from holdfast.runtime.plan.memory import container_share
from holdfast.runtime.plan.topic import outputs_of
from holdfast.storage.local import LocalObjects
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join

if TYPE_CHECKING:
    from holdfast.runtime.plan.model import Plan

_MASTER = re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+")
"""Spark's own masters; SparkContext.createTaskScheduler."""
_UNITS: dict[str | None, Callable[[int], str]] = {"ms": text.span, "bytes": text.size}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    description = "Show the plan of a job: graph, settings and their origins, changes against the last checkpoint."
    parser = add_command(
        subparsers, "plan", description, "holdfast plan job.py\nholdfast plan job.py --drop-state totals"
    )
    add_job_arguments(parser)
    add_drop_state(parser)
    parser.add_argument("--settings", action="store_true", help="show all settings, also those that have their default")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Show the plan. Exit status: 0, even if a run would refuse the changes; 2 if there is no plan."""
    from holdfast.runtime.cli.start import plan_changes
    from holdfast.runtime.plan.compiler import describe, render
    from holdfast.runtime.plan.given_up import given_up
    from holdfast.runtime.plan.kept_state import numbered

    app = load(args.file, args.app)
    settings = resolve(app, flags_of(args), os.environ)
    facts = facts_of(app.plan(), settings)
    pass_all(OF_SETTINGS, facts)
    plan = facts.plan
    repository = Repository(open_objects(join(settings.root, plan.app), writable=False))
    job = repository.read_log()
    manifest = repository.load_manifest(job.completed[-1].body.manifest) if job is not None and job.completed else None
    known = () if manifest is None else manifest.operators
    dropped_state = given_up(plan, known, args.drop_state)
    plan = numbered(plan, known, dropped_state)
    against = plan_changes.changes(plan, settings, job, manifest, repository.records, dropped_state)
    if job is None or not job.finished:  # a finished job does not start again, so nothing can obstruct it
        against["refused"] += obstacles(plan, settings, () if manifest is None else manifest.positions)
        against["refused"] += _as_json(fork_targets.refusals(plan.app, facts.outputs, repository.origins()))
    for warning in (*misspelt(os.environ), *dropped_state.advice()):
        advise(f"Warning: {warning}")
    if args.json:
        print_json({**describe(plan), "settings": settings.describe(), "changes": against})
        return 0
    print(render(plan))
    print(f"\nsettings\n{_settings(settings, every=args.settings)}")
    workers = settings.parallelism + settings.standbys
    if settings.state_memory is None and (words := default_memory(settings.master, workers)):
        print(f"\n  {words}")
    print(f"\nchanges\n{plan_changes.render(against)}")
    for refusal in against["refused"]:
        advise(f"\nA run would refuse this: {refusal['what']}.\nNext: {refusal['next']}")
    return 0


def default_memory(master: str | None, workers: int) -> str:
    """Return the default of `state_memory`, and its origin, if executors are containers; else nothing."""
    from holdfast.runtime.cli.start.run import submitted_conf

    conf = submitted_conf()
    share = container_share(conf if master is None else {**conf, "spark.master": master}, workers)
    if share is None:
        return ""
    source = "" if conf else "; Spark's own files of settings are not read here"
    return (
        f"state_memory is not set: each worker takes at most {text.size(share.default)}, half of its share of "
        f"{share.origin} ({share.workers} to an executor{source})"
    )


def obstacles(plan: Plan, settings: Settings, positions: Iterable[SourcePosition] = ()) -> list[dict[str, str]]:
    """Return why a run would be refused or end immediately for a reason outside the code: root, master, secret, source.

    Args:
        positions: The source positions of the last checkpoint.
    """
    problems, positions = [], tuple(positions)
    store = open_objects(join(settings.root, plan.app), writable=False)
    if isinstance(store, LocalObjects):
        there = next(folder for folder in (store.root, *store.root.parents) if folder.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            fault = "is not writable" if there.is_dir() else "is a file"
            problems.append(
                {
                    "what": f"{there} {fault}, and the root {settings.root} needs a folder there",
                    "next": "give another root: --root or HOLDFAST_ROOT",
                }
            )
    if settings.master is not None and not _MASTER.fullmatch(settings.master):
        what = f"{settings.master!r} is not a Spark master URL"
        problems.append({"what": what, "next": "give local[N], spark://HOST:PORT, yarn or k8s://HOST:PORT"})
    problems += _as_json(secrets.refusals(plan, outputs_of(plan)))
    for spec in plan.sources:
        refusal = sources.refusal(spec)
        if refusal is None and (positions or not spec.source.traits.copied):  # the first run makes the copy
            refusal = look_at(plan, positions, spec).refusal
        problems += _as_json([] if refusal is None else [refusal])
    return problems


def _as_json(refusals: Iterable[HoldfastError]) -> list[dict[str, str]]:
    return [{"what": each.what, "next": each.next_step} for each in refusals]


def _settings(settings: Settings, *, every: bool) -> str:
    """Return the settings as a table: all, or those that were set, and how many others there are."""
    all_settings = settings.describe()
    wanted = [s for s in all_settings if every or s["origin"] != "default"]
    rows = [(s["name"], _value(s["value"], s["unit"]), s["origin"], s["doc"]) for s in wanted]
    table = text.table(("name", "value", "origin", "meaning"), rows, indent=2) if rows else ""
    left = len(all_settings) - len(wanted)
    rest = f"  {left} {'others have' if rows else 'settings, all of which have'} their default: --settings shows them"
    return "\n".join(part for part in (table, rest if left else "") if part)


def _value(value: int | str | None, unit: str | None) -> str:
    if value is None:
        return "not set"
    return _UNITS[unit](value) if unit in _UNITS and isinstance(value, int) else str(value)
