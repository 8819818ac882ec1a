"""Targets that the user moves to this job, and that it must not take over.

Copies of a job number their epochs alike: a target is not adopted at an epoch that its other owner may have delivered
under the same number.

Source: PROTOCOL P1, P17, P24; docs/decisions/0021-owned-targets.md, 0057-what-owners-completed.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.checkpoint.joblog import Completed, Job
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Damaged, HoldfastError, Where
from holdfast.model import Tag
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.execution.holdings import named
from holdfast.runtime.plan.model import SinkSpec
from holdfast.sinks.contract.owners import Holding, stands_beyond

NOT_STARTED = "the job was not started; state and output are untouched"


def check(facts: Facts) -> HoldfastError | None:
    """Refuse to take them over."""
    log, holdings, adopt = facts.targets.log, facts.targets.holdings, facts.choices.adopt_targets
    if log is None:
        return None
    if (refused := refusal(log, facts.outputs, holdings, adopt)) is not None or not log.completed:
        return refused
    to = log.completed[-1]
    return doubtful(facts.folder.repository, log, to, specs=facts.outputs, holdings=holdings, adopt=adopt)


def refusal(
    job: Job, specs: Sequence[SinkSpec], holdings: Mapping[str, Holding], adopt: Collection[str]
) -> HoldfastError | None:
    """Return why one of the named sinks is refused.

    There is no such sink, its target cannot be read, or it is on a timeline that the job log has not reached: no rewind
    undoes its output.
    """
    for name in adopt:
        if name not in holdings:
            sink_names = ", ".join(sorted(holdings)) or "none"
            return ConfigError(
                f"--adopt-targets {name}: the job has no sink of this name whose target can be read",
                not_done=NOT_STARTED,
                next_step=f"name one of its sinks: {sink_names}; make an unreachable target reachable first",
                where=Where(job=job.name),
            )
        newest = holdings[name].newest
        if newest is not None and newest.timeline > job.timeline:
            error = stands_beyond(named(specs, name), newest, Tag(job.timeline, job.base_epoch))
            error.next_step = "restore the newer job folder, or give the sink another target"
            return error
    return None


def doubtful(
    repository: Repository,
    job: Job,
    to: Completed,
    *,
    specs: Sequence[SinkSpec],
    holdings: Mapping[str, Holding],
    adopt: Collection[str],
) -> Damaged | None:
    """Return why a target is not adopted at a checkpoint: another history may have delivered its output in our place.

    This job itself delivered the output that a manifest confirms, and all output if it has ended: another owner's
    deliveries come later. For other epochs, the tag does not show which one did.

    Args:
        to: The checkpoint from which the job resumes.
    """
    foreign = [
        (name, one.newest)
        for name, one in holdings.items()
        if name in adopt and one.newest is not None and one.held is not None and one.held.owner not in job.owners
    ]
    if not foreign or job.ended is not None:
        return None
    there = repository.load_manifest(to.body.manifest)
    confirmed_tags = {
        done.writer: done.tag for done in repository.load_manifest(job.completed[-1].body.manifest).confirmed
    }
    for name, newest in foreign:
        tags = [
            item.tag
            for item in there.pending
            if item.writer.sink == name
            and item.tag <= newest
            and (item.writer not in confirmed_tags or confirmed_tags[item.writer] < item.tag)
        ]
        if tags:
            return _whose(job, named(specs, name), name, min(tags))
    return None


def _whose(job: Job, where: str, sink: str, tag: Tag) -> Damaged:
    safe = [each.body.epoch for each in job.completed if each.body.epoch < tag.epoch]
    restore = "restore the target from a backup, or give the sink another target"
    back = f"holdfast rewind JOB.py --to-epoch {safe[-1]} --adopt-targets {sink}; or " if safe else ""
    return Damaged(
        f"{where}: another run owns the target, and it is unknown which of the two delivered epoch {tag.epoch}: "
        "copies of a job number their epochs alike",
        not_done=f"{NOT_STARTED}; the target was not adopted",
        next_step=back + restore,
        where=Where(job=job.name),
    )
