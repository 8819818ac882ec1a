"""Readies a job to run: its checks, then the preparations that they allow. Every execution starts with the result.

Every check that can refuse the job runs before anything is appended to the job log. They are in `checks/`, in the order
of `checks/ordered.py`; their facts are in `facts.py`.

Source: DESIGN sections 2 to 4; API.md (exit statuses); docs/decisions/0124-checks-of-a-start.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.checkpoint.manifest import OperatorState
from holdfast.model import NO_EPOCH
from holdfast.runtime.config.settings import Settings
from holdfast.runtime.driver.state import Checked, GoneSinks
from holdfast.runtime.execution.advice import warnings_of
from holdfast.runtime.execution.checks.ordered import (
    ANY_JOB,
    BEFORE_TARGETS,
    OF_A_FINISHED_JOB,
    OF_TARGETS,
    pass_all,
    refuse,
)
from holdfast.runtime.execution.checks.targets.undelivered import gone_sinks
from holdfast.runtime.execution.facts import NO_CHOICES, Choices, Facts, JobFolder, facts_of
from holdfast.runtime.execution.targets import create_target
from holdfast.runtime.job import dlq_places
from holdfast.runtime.plan.kept_state import identified
from holdfast.runtime.plan.model import Plan, SinkSpec, SourceSpec
from holdfast.runtime.plan.topic import outputs_of


@dataclass(frozen=True)
class StartInputs:
    """Partitions and ends of the sources at the start."""

    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    until: Mapping[str, Mapping[int, int]] | None = None
    """With `once`: the end offsets of every source."""


@dataclass(frozen=True)
class StartState:
    """The operators of the code, and against which checkpoint they were checked."""

    operators: tuple[OperatorState, ...] = ()
    checked: Checked | None = None


@dataclass(frozen=True)
class StartTargets:
    """Findings of the start about targets."""

    gone: GoneSinks | None = None
    adopted: tuple[str, ...] = ()
    """Owners of other histories whose targets may be taken over."""


@dataclass(frozen=True)
class Prepared:
    """A job that passed all checks and may run; nothing was appended yet."""

    plan: Plan
    settings: Settings
    outputs: tuple[SinkSpec, ...]
    """Everything that is delivered."""
    folder: JobFolder
    inputs: StartInputs = StartInputs()
    state: StartState = StartState()
    targets: StartTargets = StartTargets()
    warnings: tuple[str, ...] = ()
    """Warnings for the user about guarantees that this run cannot give."""


def prepare(
    plan: Plan, settings: Settings, choices: Choices = NO_CHOICES, note: Callable[[str], None] = lambda _: None
) -> Prepared:
    """Run all checks that do not need Spark, create missing targets and copies of sources.

    Args:
        note: Called with a line for the user when there is something to wait for.

    Raises:
        ConfigError: the job, a setting, a source or a target does not fit.
        Damaged: the job log lacks records, or a target is ahead of the last epoch that the log completed.
        Fenced: another run of this job is alive.
    """
    facts = facts_of(plan, settings, choices, note)
    pass_all(ANY_JOB, facts)
    job = facts.folder.job
    if job is not None and job.finished:
        pass_all(OF_A_FINISHED_JOB, facts)
        return Prepared(facts.plan, settings, facts.outputs, facts.folder)
    pass_all(BEFORE_TARGETS, facts)
    for spec in facts.outputs:
        create_target(spec, job)
    pass_all(OF_TARGETS, facts)
    return _started(facts)


def _started(facts: Facts) -> Prepared:
    """Copy sources, and return the run that the facts describe. Nothing else may refuse the job after hours."""
    folder, before = facts.folder, facts.folder.before
    adopted_owners = facts.adopted
    plan, operators = identified(facts.plan, folder.operators, facts.given)
    plan = replace(plan, sources=tuple(_with_copy(spec, facts) for spec in plan.sources))
    looks = {spec.name: facts.look(spec) for spec in plan.sources}
    for look in looks.values():
        refuse(look.refusal)
    dlq_places.write(folder.store, plan)
    partitions = {name: look.partitions for name, look in looks.items()}
    return Prepared(
        plan=plan,
        settings=facts.settings,
        outputs=outputs_of(plan),
        folder=folder,
        inputs=StartInputs(
            partitions, {name: look.ends for name, look in looks.items()} if facts.choices.once else None
        ),
        state=StartState(operators, Checked(NO_EPOCH if before is None else before.epoch, folder.operators)),
        targets=StartTargets(
            None if before is None else GoneSinks(gone_sinks(facts.outputs, before), before.epoch), adopted_owners
        ),
        warnings=warnings_of(facts, plan, partitions),
    )


def _with_copy(spec: SourceSpec, facts: Facts) -> SourceSpec:
    if not spec.source.traits.copied:
        return spec
    first = facts.folder.before is None
    if first:
        facts.note(f"copying the {spec.source.traits.copies} of source {spec.name!r} into the job's folder")
    return replace(spec, source=spec.source.copied(again=first))
