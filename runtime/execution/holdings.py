"""Compares the owners and tags in targets with the job log, before anything is written.

Targets are read first and the log afterwards: a live driver may complete and deliver epochs meanwhile, and every epoch
in a target was completed in the log before. An unreachable target is compared when it is first written to, in that
transaction (sinks/contract/owners.py).

Invariants
    - A target whose owner the job's log does not know, or that belongs to another sink, is refused, unless the user
      names its sink.
    - A target beyond every epoch that its owner completed in the log is refused; only a rewind undoes its output.
    - A target below the newest delivery that the last manifest confirms is refused; nothing delivers that output again.
    - A target to which the tag says more was delivered than it holds is refused, unless a rewind came since.
    - A target is not adopted at an epoch that its other owner may have delivered under the same number.

Source: PROTOCOL P1, P17, P24; docs/design/0021-owned-targets.md, 0057-what-owners-completed.md,
0104-tables-with-one-owner.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged, HoldfastError, Unavailable, Where
from holdfast.model import Tag
from holdfast.runtime.plan.model import SinkSpec
from holdfast.sinks.contract.owners import (
    NEVER,
    Claim,
    Holding,
    at_start,
    belongs_to,
    not_ours,
    rows_taken_back,
    stands_beyond,
    went_back,
)

NOT_STARTED = "the job was not started; state and output are untouched"


def check_targets(
    repository: Repository, job: Job, specs: Sequence[SinkSpec], adopt: Collection[str]
) -> tuple[str, ...]:
    """Refuse to start with a target that another history of the job owns, that is beyond its log, or that lost output.

    Args:
        adopt: Sinks whose targets the user moves to this job.

    Returns:
        The owners from which targets may be taken over for this.

    Raises:
        ConfigError: a target has another owner, or `adopt` names an unknown sink.
        Damaged: a target is beyond the log, or lacks output that was delivered to it.
    """
    found = read_holdings(job, specs)
    refuse_rivals(job.name, job, specs, found, adopt)
    now = repository.read_log() or job
    adopted = adopted_from(now, specs, found, adopt)
    confirmed = _confirmed_before(repository, job, now)
    if now.completed:
        check_adopted(repository, now, now.completed[-1], specs, found, adopt)
    for name, holding in found.items():
        where = named(specs, name)
        if holding.held is not None and holding.held.owner not in (*now.owners, *adopted):
            fenced = not_ours(where, holding.held)
            raise ConfigError(fenced.what, not_done=NOT_STARTED, next_step=fenced.next_step, where=Where(job=now.name))
        if (error := beyond(now, where, holding)) is not None:
            error.not_done, error.where = NOT_STARTED, Where(job=now.name)
            raise error
        if name in confirmed and (holding.newest or NEVER) < confirmed[name]:
            raise _lost(now, where, holding.newest, confirmed[name])
        if (error := lost_rows(now, where, holding)) is not None:
            error.not_done, error.where = NOT_STARTED, Where(job=now.name)
            raise error
    return adopted


def check_first_targets(name: str, specs: Sequence[SinkSpec], adopt: Collection[str]) -> tuple[str, ...]:
    """Refuse to create a job with a target that belongs to another sink.

    Returns:
        The owners from which targets may be taken over for this.

    Raises:
        ConfigError: a target belongs to another sink, and `adopt` does not name it.
    """
    found = read_holdings(None, [spec for spec in specs if spec.sink.traits.exclusive])
    refuse_rivals(name, None, specs, found, adopt)
    return rivals_of(found, adopt)


def refuse_rivals(
    name: str, job: Job | None, specs: Sequence[SinkSpec], found: Mapping[str, Holding], adopt: Collection[str] = ()
) -> None:
    """Refuse targets that belong to another sink, unless the user moves them.

    Args:
        name: The name of the job, for the error.
        job: None: it is about to be created.

    Raises:
        ConfigError: the first such target.
    """
    uuid = None if job is None else job.uuid
    for sink, holding in found.items():
        if holding.rival is not None and sink not in adopt:
            error = at_start(belongs_to(named(specs, sink), uuid, holding.rival))
            error.where = Where(job=name)
            raise error


def rivals_of(found: Mapping[str, Holding], adopt: Collection[str]) -> tuple[str, ...]:
    """Return the owners of the sinks to which targets belong that the user moves."""
    rivals = [each.rival for name, each in found.items() if name in adopt and each.rival is not None]
    return tuple(rival.held.owner for rival in rivals if rival.held is not None)


def lost_rows(job: Job, where: str, holding: Holding) -> Damaged | None:
    """Return the error for a target that another program took rows back from; None: none, or a rewind came since."""
    newest, by = holding.newest, holding.taken_back
    if newest is None or by is None or newest.timeline < job.timeline:
        return None
    return rows_taken_back(where, newest, by)


def _confirmed_before(repository: Repository, job: Job, now: Job) -> Mapping[str, Tag]:
    """Return what the last manifest confirmed before the targets were read: a driver that still runs delivers more.

    Args:
        job: The log as it was then.
        now: The log as it is.
    """
    try:
        return newest_confirmed(repository, job)
    except Damaged:
        if job.base_epoch == now.base_epoch:
            raise
        return {}  # it expired meanwhile


def newest_confirmed(repository: Repository, job: Job) -> Mapping[str, Tag]:
    """Return, per sink, the newest delivery that the last manifest confirms."""
    if not job.completed:
        return {}
    confirmed = repository.load_manifest(job.completed[-1].body.manifest).confirmed
    return {done.writer.sink: done.tag for done in sorted(confirmed, key=lambda done: done.tag)}


def read_holdings(job: Job | None, specs: Iterable[SinkSpec]) -> Mapping[str, Holding]:
    """Return the owner and newest tag of every reachable target.

    Args:
        job: None: it is about to be created, so it owns nothing.
    """
    found: dict[str, Holding] = {}
    for spec in specs:
        if (ownership := spec.sink.ownership) is not None:
            try:
                found[spec.name] = ownership.holding("" if job is None else job.uuid, spec.name)
            except Unavailable:
                continue
    return found


def adopted_from(
    job: Job, specs: Sequence[SinkSpec], found: Mapping[str, Holding], adopt: Collection[str]
) -> tuple[str, ...]:
    """Return the owners from which the named sinks' targets may be taken over.

    Raises:
        ConfigError: there is no such sink, or its target cannot be read.
        Damaged: a target is on a timeline that the job log has not reached: no rewind undoes its output.
    """
    owners = []
    for name in adopt:
        if name not in found:
            known = ", ".join(sorted(found)) or "none"
            raise ConfigError(
                f"--adopt-targets {name}: the job has no sink of this name whose target can be read",
                not_done=NOT_STARTED,
                next_step=f"name one of its sinks: {known}; make an unreachable target reachable first",
                where=Where(job=job.name),
            )
        newest, held = found[name].newest, found[name].held
        if newest is not None and newest.timeline > job.timeline:
            error = stands_beyond(named(specs, name), newest, Tag(job.timeline, job.base_epoch))
            error.next_step = "restore the newer job folder, or give the sink another target"
            raise error
        if held is not None and held.owner not in job.owners:
            owners.append(held.owner)
    return (*owners, *rivals_of(found, adopt))


def check_adopted(
    repository: Repository,
    job: Job,
    to: Completed,
    specs: Sequence[SinkSpec],
    found: Mapping[str, Holding],
    adopt: Collection[str],
) -> None:
    """Refuse to adopt a target at a checkpoint whose output another history may have delivered in this job's place.

    Copies of a job number their epochs alike. This job itself delivered what a manifest confirms, and everything if it
    has ended: another owner's deliveries come later. For other epochs, the tag does not show which one did.

    Args:
        to: The checkpoint from which the job resumes.

    Raises:
        Damaged: resuming from there would take the other owner's output for the job's own.
    """
    foreign = [
        (name, one.newest)
        for name, one in found.items()
        if name in adopt and one.newest is not None and one.held is not None and one.held.owner not in job.owners
    ]
    if not foreign or job.ended is not None:
        return
    there = repository.load_manifest(to.body.manifest)
    confirmed = {done.writer: done.tag for done in repository.load_manifest(job.completed[-1].body.manifest).confirmed}
    for name, newest in foreign:
        doubtful = [
            item.tag
            for item in there.pending
            if item.writer.sink == name
            and item.tag <= newest
            and (item.writer not in confirmed or confirmed[item.writer] < item.tag)
        ]
        if doubtful:
            raise _whose(job, named(specs, name), name, min(doubtful))


def _whose(job: Job, where: str, sink: str, doubtful: Tag) -> Damaged:
    safe = [each.body.epoch for each in job.completed if each.body.epoch < doubtful.epoch]
    restore = "restore the target from a backup, or give the sink another target"
    back = f"holdfast rewind JOB.py --to-epoch {safe[-1]} --adopt-targets {sink}; or " if safe else ""
    return Damaged(
        f"{where}: another run owns the target, and it is unknown which of the two delivered epoch {doubtful.epoch}: "
        "copies of a job number their epochs alike",
        not_done=f"{NOT_STARTED}; the target was not adopted",
        next_step=back + restore,
        where=Where(job=job.name),
    )


def beyond(job: Job, where: str, holding: Holding) -> HoldfastError | None:
    """Return the error for a target beyond every epoch that its owner completed; None if it is not.

    If the log does not know the owner, that is every epoch that the job completed. For past timelines only the end is
    known then: the rewind that left a timeline began its epochs after that end (P2).
    """
    newest = holding.newest
    if newest is None:
        return None
    if holding.held is not None and holding.held.owner in job.reaches:
        repaired = job.base_epoch if job.repair_due else None
        try:
            Claim("", job.generation, job.reaches, repaired).must_take_over(where, holding.held, lambda: newest)
        except Damaged as error:
            return error
        return None
    completed = Tag(job.timeline, job.base_epoch)
    left = next((rewind for rewind in job.rewinds if rewind.timeline > newest.timeline), None)
    if left is not None:
        return stands_beyond(where, newest, completed) if newest.epoch >= left.first_epoch else None
    return stands_beyond(where, newest, completed) if newest > completed else None


def _lost(job: Job, where: str, newest: Tag | None, confirmed: Tag) -> Damaged:
    error = went_back(where, newest, confirmed)
    error.not_done, error.where = NOT_STARTED, Where(job=job.name)
    if newest is None:
        error.not_done = "the job was not started; a target that was missing exists again, empty"
        error.next_step = (
            "bring the target back; to compute all of its rows again, delete the job's folder too and run the job; "
            "for another target, give the sink another name"
        )
    return error


def named(specs: Sequence[SinkSpec], name: str) -> str:
    """Return the name of a sink's target in messages."""
    sink = next(spec.sink for spec in specs if spec.name == name)
    return f"{sink.where}, sink {name!r}"
