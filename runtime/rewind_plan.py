"""Works out what a rewind would do, before anything happens: what is read again, what remains, what is taken back.

Sinks and sources are known from the job's file alone, as configuration is not kept in the root. Without it the plan
shows what checkpoints tell, and the rest as unknown.

Invariants
    - Planning changes nothing, and reads a few manifests and what sinks and sources say.
    - What is not known is None, never 0.
    - The identity of a plan stands for the generation and timeline it was made on, for where it leads, and for what
      has to be accepted; who applies it by that identity gets just that.

Source: DESIGN section 9; API.md, JSON `rewind`; PROTOCOL P2 (numbers have gaps), P16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Where
from holdfast.ports import Clock
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.rewind_estimate import estimate_ms, taking_back_s
from holdfast.runtime.rewind_sinks import IMPOSSIBLE, no_such_sink, outlooks, stands_against
from holdfast.runtime.rewind_sources import first_missing, source_rows
from holdfast.runtime.rewind_target import NOTHING_DONE
from holdfast.runtime.rewinding import is_accept
from holdfast.runtime.steps import Plan, SinkSpec


def plan_of(
    repository: Repository, job: Job, base: Completed, plan: Plan | None, *, stop: bool, clock: Clock
) -> dict[str, Any]:
    """Return the plan in the form of API.md."""
    return worked_out(repository, job, base, plan, stop=stop, clock=clock)[0]


def worked_out(
    repository: Repository,
    job: Job,
    base: Completed,
    plan: Plan | None,
    *,
    stop: bool,
    clock: Clock,
    adopted: tuple[str, ...] = (),
) -> tuple[dict[str, Any], float | None]:
    """Return the plan in the form of API.md, and how long its repairs would take in seconds; None if that is unknown.

    Args:
        plan: What the job's file says; None if only the job's name is known.
        adopted: Owners of other histories, from which targets may be taken over.
    """
    there, here = _manifests(repository, job, base)
    sinks = outlooks(repository, job, there, here, () if plan is None else plan.sinks, clock, adopted)
    sources = source_rows(there, here, () if plan is None else plan.sources)
    accept = sorted(each.accept for each in sinks if each.accept is not None)
    shown = {
        "plan_id": plan_id(job, base, accept, stop=stop),
        "job": job.name,
        "from": {"timeline": job.timeline, "epoch": job.base_epoch},
        "to": {"timeline": job.timeline + 1, "epoch": base.body.epoch, "at": base.at},
        "sources": sources,
        "state": _state(there),
        "sinks": [each.shown for each in sinks],
        "accept": accept,
        "estimate_ms": estimate_ms(repository, job, sources, sinks),
        "applied": False,
    }
    return shown, taking_back_s(sinks)


def plan_id(job: Job, base: Completed, accept: Sequence[str], *, stop: bool) -> str:
    """Return what changes when another driver, a recovery or a rewind comes between, or something else is asked.

    Newer checkpoints of the same generation do not change it: a job that runs completes them all the time. They make
    the rewind undo more of what a run has gone on with, which is what going back means; they do not change where it
    leads, or what each target can take back, without a sink's need to be accepted changing too.
    """
    there = f"{base.body.epoch}/{base.body.manifest.path}/{base.body.manifest.sha256}"
    told = f"{job.uuid}/{job.timeline}/{job.generation}/{there}/{','.join(accept)}/{stop}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def check(shown: Mapping[str, Any], accepted: Collection[str]) -> None:
    """Refuse to apply a plan that cannot come out right, or leaves behind what nobody accepted.

    Raises:
        ConfigError: a source no longer has the records, or a sink cannot take its output back.
    """
    where = Where(job=shown["job"])
    if (gone := first_missing(shown["sources"])) is not None:
        raise ConfigError(
            gone,
            not_done=NOTHING_DONE,
            next_step="go back to a later checkpoint, whose offset the source still has",
            where=where,
        )
    for sink in shown["sinks"]:
        needed = f"{sink['name']}:{sink['verdict']}"
        if sink["verdict"] == IMPOSSIBLE and not (needed in shown["accept"] and needed in accepted):
            instead = f"; or accept it: --accept {needed}" if needed in shown["accept"] else ""
            raise ConfigError(
                f"sink {sink['name']!r} cannot take its output back: {sink['reason']}",
                not_done=NOTHING_DONE,
                next_step="go back to a later checkpoint; put back a target that is damaged, and a sink that has gone "
                f"from the job's file{instead}",
                where=where,
            )


def granted(
    repository: Repository,
    job: Job,
    args: Mapping[str, Any],
    sinks: Sequence[SinkSpec],
    operators: Sequence[OperatorState],
) -> Mapping[str, Any] | str:
    """Look whether a running job can do what a request asks.

    Returns:
        The request, accepting no more than its targets need now: what is not needed would be a permission that stands,
        and rows would stay without a word if a target could not take them back any more when its turn comes. Or why
        not, if something of the job's code or targets forbids it.
    """
    epoch, accepted = args.get("epoch"), args.get("accept", ())
    base = next((each for each in job.completed if each.body.epoch == epoch), None)
    if base is None or not is_accept(accepted):
        return args  # refused for another reason
    if (unknown := no_such_sink(accepted, (spec.name for spec in sinks))) is not None:
        return f"the job has no sink {unknown!r}, whose rows were accepted to stay"
    there, here = _manifests(repository, job, base)
    kept = {(operator.name, operator.id) for operator in operators if not operator.dropped}
    if lost := [o.name for o in there.operators if not o.dropped and (o.name, o.id) not in kept]:
        return f"operator {lost[0]!r} has given up the state that it had then; stop the job, and rewind it by its file"
    found = outlooks(repository, job, there, here, sinks, SystemClock())
    needed = sorted(each.accept for each in found if each.accept is not None)
    against = next((why for each in found if (why := stands_against(each, accepted)) is not None), None)
    return {**args, "accept": needed} if against is None else against


def _manifests(repository: Repository, job: Job, base: Completed) -> tuple[Manifest, Manifest]:
    there, last = repository.load_manifest(base.body.manifest), job.completed[-1]
    return there, there if last is base else repository.load_manifest(last.body.manifest)


def _state(there: Manifest) -> list[dict[str, Any]]:
    """A segment holds all operators of a subtask: with more than one nobody knows whose bytes are whose."""
    operators = [operator for operator in there.operators if not operator.dropped]
    total = sum({p.object.path: p.object.size for handle in there.state for p in pieces(handle)}.values())
    return [
        {"operator": operator.name, "action": "restore", "bytes": total if len(operators) == 1 else None}
        for operator in operators
    ]
