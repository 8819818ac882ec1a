"""Compares a job's file with the last checkpoint: names, settings, changes that a run accepts or refuses.

A checkpoint of an older version lacks the identity of state or the shape of the plan. Everything that it lacks is
reported as unknown, never as unchanged.

Source: docs/decisions/0024-identity-of-state.md; API.md (`plan --json`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.runtime.config.settings import Settings
from holdfast.runtime.execution.checks import changelog
from holdfast.runtime.execution.checks.targets import undelivered, written_immediately
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.plan import identity, shape, shape_changes
from holdfast.runtime.plan.given_up import GivenUp, given_up, unknown_state
from holdfast.runtime.plan.kept_state import left_operators, left_state
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.plan.topic import outputs_of

STARTS_EMPTY = "it starts empty: its results cover only the records after the checkpoint"


def changes(
    plan: Plan,
    settings: Settings,
    job: joblog.Job | None,
    manifest: Manifest | None,
    records: Callable[[], Iterable[joblog.Record]] = tuple,
    given: GivenUp | None = None,
) -> dict[str, Any]:
    """Compare a plan with the history of its job.

    Args:
        given: State that the start would drop.

    Returns:
        Names added and removed, and numbers before and now (None: no checkpoint holds them, or no difference);
        `changed`: changes that a run accepts, with their effects; `not_known`: facts that the checkpoint does not hold;
        `refused`: why a run would be refused, with what to do next; `drop_state`: the arguments of `--drop-state` that
        name state, and whether an earlier start has carried them out (then they have no effect).
    """
    comparison: dict[str, Any] = {
        "job_exists": job is not None,
        "epoch": None if manifest is None else manifest.epoch,
        "operators": None,
        "sources": None,
        "sinks": None,
        "key_groups": None,
        "parallelism": None,
        "changed": [],
        "not_known": [],
        "refused": [],
        "drop_state": [],
    }
    if job is not None and job.key_groups != plan.key_groups:
        comparison["key_groups"] = {"before": job.key_groups, "now": plan.key_groups}
        origin = settings.origin("key_groups")
        comparison["refused"].append(
            {
                "what": f"job {job.name!r} was created with key_groups={job.key_groups}, which cannot change, and is "
                f"now given key_groups={plan.key_groups} (origin: {origin})",
                "next": f"set key_groups={job.key_groups}, or give the job a new name",
            }
        )
    if manifest is not None:
        _compare(comparison, plan, settings, manifest, records)
    known = () if manifest is None else manifest.operators
    _compare_state(comparison, plan, given or given_up(plan, known, ()), known)
    return comparison


def render(against: dict[str, Any]) -> str:
    """Return the changes as text; the next steps for refusals are shown elsewhere."""
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
    lines += [f"  {change['what']}\n    {change['effect']}" for change in against["changed"]]
    lines += [f"  not known: {what}" for what in against["not_known"]]
    lines += [f"  refused: {refusal['what']}" for refusal in against["refused"]]
    return "\n".join(lines) or f"  none against the checkpoint of epoch {against['epoch']}"


def _compare(
    compared: dict[str, Any],
    plan: Plan,
    settings: Settings,
    manifest: Manifest,
    records: Callable[[], Iterable[joblog.Record]],
) -> None:
    stored_operators = [each for each in manifest.operators if not each.dropped]
    before, now = manifest.shape, shape.shape_of(plan)
    written = {*(done.writer.sink for done in manifest.confirmed), *(p.writer.sink for p in manifest.pending)}
    sources: Iterable[str] = (at.source for at in manifest.positions)
    sinks: Iterable[str] = sorted(written)
    if isinstance(before, dict) and shape_changes.readable(before):
        sources, sinks = before["sources"], before["sinks"]
        differences = shape_changes.changes_of(before, now, [operator.name for operator in plan.operators])
        compared["changed"] += [
            {
                "kind": each.kind,
                "name": each.name,
                "what": f"{each.kind} {each.name!r} {each.what}",
                "effect": each.effect,
            }
            for each in differences
        ]
    else:
        compared["not_known"].append(
            f"how steps, sources and targets changed: another version of Holdfast wrote the checkpoint of epoch "
            f"{manifest.epoch}, and the next checkpoint holds it"
        )
    compared["operators"] = _names(
        (o.name for o in plan.operators if not is_part(o.name)),
        (o.name for o in stored_operators if not is_part(o.name)),
    )
    compared["sources"] = _names((spec.name for spec in plan.sources), sources)
    compared["sinks"] = _names((spec.name for spec in plan.sinks), sinks)
    if manifest.parallelism != settings.parallelism:
        compared["parallelism"] = {"before": manifest.parallelism, "now": settings.parallelism}
    of_sinks = changelog.refusal(plan, manifest) or undelivered.refusal(plan, outputs_of(plan), manifest, records)
    for refusal in (of_sinks, written_immediately.refusal(plan, manifest)):
        compared["refused"] += [] if refusal is None else [{"what": refusal.what, "next": refusal.next_step}]


def _compare_state(compared: dict[str, Any], plan: Plan, given: GivenUp, known: Sequence[OperatorState]) -> None:
    states = {each.name: each.schema for each in known if not each.dropped and each.name not in given.operators}
    compared["drop_state"] = [
        {"argument": argument, "operator": operator, "carried_out": argument in given.repeated}
        for operator, arguments in given.carried_out.items()
        for argument in arguments
    ]
    in_code = {operator.name for operator in plan.operators}
    for name in sorted(filter(lambda each: not is_part(each), given.operators)):
        effect = STARTS_EMPTY if name in in_code else "no operator reads it any more"
        compared["changed"].append(_change(name, f"operator {name!r} gives up its state", effect))
    for difference in identity.differences(plan, states, given.parts):
        if difference.effect is None:
            next_step = given.next_step(difference.operator, difference.next_step)
            compared["refused"].append({"what": difference.what, "next": next_step})
        else:
            compared["changed"].append(_change(difference.operator, difference.what, difference.effect))
    compared["not_known"] += [
        f"whether operator {name!r} had the same inputs, nullability and result types: an older version of Holdfast "
        "wrote its state, and the next checkpoint holds them"
        for name in identity.not_known(plan, states)
    ]
    for what, next_step in (
        *([unknown_state(given)] if given.unknown else ()),
        *([left_state(gone)] if (gone := left_operators(plan, known, given.operators)) else ()),
    ):
        compared["refused"].append({"what": what, "next": next_step})


def _change(operator: str, what: str, effect: str) -> dict[str, str]:
    return {"kind": "operator", "name": operator, "what": what, "effect": effect}


def _names(now: Iterable[str], before: Iterable[str]) -> dict[str, list[str]]:
    """Return the names added and removed."""
    have, had = list(dict.fromkeys(now)), list(dict.fromkeys(before))
    return {"added": [n for n in have if n not in had], "removed": [n for n in had if n not in have]}
