"""Checks a job before it runs; what it finds out is what every execution starts with.

Every check that can refuse the job runs before anything is appended to the job log: plan, settings, sources, targets,
another run of the same job.

Source: DESIGN sections 2 to 4; API.md (exit statuses).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged, Where
from holdfast.model import NO_EPOCH
from holdfast.ports import ObjectStore
from holdfast.runtime.config.settings import MICROBATCH, Settings
from holdfast.runtime.driver import master
from holdfast.runtime.driver.repair import writers_of
from holdfast.runtime.execution.admission import (
    check_from,
    check_has_end,
    check_partitions,
    check_repairable,
    check_secrets,
    check_sinks,
    prepare_sink,
    refuse_private_memory,
    refuse_second_run,
    refuse_targets_of_origins,
)
from holdfast.runtime.execution.holdings import check_first_targets, check_targets, read_holdings
from holdfast.runtime.execution.results import with_places
from holdfast.runtime.execution.uncommitted_writes import check_written_immediately, uncommitted_writes
from holdfast.runtime.job import dlq_places
from holdfast.runtime.job.damage import with_way_out
from holdfast.runtime.job.log_end import read_whole_log
from holdfast.runtime.microbatch.layers import refuse_standbys, refuse_what_needs_workers
from holdfast.runtime.plan.compiler import Plan
from holdfast.runtime.plan.given_up import given_up
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.runtime.plan.memory import check_state_memory
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.plan.same_source import other_rows, refuse_other_sources
from holdfast.runtime.plan.targets import refuse_own_root
from holdfast.runtime.plan.topic import outputs_of
from holdfast.runtime.rewind.moved import refuse_moved
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join
from holdfast.storage.probe import prove

_Partitions: TypeAlias = dict[str, tuple[int, ...]]
_Ends: TypeAlias = dict[str, Mapping[int, int]]
"""By source; per partition, the offset after its last record."""


@dataclass(frozen=True)
class Prepared:
    """A job that passed all checks and may run; nothing was appended yet."""

    plan: Plan
    settings: Settings
    root: str
    """Absolute URL or path of the job's folder."""
    store: ObjectStore
    repository: Repository
    job: joblog.Job | None
    operators: tuple[OperatorState, ...]
    partitions: Mapping[str, tuple[int, ...]]
    until: Mapping[str, Mapping[int, int]] | None = None
    """With `once`: the end offsets of every source at the start."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user about what this run cannot guarantee."""
    gone_sinks: master.GoneSinks | None = None
    checked: master.Checked | None = None
    adopted: tuple[str, ...] = ()
    """Owners of other histories whose targets may be taken over."""


def prepare(
    plan: Plan,
    settings: Settings,
    drop_state: Sequence[str] = (),
    *,
    once: bool = False,
    takeover: bool = False,
    savepoint: str | None = None,
    adopt_targets: Sequence[str] = (),
    note: Callable[[str], None] = lambda _: None,
) -> Prepared:
    """Run all checks that do not need Spark, create missing targets and copies of sources.

    Args:
        drop_state: The arguments of `--drop-state`: operators, or aggregates as OPERATOR.AGGREGATE.
        once: Read no further than the present ends of the sources, then stop.
        takeover: Do not check whether another run is alive: the start of this one fences it.
        savepoint: Where to start; it has to be the last checkpoint.
        adopt_targets: Sinks whose targets are moved to this job, from another history of it or from another sink.
        note: Called with a line for the user when there is something to wait for.

    Raises:
        ConfigError: the job, a setting, a source or a target does not fit.
        Damaged: the job log lacks records, or a target is ahead of the last epoch that the log completed.
        Fenced: another run of this job is alive.
    """
    plan = with_places(replace(plan, key_groups=settings.key_groups), settings.root)
    refuse_private_memory(plan, settings.root)
    check_settings(plan, settings)
    root = join(settings.root, plan.app)
    store = _opened(root)
    repository = Repository(store)
    job = read_whole_log(plan.app, store, repository)
    if savepoint is not None:
        check_from(plan.app, job, savepoint)
    if job is not None and job.finished:
        return _finished(Prepared(plan, settings, root, store, repository, job, (), {}))
    if job is not None:
        _check_job(repository, job, plan, settings)
        if not takeover:
            refuse_second_run(store, job, note)
    before = None if job is None else _last_manifest(repository, job)
    gone_sinks: master.GoneSinks | None = None
    if job is not None and before is not None:
        gone_sinks = check_sinks(plan, before, repository.records)
        check_written_immediately(plan, before)
        _check_repairs(plan, repository, job, before)
    known = before.operators if before is not None else ()
    plan, operators = with_identities(plan, known, drop_state)
    partitions, ends = _look_at_sources(plan, before, once)
    for sink in outputs_of(plan):
        prepare_sink(sink, job)
    adopted = _check_targets(plan, repository, job, adopt_targets)
    plan, copies, their_ends = _with_copies(plan, before, note)
    until = ends | their_ends if once else None
    dlq_places.write(store, plan)
    warnings = (*_warnings(plan, job, before, partitions | copies), *given_up(plan, known, drop_state).advice())
    checked = master.Checked(NO_EPOCH if before is None else before.epoch, known)
    found = (plan, settings, root, store, repository, job, operators, partitions | copies, until, warnings)
    return Prepared(*found, gone_sinks, checked, adopted)


def _finished(prepared: Prepared) -> Prepared:
    """Return a job that has finished. Raises ConfigError: its code has other records than those that it has read."""
    plan = prepared.plan
    last = None if prepared.job is None else _last_manifest(prepared.repository, prepared.job)
    for spec in (each for each in plan.sources if each.source.traits.in_plan):
        with closing(spec.source.open()) as opened:
            why = other_rows(opened, [at for at in (() if last is None else last.positions) if at.source == spec.name])
        if why is not None:
            raise ConfigError(
                f"job {plan.app!r} has finished, and its source {spec.name!r} has other rows now: {why}",
                not_done="nothing was run; the results are those of the former rows",
                next_step="to run it with these rows, give the app another name or another root",
            )
    return prepared


def _check_targets(plan: Plan, repository: Repository, job: joblog.Job | None, adopt: Sequence[str]) -> tuple[str, ...]:
    if job is None:
        return check_first_targets(plan.app, outputs_of(plan), adopt)
    refuse_moved(repository, job, outputs_of(plan), read_holdings(job, outputs_of(plan)) if job.repair_due else {})
    return check_targets(repository, job, outputs_of(plan), adopt)


def _opened(root: str) -> ObjectStore:
    store = open_objects(root)
    prove(store, f"the root {root}", not_done="the job was not started")
    return store


def check_settings(plan: Plan, settings: Settings) -> None:
    """Refuse settings with which this plan cannot run.

    Raises:
        ConfigError: too little memory, a root that a source reads, or a mode that lacks what the plan needs.
    """
    refuse_own_root(plan, settings.root)
    batches = settings.mode == MICROBATCH
    channels = (1, 0) if batches else (settings.parallelism, settings.channel_bytes_max)
    check_state_memory(plan, settings.state_memory, *channels)
    if batches:
        refuse_what_needs_workers(plan)
        refuse_standbys(settings.standbys)


def _check_repairs(plan: Plan, repository: Repository, job: joblog.Job, before: Manifest) -> None:
    if job.repair_due:
        written = {writer.sink for writer in writers_of(repository, job, before, ())}
        check_repairable(plan, written, job.rewinds[-1].accepted)


def _with_copies(plan: Plan, before: Manifest | None, note: Callable[[str], None]) -> tuple[Plan, _Partitions, _Ends]:
    """Bind sources to their copies; return the plan, and partitions and end offsets of these sources.

    Copies are made last: nothing else may refuse the job after hours.
    """
    plan = replace(plan, sources=tuple(_with_copy(spec, before, note) for spec in plan.sources))
    return plan, *_found_in([spec for spec in plan.sources if spec.source.traits.copied], plan, before)


def _with_copy(spec: SourceSpec, before: Manifest | None, note: Callable[[str], None]) -> SourceSpec:
    if not spec.source.traits.copied:
        return spec
    if before is None:
        note(f"copying the {spec.source.traits.copies} of source {spec.name!r} into the job's folder")
    return replace(spec, source=spec.source.copied(again=before is None))


def _look_at_sources(plan: Plan, before: Manifest | None, once: bool) -> tuple[_Partitions, _Ends]:
    """Check secrets, then every source; return partitions and end offsets of those that need no copy."""
    check_secrets(plan)
    for spec in plan.sources:
        spec.source.check()
        if once:
            check_has_end(plan.app, spec.name, spec.source)
    return _found_in([spec for spec in plan.sources if not spec.source.traits.copied], plan, before)


def _found_in(sources: Iterable[SourceSpec], plan: Plan, before: Manifest | None) -> tuple[_Partitions, _Ends]:
    """Open sources; return their partitions and end offsets."""
    partitions, ends = _Partitions(), _Ends()
    for spec in sources:
        opened = spec.source.open()
        refuse_other_sources(plan.app, () if before is None else before.positions, {spec.name: opened})
        partitions[spec.name] = tuple(opened.partitions())
        check_partitions(plan, () if before is None else before.positions, spec.name, partitions[spec.name])
        ends[spec.name] = opened.end_offsets()
        opened.close()
    return partitions, ends


def _warnings(plan: Plan, job: joblog.Job | None, before: Manifest | None, partitions: _Partitions) -> tuple[str, ...]:
    """Return warnings about rows beyond the checkpoint, and about what a fork that has not begun cannot read."""
    found = uncommitted_writes(plan, job, before)
    if job is not None and before is not None and job.generation == 0:
        found += _not_in_fork(plan, before, partitions)
    return found


def _not_in_fork(plan: Plan, before: Manifest, partitions: _Partitions) -> tuple[str, ...]:
    """Return a warning for every partition of which nothing can be read any more."""
    starts = {(at.source, at.partition): max(0, at.offset) for at in before.positions}
    found = []
    for spec in (each for each in plan.sources if each.source.traits.loses_partitions):
        with closing(spec.source.open()) as opened:
            for partition in partitions[spec.name]:
                if (why := opened.gone(partition)) is not None:
                    found.append(
                        f"source {spec.name!r}, partition {partition}: {why}. This job was forked from an epoch that "
                        f"had read it up to offset {starts.get((spec.name, partition), 0)}, and reads no further "
                        "records of it"
                    )
    return tuple(found)


def _last_manifest(repository: Repository, job: joblog.Job) -> Manifest | None:
    try:
        return repository.load_manifest(job.completed[-1].body.manifest) if job.completed else None
    except Damaged as error:
        raise with_way_out(repository, job.name, error.report()).as_error() from error


def _check_job(repository: Repository, job: joblog.Job, plan: Plan, settings: Settings) -> None:
    refuse_targets_of_origins(plan, repository.origins())
    if job.key_groups != plan.key_groups:
        raise ConfigError(
            f"job {job.name!r} was created with key_groups={job.key_groups}, but now has key_groups={plan.key_groups} "
            f"(origin: {settings.origin('key_groups')})",
            not_done="the job was not started; state and output are untouched",
            next_step=f"set key_groups={job.key_groups} (it is fixed for the job's life), or give the job a new name",
            where=Where(job=job.name),
        )
