"""`holdfast plan JOB.py`: what a job would do, and how that differs from what its history says. Changes nothing."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, HoldfastError
from holdfast.runtime.cli import text
from holdfast.runtime.cli.arguments import add_command
from holdfast.runtime.cli.jobfile import load
from holdfast.runtime.cli.reporting import advise, print_json
from holdfast.runtime.cli.run import add_job_arguments, flags_of
from holdfast.runtime.settings import Settings, resolve
from holdfast.storage.local import LocalObjects
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join

if TYPE_CHECKING:
    from holdfast.runtime.steps import Plan

_MASTER = re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+")
"""Spark's own masters; SparkContext.createTaskScheduler."""
_UNITS: dict[str | None, Callable[[int], str]] = {"ms": text.span, "bytes": text.size}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    description = "What a job would do: graph, settings and where they come from, changes against the last checkpoint."
    parser = add_command(subparsers, "plan", description, "holdfast plan job.py\nholdfast plan job.py --parallelism 4")
    add_job_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Show the plan. Exit status: 0, also if the changes would be refused by a run; 2 if there is no plan."""
    from holdfast.runtime.plan import describe, render, with_operator_ids

    app = load(args.file, args.app)
    settings = resolve(app, flags_of(args), os.environ)
    plan = app.plan()
    repository = Repository(open_objects(join(settings.root, plan.app), writable=False))
    job = repository.read_log()
    manifest = repository.load_manifest(job.completed[-1].body.manifest) if job is not None and job.completed else None
    if manifest is not None:
        plan = with_operator_ids(plan, {operator.name: operator.id for operator in manifest.operators})
    against = changes(plan, settings, job, manifest)
    if job is None or not job.finished:  # one that has finished is not started again, whatever is wrong
        against["refused"] += obstacles(plan, settings)
    if args.json:
        print_json({**describe(plan), "settings": settings.describe(), "changes": against})
        return 0
    print(render(plan))
    print(f"\nsettings\n{_settings(settings)}")
    print(f"\nchanges\n{_changes(against)}")
    for refusal in against["refused"]:
        advise(f"\nA run would refuse this: {refusal['what']}.\nNext: {refusal['next']}")
    return 0


def changes(plan: Plan, settings: Settings, job: joblog.Job | None, manifest: Manifest | None) -> dict[str, Any]:
    """Compare a plan with the history of its job.

    Returns:
        Names added and removed (None: no checkpoint tells), numbers before and now where they differ, and why a run
        would be refused, if it would.
    """
    compared: dict[str, Any] = {
        "job_exists": job is not None,
        "epoch": None if manifest is None else manifest.epoch,
        "operators": None,
        "sources": None,
        "sinks": None,
        "key_groups": None,
        "parallelism": None,
        "refused": [],
    }
    if job is not None and job.key_groups != plan.key_groups:
        compared["key_groups"] = {"before": job.key_groups, "now": plan.key_groups}
        compared["refused"].append(
            {
                "what": f"job {job.name!r} has key_groups={job.key_groups} for life, the code says {plan.key_groups}",
                "next": f"set key_groups={job.key_groups}, or give the job a new name",
            }
        )
    if manifest is not None:
        written = {*(done.writer.sink for done in manifest.confirmed), *(p.writer.sink for p in manifest.pending)}
        compared["operators"] = _names((o.name for o in plan.operators), (o.name for o in manifest.operators))
        compared["sources"] = _names((s.name for s in plan.sources), (at.source for at in manifest.positions))
        compared["sinks"] = _names((s.name for s in plan.sinks), sorted(written))
        if manifest.parallelism != settings.parallelism:
            compared["parallelism"] = {"before": manifest.parallelism, "now": settings.parallelism}
        compared["refused"] += _refused(plan, manifest)
    return compared


def _refused(plan: Plan, manifest: Manifest) -> list[dict[str, str]]:
    from holdfast.runtime.plan import check_against

    try:
        check_against(plan, {operator.name: operator.schema for operator in manifest.operators})
    except ConfigError as error:
        return [{"what": error.what, "next": error.next_step}]
    return []


def obstacles(plan: Plan, settings: Settings) -> list[dict[str, str]]:
    """Return why a run would be refused, or end at once, for what is outside of the code: root, master, sources."""
    found = []
    store = open_objects(join(settings.root, plan.app), writable=False)
    if isinstance(store, LocalObjects):
        there = next(folder for folder in (store.root, *store.root.parents) if folder.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            fault = "cannot be written" if there.is_dir() else "is a file"
            found.append({"what": f"{there} {fault}, and the root {settings.root} needs a folder there",
                          "next": "give another root: --root or HOLDFAST_ROOT"})  # fmt: skip
    if settings.master is not None and not _MASTER.fullmatch(settings.master):
        what = f"Spark has no master such as {settings.master!r}"
        found.append({"what": what, "next": "give local[N], spark://HOST:PORT, yarn or k8s://HOST:PORT"})
    for spec in plan.sources:
        try:
            spec.source.check()
        except HoldfastError as error:
            found.append({"what": error.what, "next": error.next_step})
    return found


def _names(now: Iterable[str], before: Iterable[str]) -> dict[str, list[str]]:
    """Return which names came and went."""
    have, had = list(dict.fromkeys(now)), list(dict.fromkeys(before))
    return {"added": [n for n in have if n not in had], "removed": [n for n in had if n not in have]}


def _settings(settings: Settings) -> str:
    rows = [(s["name"], _value(s["value"], s["unit"]), s["origin"], s["doc"]) for s in settings.describe()]
    return text.table(("name", "value", "origin", "meaning"), rows, indent=2)


def _value(value: int | str | None, unit: str | None) -> str:
    if value is None:
        return "not set"
    return _UNITS[unit](value) if unit in _UNITS and isinstance(value, int) else str(value)


def _changes(against: dict[str, Any]) -> str:
    if not against["job_exists"]:
        return "  none: the job is new"
    if against["epoch"] is None and against["key_groups"] is None:
        return "  none: the job has not completed a checkpoint yet"
    lines = [
        f"  {kind[:-1]} {name!r} is {change}"
        for kind in ("operators", "sources", "sinks")
        for change, names in (against[kind] or {}).items()
        for name in names
    ]
    lines += [
        f"  {name.replace('_', ' ')}: {against[name]['before']} before, {against[name]['now']} now"
        for name in ("key_groups", "parallelism")
        if against[name] is not None
    ]
    return "\n".join(lines) or f"  none against the checkpoint of epoch {against['epoch']}"
