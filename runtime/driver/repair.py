"""Bring the targets of a rewound job back to the base epoch, on lanes of the driver.

Each sink first delivers the pending output of the base, under its own old tags. Then it moves the tags of every writer
to (timeline, base epoch) and takes back newer output, in its own transaction. Sinks do not wait for each other. A
repair reads tags to find the steps that are already done, so it may be repeated at any time.

Invariants
    - Nothing is taken back before every writer of an older timeline is fenced at this target (P21).
    - An unreachable target is retried until it answers; one that can never be repaired ends the run.
    - A result for an older generation changes nothing (P2).

Source: DESIGN section 9; PROTOCOL P17, P18, P21, P24; docs/decisions/0010-rewind.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, HoldfastError, Unavailable
from holdfast.model import Generation, Subtask, Tag, Writer
from holdfast.ports import Lane
from holdfast.runtime.driver.deployment import claim_of
from holdfast.runtime.plan.compiler import SinkSpec
from holdfast.sinks.contract.owners import NEVER, Claim, went_back
from holdfast.sinks.contract.sink import Repair, Rewinding

RETRY_S = 0.5


@dataclass(frozen=True)
class Order:
    """One rewind whose targets are to be repaired."""

    job: Job
    base: Manifest
    writers: frozenset[Writer]
    adopted: tuple[str, ...] = ()

    @property
    def claim(self) -> Claim:
        """Return the claim under which targets are repaired."""
        return claim_of(self.job, self.adopted, self.base.epoch)

    def rewinding(self, sink: str) -> Rewinding:
        """Return the rewind of one sink."""
        to = Tag(self.job.timeline, self.job.base_epoch)
        mine = sorted((w for w in self.writers if w.sink == sink), key=lambda w: w.subtask)
        return Rewinding(self.job.uuid, sink, to, tuple(mine), self.claim)


class RunRepairs:
    """The repairs of one run.

    Args:
        after: Runs a callable after some seconds, in the driver's own thread.
        done: Called once per order, with its generation and all its writers.
        failed: Called with an error that no retry can resolve.
        adopted: Owners of other histories whose targets may be taken over.
    """

    def __init__(
        self,
        repository: Repository,
        sinks: Sequence[SinkSpec],
        lane: Callable[[str], Lane],
        after: Callable[[float, Callable[[], None]], None],
        done: Callable[[Generation, frozenset[Writer]], None],
        failed: Callable[[BaseException], None],
        adopted: tuple[str, ...] = (),
    ) -> None:
        self._adopted = adopted
        self._repository, self._sinks, self._lane, self._after = repository, sinks, lane, after
        self._on_done, self._on_failed = done, failed
        self._generation = Generation(0)
        self._left: set[str] = set()
        self.errors: dict[str, str] = {}
        """Why the last attempt failed, per sink that is not repaired yet."""

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the sinks that are not repaired yet."""
        return tuple(sorted(self._left))

    def left(self) -> dict[str, str | None]:
        """Return the sinks that are not repaired yet, each with the error of its last attempt."""
        return {sink: self.errors.get(sink) for sink in self.waiting}

    def request(self, job: Job, base: Manifest) -> None:
        """Repair every target; an older request is abandoned."""
        self._generation, self._left, self.errors = job.generation, {spec.name for spec in self._sinks}, {}
        self._look(job, base)

    def _look(self, job: Job, base: Manifest) -> None:
        def looked(result: object) -> None:
            match result:
                case _ if job.generation != self._generation:
                    pass
                case Order() as order:
                    for spec in self._sinks:
                        self._repair(spec, order)
                    if not self._sinks:
                        self._on_done(job.generation, order.writers)
                case Unavailable():
                    self._after(RETRY_S, lambda: self._look(job, base))
                case _:
                    self._fail(result)

        def work() -> Order:
            writers = writers_of(self._repository, job, base, [s.name for s in self._sinks])
            return Order(job, base, writers, self._adopted)

        self._lane("repair").submit(work, looked)

    def _repair(self, spec: SinkSpec, order: Order) -> None:
        def repaired(result: object) -> None:
            if order.job.generation != self._generation:
                return
            if isinstance(result, Unavailable):
                self.errors[spec.name] = result.what
                self._after(RETRY_S, lambda: self._again(spec, order))
            elif isinstance(result, BaseException):
                self._fail(result)
            else:
                self._left.discard(spec.name)
                self.errors.pop(spec.name, None)
                if not self._left:
                    self._on_done(order.job.generation, order.writers)

        lane = self._lane(f"repair-{spec.name}")
        lane.submit(lambda: repair_one(self._repository, spec, order), repaired)

    def _again(self, spec: SinkSpec, order: Order) -> None:
        if order.job.generation == self._generation:
            self._repair(spec, order)

    def _fail(self, error: object) -> None:
        assert isinstance(error, BaseException)
        if not isinstance(error, HoldfastError):
            raise error
        self._generation = Generation(0)
        self._on_failed(error)


def repair_one(repository: Repository, spec: SinkSpec, order: Order) -> Repair:
    """Deliver the pending output of the base to this sink, then fence it and take back newer output.

    Raises:
        Unavailable: retry.
        HoldfastError: the repair is impossible.
    """
    repairs, rewinding = spec.sink.repairs, order.rewinding(spec.name)
    acceptance = f"{spec.name}:impossible" in order.job.rewinds[-1].accepted and spec.path is None
    if repairs is None and not acceptance:
        raise not_repairable(spec.name)
    _deliver_left(repository, spec, order)
    if repairs is None:
        return _fence(spec, rewinding)
    if acceptance and repairs.plan_repair(rewinding, spec.schema, spec.upsert_key).verdict == "impossible":
        return _fence(spec, rewinding)
    return repairs.repair(rewinding, spec.schema, spec.upsert_key)


def _fence(spec: SinkSpec, rewinding: Rewinding) -> Repair:
    """Leave the rows, as the user accepted, and move every writer's tag by an empty delivery (P21).

    After an interruption this is repeated; tags on the new timeline do not move. A manifest names every writer that
    delivers at the commit (P18), so these are all writers.
    """
    for writer in rewinding.writers:
        target = spec.sink.open(rewinding.job_uuid, writer, rewinding.claim)
        try:
            target.deliver(rewinding.to, ())
        finally:
            target.close()
    return Repair("impossible", 0, 0, None, (), "output that cannot be undone stays, as accepted")


def _deliver_left(repository: Repository, spec: SinkSpec, order: Order) -> None:
    """Deliver the base's pending output, in order, under each writer's tags; skip output that the target has."""
    base, uuid = order.base, order.job.uuid
    pending = [item for item in base.pending if item.writer.sink == spec.name]
    base_tags = {done.writer: done.tag for done in base.confirmed if done.writer.sink == spec.name}
    for writer in sorted({*base_tags, *(item.writer for item in pending)}, key=lambda w: w.subtask):
        target = spec.sink.open(uuid, writer, order.claim)
        try:
            standing = target.delivered()
            if writer in base_tags and (standing is None or standing < base_tags[writer]):
                raise went_back(f"sink {spec.name!r}, writer {writer.subtask}", standing, base_tags[writer])
            for item in sorted((item for item in pending if item.writer == writer), key=lambda item: item.tag):
                if standing is None or standing < item.tag:
                    rows = (batch for part in item.staged.parts for batch in spec.decode(repository.read(part)))
                    target.deliver(item.tag, rows, standing or NEVER)
                    standing = item.tag
        finally:
            target.close()


def writers_of(repository: Repository, job: Job, base: Manifest, sinks: Iterable[str]) -> frozenset[Writer]:
    """Return every writer whose output may be in a target: writers in the base and in each timeline's last checkpoint.

    A manifest names each writer of all epochs before it, as pending or as confirmed (P18). A writer that delivered
    after the base did so for a checkpoint that is still retained, or for an earlier one.
    """
    newest: dict[int, Completed] = {each.timeline: each for each in job.retained}
    manifests = [base, *(repository.load_manifest(each.body.manifest) for each in newest.values())]
    named = {item.writer for found in manifests for item in found.pending}
    named |= {done.writer for found in manifests for done in found.confirmed}
    widest = max(found.parallelism for found in manifests)
    return frozenset(named | {Writer(sink, Subtask(i)) for sink in sinks for i in range(widest)})


def unrepairable(sinks: Iterable[SinkSpec]) -> tuple[str, ...]:
    """Return the sinks that cannot take output back."""
    return tuple(spec.name for spec in sinks if spec.sink.repairs is None)


def not_repairable(sink: str) -> ConfigError:
    """Return the error for a sink whose output cannot be taken back."""
    return ConfigError(
        f"sink {sink!r} cannot undo its output",
        not_done="no target was changed",
        next_step="remove the output by hand and run under another job name, or keep the job where it is",
    )
