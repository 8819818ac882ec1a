"""Works out what a rewind would do, before anything happens: what is read again, what remains, what is taken back.

Sinks and sources are known from the job's file alone, as configuration is not kept in the root. Without it the plan
shows what checkpoints tell, and the rest as unknown.

Invariants
    - Planning changes nothing, and reads no more than two manifests and what sinks and sources say.
    - What is not known is None, never 0.
    - The identity of a plan stands for the head of the log it was made on and for what was asked.

Source: DESIGN section 9; API.md, JSON `rewind`; PROTOCOL P2 (numbers have gaps), P16.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, HoldfastError, Where
from holdfast.runtime.repair import Order, not_repairable, writers_of
from holdfast.runtime.rewinding import no_way_back
from holdfast.runtime.sources.source import same_from
from holdfast.runtime.steps import Plan, SinkSpec
from holdfast.sinks.contract import RepairableSink, Rewinding

REFUSED = ("duplicate", "impossible")
"""Verdicts that leave a target with output of the timeline that is given up."""
NOTHING_DONE = "nothing was changed"


@dataclass(frozen=True)
class Wanted:
    """Where somebody wants to go back to; exactly one is given."""

    epoch: int | None = None
    at_us: int | None = None
    savepoint: str | None = None


def target_of(job: Job, wanted: Wanted) -> Completed:
    """Return the checkpoint to go back to.

    Raises:
        ConfigError: there is none, or the job cannot go back to it; names the nearest that it can go back to.
    """
    epoch = wanted.epoch
    possible = [each for each in job.completed if no_way_back(job, each.body.epoch) is None]
    if wanted.savepoint is not None:
        named = job.savepoint(wanted.savepoint)
        if named is None:
            raise _refused(job, f"job {job.name!r} has no savepoint {wanted.savepoint!r}", possible, None)
        epoch = named.epoch
    elif wanted.at_us is not None:
        before = [each for each in possible if each.at <= wanted.at_us]
        if not before:
            raise _refused(job, f"job {job.name!r} has no checkpoint from before that time", possible, None)
        epoch = before[-1].body.epoch
    assert epoch is not None
    if (reason := no_way_back(job, epoch)) is not None:
        raise _refused(job, f"job {job.name!r} cannot go back to epoch {epoch}: {reason}", possible, epoch)
    return next(each for each in possible if each.body.epoch == epoch)


def plan_of(
    repository: Repository, job: Job, base: Completed, plan: Plan | None, *, stop: bool
) -> dict[str, Any]:
    """Return the plan in the form of API.md.

    Args:
        plan: What the job's file says; None if only the job's name is known.
    """
    there, here = _manifests(repository, job, base)
    specs = () if plan is None else plan.sinks
    return {
        "plan_id": plan_id(job, base, stop=stop),
        "job": job.name,
        "from": {"timeline": job.timeline, "epoch": job.base_epoch},
        "to": {"timeline": job.timeline + 1, "epoch": base.body.epoch, "at": base.at},
        "sources": _sources(there, here, plan),
        "state": _state(there),
        "sinks": [_sink(repository, job, there, spec) for spec in specs] + _unknown_sinks(here, specs),
        "accept": [],
        "estimate_ms": None,
        "applied": False,
    }


def plan_id(job: Job, base: Completed, *, stop: bool) -> str:
    """Return what changes when the head of the log moves, or something else is asked."""
    told = f"{job.uuid}/{job.timeline}/{job.generation}/{job.base_epoch}/{base.body.epoch}/{stop}"
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def check(shown: Mapping[str, Any]) -> None:
    """Refuse to apply a plan that cannot come out right.

    Raises:
        ConfigError: a source no longer has the records, or a sink cannot take its output back.
    """
    where = Where(job=shown["job"])
    for at in shown["sources"]:
        if at["available"] is False:
            raise ConfigError(
                f"source {at['name']!r}, partition {at['partition']}: its records from offset {at['to_offset']} on "
                "are no longer all there",
                not_done=NOTHING_DONE,
                next_step="go back to a later checkpoint, whose offset the source still has",
                where=where,
            )
    for sink in shown["sinks"]:
        if sink["verdict"] in REFUSED:
            raise ConfigError(
                f"sink {sink['name']!r} cannot take its output back: {sink['reason']}",
                not_done=NOTHING_DONE,
                next_step="go back to a later checkpoint; if the sink has gone from the job's file, put it back",
                where=where,
            )


def blocker(
    repository: Repository, job: Job, epoch: int, sinks: Sequence[SinkSpec], operators: Sequence[OperatorState]
) -> str | None:
    """Return why a running job cannot go back to this epoch; None if nothing of its code or targets forbids it."""
    base = next((each for each in job.completed if each.body.epoch == epoch), None)
    if base is None:
        return None  # refused for another reason
    there, here = _manifests(repository, job, base)
    kept = {(operator.name, operator.id) for operator in operators if not operator.dropped}
    if lost := [o.name for o in there.operators if not o.dropped and (o.name, o.id) not in kept]:
        return f"operator {lost[0]!r} has given up the state that it had then; stop the job, and rewind it by its file"
    shown = [_sink(repository, job, there, spec) for spec in sinks] + _unknown_sinks(here, sinks)
    bad = [sink for sink in shown if sink["verdict"] in REFUSED]
    return None if not bad else f"sink {bad[0]['name']!r} cannot take its output back: {bad[0]['reason']}"


def _manifests(repository: Repository, job: Job, base: Completed) -> tuple[Manifest, Manifest]:
    there, last = repository.load_manifest(base.body.manifest), job.completed[-1]
    return there, there if last is base else repository.load_manifest(last.body.manifest)


def _sources(there: Manifest, here: Manifest, plan: Plan | None) -> list[dict[str, Any]]:
    back = {(at.source, at.partition): at.offset for at in there.positions}
    starts = _starts(back, plan)
    rows = []
    for at in here.positions:
        to = back.get((at.source, at.partition))
        known = to is not None and to >= 0 and at.offset >= 0
        start = starts.get((at.source, at.partition))
        rows.append(
            {
                "name": at.source,
                "partition": at.partition,
                "from_offset": at.offset if at.offset >= 0 else None,
                "to_offset": to if known else None,
                "records": at.offset - to if known and to is not None else None,
                "available": None if start is None or to is None else to == at.offset or start <= max(to, 0),
            }
        )
    return rows


def _starts(back: Mapping[tuple[str, int], int], plan: Plan | None) -> dict[tuple[str, int], int]:
    """Return the lowest offset from which all can be read again, of every partition of a source that is known."""
    found: dict[tuple[str, int], int] = {}
    for spec in () if plan is None else plan.sources:
        opened = spec.source.open()
        try:
            for name, partition in back:
                if name == spec.name:
                    found[name, partition] = same_from(opened, partition)
        finally:
            opened.close()
    return found


def _state(there: Manifest) -> list[dict[str, Any]]:
    """A segment holds all operators of a subtask: with more than one nobody knows whose bytes are whose."""
    operators = [operator for operator in there.operators if not operator.dropped]
    total = sum({p.object.path: p.object.size for handle in there.state for p in pieces(handle)}.values())
    return [
        {"operator": operator.name, "action": "restore", "bytes": total if len(operators) == 1 else None}
        for operator in operators
    ]


def _sink(repository: Repository, job: Job, there: Manifest, spec: SinkSpec) -> dict[str, Any]:
    if not isinstance(spec.sink, RepairableSink):
        return _shown(spec.name, "impossible", not_repairable(spec.name).what)
    writers = writers_of(repository, job, there, [spec.name])
    asked = Order(job, there, writers).rewinding(spec.name)
    to = type(asked.to)(type(job.timeline)(job.timeline + 1), there.epoch)
    try:
        repair = spec.sink.plan_repair(
            Rewinding(asked.job_uuid, asked.sink, to, asked.writers), spec.schema, spec.upsert_key
        )
    except HoldfastError as error:
        if isinstance(error, ConfigError):
            return _shown(spec.name, "impossible", error.what)
        return _shown(spec.name, None, error.what)
    return {"name": spec.name, **asdict(repair), "sample": [dict(each) for each in repair.sample]}


def _unknown_sinks(here: Manifest, specs: Sequence[SinkSpec]) -> list[dict[str, Any]]:
    """Return sinks that have output and are not in what is known of the job's file."""
    known = {spec.name for spec in specs}
    named = {item.writer.sink for item in here.pending} | {done.writer.sink for done in here.confirmed}
    if specs:
        return [_shown(name, "impossible", "the job's file no longer has it") for name in sorted(named - known)]
    return [_shown(name, None, "only the job's file says what it is") for name in sorted(named)]


def _shown(name: str, verdict: str | None, reason: str) -> dict[str, Any]:
    unknown: dict[str, Any] = {"restore": None, "delete": None, "changed_by_others": None, "sample": []}
    return {"name": name, "verdict": verdict, **unknown, "reason": reason}


def _refused(job: Job, what: str, possible: Sequence[Completed], epoch: int | None) -> ConfigError:
    epochs = [each.body.epoch for each in possible]
    near = epochs[-2:]
    if epoch is not None:
        near = [*[e for e in epochs if e < epoch][-1:], *[e for e in epochs if e > epoch][:1]]
    nearest = f"the nearest it can go back to: {' and '.join(map(str, near))}; " if near else ""
    return ConfigError(
        what,
        not_done=NOTHING_DONE,
        next_step=f"{nearest}all: holdfast checkpoints list {job.name}",
        where=Where(job=job.name),
    )
