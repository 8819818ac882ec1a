"""Plan a rewind without changing anything: which records are read again, which output stays or is taken back.

Only the job's file describes sinks and sources, because the root holds no configuration. Without that file the plan
shows the records of the checkpoints, and the rest as unknown.

Invariants
    - Planning changes nothing; it reads a few manifests and queries sinks and sources.
    - An unknown value is None, never 0.
    - The identity of a plan covers the generation and timeline that it was made on, its destination, and the
      consequences that the user has to accept; applying a plan by its identity does exactly that.

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
from holdfast.runtime.driver.requests import is_accept
from holdfast.runtime.operators.contract import is_part
from holdfast.runtime.plan.kept_state import lost_since
from holdfast.runtime.plan.model import Plan, SinkSpec
from holdfast.runtime.plan.topic import outputs_of
from holdfast.runtime.rewind.estimate import estimate_ms, taking_back_s
from holdfast.runtime.rewind.sinks import IMPOSSIBLE, no_such_sink, outlooks, stands_against
from holdfast.runtime.rewind.sources import first_missing, source_rows
from holdfast.runtime.rewind.target import NOTHING_DONE
from holdfast.runtime.wire.clock import SystemClock


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
    """Return the plan in the form of API.md, and the expected duration of its repairs in seconds; None if unknown.

    Args:
        plan: The plan of the job's file; None if only the job's name is known.
        adopted: Owners of other histories whose targets may be taken over.
    """
    there, here = _manifests(repository, job, base)
    sinks = outlooks(repository, job, there, here, () if plan is None else outputs_of(plan), clock, adopted)
    sources = source_rows(there, here, () if plan is None else plan.sources)
    accept = sorted(each.accept for each in sinks if each.accept is not None)
    plan_document = {
        "plan_id": plan_id(job, base, accept, stop=stop),
        "job": job.name,
        "from": {"timeline": job.timeline, "epoch": job.base_epoch},
        "to": {"timeline": job.timeline + 1, "epoch": base.body.epoch, "at": base.at},
        "sources": sources,
        "state": state_of(there),
        "sinks": [each.shown for each in sinks],
        "accept": accept,
        "estimate_ms": estimate_ms(repository, job, sources, sinks),
        "applied": False,
    }
    return plan_document, taking_back_s(sinks)


def plan_id(job: Job, base: Completed, accept: Sequence[str], *, stop: bool) -> str:
    """Return an identity that another driver, a recovery, a rewind or a different request changes.

    Newer checkpoints of the same generation do not change it: a running job completes them all the time. They add to
    the epochs that the rewind undoes. They do not change its destination, and if they change the rows that a target can
    take back, the sinks to accept change as well.
    """
    there = f"{base.body.epoch}/{base.body.manifest.path}/{base.body.manifest.sha256}"
    reported = f"{job.uuid}/{job.timeline}/{job.generation}/{there}/{','.join(accept)}/{stop}"
    return hashlib.sha256(reported.encode()).hexdigest()[:12]


def check(shown: Mapping[str, Any], accepted: Collection[str]) -> None:
    """Refuse to apply a plan that cannot succeed, or that leaves output in a target without the user's consent.

    Raises:
        ConfigError: a source no longer has the records, or a sink cannot take its output back.
    """
    where = Where(job=shown["job"])
    if (gone := first_missing(shown["sources"])) is not None:
        raise ConfigError(
            gone,
            not_done=NOTHING_DONE,
            next_step="rewind to a later checkpoint, whose offset the source still has",
            where=where,
        )
    for sink in shown["sinks"]:
        needed = f"{sink['name']}:{sink['verdict']}"
        if sink["verdict"] == IMPOSSIBLE and not (needed in shown["accept"] and needed in accepted):
            instead = f"; or accept it: --accept {needed}" if needed in shown["accept"] else ""
            raise ConfigError(
                f"sink {sink['name']!r} cannot undo its output: {sink['reason']}",
                not_done=NOTHING_DONE,
                next_step="rewind to a later checkpoint; or restore the target if it is damaged, or the sink if it was "
                f"removed from the job's file{instead}",
                where=where,
            )


def granted(
    repository: Repository,
    job: Job,
    args: Mapping[str, Any],
    sinks: Sequence[SinkSpec],
    operators: Sequence[OperatorState],
) -> Mapping[str, Any] | str:
    """Check whether a running job can carry out a request to rewind.

    Returns:
        The request, with only those acceptances that its targets need now: an unneeded one would be a standing
        permission, and rows would stay silently if a target could no longer take them back when it is repaired. Or the
        reason why the job's code or targets forbid the rewind.
    """
    epoch, acceptances = args.get("epoch"), args.get("accept", ())
    base = next((each for each in job.completed if each.body.epoch == epoch), None)
    if base is None or not is_accept(acceptances):
        return args  # refused for another reason
    if (unknown := no_such_sink(acceptances, (spec.name for spec in sinks))) is not None:
        return f"the job has no sink {unknown!r}, which the request names in its acceptances"
    there, here = _manifests(repository, job, base)
    if (lost := lost_since(there.operators, operators)) is not None:
        return f"{lost} the state that it had then; stop the job, and rewind it by its file"
    found = outlooks(repository, job, there, here, sinks, SystemClock())
    needed = sorted(each.accept for each in found if each.accept is not None)
    against = next((why for each in found if (why := stands_against(each, acceptances)) is not None), None)
    return {**args, "accept": needed} if against is None else against


def _manifests(repository: Repository, job: Job, base: Completed) -> tuple[Manifest, Manifest]:
    there, last = repository.load_manifest(base.body.manifest), job.completed[-1]
    return there, there if last is base else repository.load_manifest(last.body.manifest)


def state_of(there: Manifest) -> list[dict[str, Any]]:
    """Return the state to restore, by the operators that users name.

    Segments mix the operators of a subtask, so only a sole operator's size is known.
    """
    operators = [operator for operator in there.operators if not operator.dropped and not is_part(operator.name)]
    total = sum({p.object.path: p.object.size for handle in there.state for p in pieces(handle)}.values())
    return [
        {"operator": operator.name, "action": "restore", "bytes": total if len(operators) == 1 else None}
        for operator in operators
    ]
