"""Facts for the checks of a start; each is read once, when the first check needs it.

A fact that cannot be read raises, and that ends the start.

Invariants
    - Nothing here changes the job, its sources or its targets.
    - Targets are read before the log is read again: a live driver may complete and deliver epochs meanwhile, and every
      epoch in a target was completed in the log before.

Source: API.md (exit statuses); docs/decisions/0124-checks-of-a-start.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Manifest, OperatorState
from holdfast.checkpoint.repository import Repository
from holdfast.errors import Damaged
from holdfast.model import SourcePosition
from holdfast.ports import ObjectStore
from holdfast.runtime.config.settings import Settings
from holdfast.runtime.execution.holdings import adopted_from, read_holdings
from holdfast.runtime.execution.inputs import SourceFacts, look_at
from holdfast.runtime.execution.results import with_places
from holdfast.runtime.inspect.damage import with_way_out
from holdfast.runtime.inspect.log_end import read_whole_log
from holdfast.runtime.plan.given_up import GivenUp, given_up
from holdfast.runtime.plan.model import Plan, SinkSpec, SourceSpec
from holdfast.runtime.plan.topic import outputs_of
from holdfast.sinks.contract.owners import Holding
from holdfast.storage.objects import open_objects
from holdfast.storage.paths import join
from holdfast.storage.probe import prove


@dataclass(frozen=True)
class Choices:
    """Options of one start, besides code and settings."""

    drop_state: Sequence[str] = ()
    """The arguments of `--drop-state`: operators, or aggregates as OPERATOR.AGGREGATE."""
    once: bool = False
    """Read no further than the present ends of the sources, then stop."""
    takeover: bool = False
    """Do not check whether another run is alive: the start of this one fences it."""
    savepoint: str | None = None
    """Where to start; it has to be the last checkpoint."""
    adopt_targets: Sequence[str] = ()
    """Sinks whose targets are moved to this job, from another history of it or from another sink."""


NO_CHOICES = Choices()


@dataclass(frozen=True)
class JobFolder:
    """The folder of a job, and the objects of earlier runs.

    Args:
        name: The job.
        root: Absolute URL or path of its folder.
    """

    name: str
    root: str

    @cached_property
    def store(self) -> ObjectStore:
        """The folder; it can be written."""
        store = open_objects(self.root)
        prove(store, f"the root {self.root}", not_done="the job was not started")
        return store

    @cached_property
    def repository(self) -> Repository:
        """The folder as log and checkpoints."""
        return Repository(self.store)

    @cached_property
    def job(self) -> joblog.Job | None:
        """The fold of the log; None before the first start. Raises Damaged: records are missing."""
        return read_whole_log(self.name, self.store, self.repository)

    @cached_property
    def before(self) -> Manifest | None:
        """The last checkpoint. Raises Damaged, with the checkpoint that can do without the damaged object."""
        if self.job is None or not self.job.completed:
            return None
        try:
            return self.repository.load_manifest(self.job.completed[-1].body.manifest)
        except Damaged as error:
            raise with_way_out(self.repository, self.name, error.report()).as_error() from error

    @property
    def operators(self) -> tuple[OperatorState, ...]:
        """The operators of the last checkpoint."""
        return () if self.before is None else self.before.operators

    @property
    def positions(self) -> tuple[SourcePosition, ...]:
        """How far the last checkpoint has read."""
        return () if self.before is None else self.before.positions


@dataclass(frozen=True)
class TargetFacts:
    """Owners that the targets name, and the log as it was after they were read."""

    holdings: Mapping[str, Holding]
    """By sink; of the targets that could be read."""
    log: joblog.Job | None


@dataclass(frozen=True)
class Facts:
    """All that the checks of a start may ask.

    Args:
        note: Called with a line for the user when there is something to wait for.
    """

    plan: Plan
    """The plan with the folders of sources and sinks that keep rows in the job's own, and the key groups of the
    settings."""
    settings: Settings
    choices: Choices
    folder: JobFolder
    note: Callable[[str], None]

    @cached_property
    def outputs(self) -> tuple[SinkSpec, ...]:
        """Everything that is delivered; the changelog has no numbers of operators yet."""
        return outputs_of(self.plan)

    @cached_property
    def given(self) -> GivenUp:
        """State of the last checkpoint that the user drops."""
        return given_up(self.plan, self.folder.operators, self.choices.drop_state)

    @cached_property
    def targets(self) -> TargetFacts:
        """The targets, once they exist. Before a job's first start only those are read that belong to one sink."""
        job = self.folder.job
        if job is None:
            return TargetFacts(read_holdings(None, [spec for spec in self.outputs if spec.sink.traits.exclusive]), None)
        holdings = read_holdings(job, self.outputs)
        return TargetFacts(holdings, self.folder.repository.read_log() or job)

    @cached_property
    def adopted(self) -> tuple[str, ...]:
        """The owners from which targets may be taken over."""
        return adopted_from(self.targets.log, self.targets.holdings, self.choices.adopt_targets)

    @cached_property
    def _looks(self) -> dict[str, SourceFacts]:
        return {}

    def look(self, spec: SourceSpec) -> SourceFacts:
        """Return the state of a source, and why the job cannot continue in it."""
        if spec.name not in self._looks:
            self._looks[spec.name] = look_at(self.plan, self.folder.positions, spec)
        return self._looks[spec.name]


def facts_of(
    plan: Plan, settings: Settings, choices: Choices = NO_CHOICES, note: Callable[[str], None] = lambda _: None
) -> Facts:
    """Return the facts of a start; nothing is opened yet.

    Raises:
        ConfigError: a sink keeps rows in the job's folder, and the root is not on this machine, or the sink is shared.
    """
    plan = with_places(replace(plan, key_groups=settings.key_groups), settings.root)
    return Facts(plan, settings, choices, JobFolder(plan.app, join(settings.root, plan.app)), note)
