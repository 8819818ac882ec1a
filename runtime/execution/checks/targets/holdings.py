"""Targets whose owners and tags do not fit the job log.

Invariants
    - A target whose owner the job's log does not know is refused, unless the user names its sink.
    - A target beyond every epoch that its owner completed in the log is refused; only a rewind undoes its output.
    - A target below the newest delivery that the last manifest confirms is refused; nothing delivers that output again.
    - A target that holds less than the tag records as delivered is refused, unless a rewind came since.

Source: PROTOCOL P1, P17, P24; docs/decisions/0021-owned-targets.md, 0057-what-owners-completed.md.
"""

from __future__ import annotations

from holdfast.checkpoint.joblog import Job
from holdfast.errors import ConfigError, Damaged, HoldfastError, Where
from holdfast.model import Tag
from holdfast.runtime.execution.facts import Facts
from holdfast.runtime.execution.holdings import named
from holdfast.sinks.contract.owners import NEVER, Claim, Holding, not_ours, rows_taken_back, stands_beyond, went_back

NOT_STARTED = "the job was not started; state and output are untouched"


def check(facts: Facts) -> HoldfastError | None:
    """Refuse the first target that another history owns, that is beyond the log, or that lost output."""
    log, before = facts.targets.log, facts.folder.before
    if log is None:
        return None
    ordered = () if before is None else sorted(before.confirmed, key=lambda done: done.tag)
    confirmed_tags = {done.writer.sink: done.tag for done in ordered}
    for name, holding in facts.targets.holdings.items():
        where = named(facts.outputs, name)
        if holding.held is not None and holding.held.owner not in (*log.owners, *facts.adopted):
            fenced = not_ours(where, holding.held)
            return ConfigError(fenced.what, not_done=NOT_STARTED, next_step=fenced.next_step, where=Where(job=log.name))
        error = beyond(log, where, holding)
        if error is None and name in confirmed_tags and (holding.newest or NEVER) < confirmed_tags[name]:
            return _lost(log, where, holding.newest, confirmed_tags[name])
        if (error := error or lost_rows(log, where, holding)) is not None:
            error.not_done, error.where = NOT_STARTED, Where(job=log.name)
            return error
    return None


def lost_rows(job: Job, where: str, holding: Holding) -> Damaged | None:
    """Return the error for a target that another program took rows back from; None: none, or a rewind came since."""
    newest, by = holding.newest, holding.taken_back
    if newest is None or by is None or newest.timeline < job.timeline:
        return None
    return rows_taken_back(where, newest, by)


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
    completed_tag = Tag(job.timeline, job.base_epoch)
    left = next((rewind for rewind in job.rewinds if rewind.timeline > newest.timeline), None)
    if left is not None:
        return stands_beyond(where, newest, completed_tag) if newest.epoch >= left.first_epoch else None
    return stands_beyond(where, newest, completed_tag) if newest > completed_tag else None


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
