"""Wrong versions of a rewind; chaos/mutants/mutants.py names the rule that each negates.

Source: PROTOCOL, list of mutants; P6, P14, P16, P17, P21.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.chaos.sim.jobs.tables import SharedTable
from holdfast.checkpoint import append, joblog
from holdfast.errors import Unavailable
from holdfast.model import Generation, Tag, Timeline, Writer
from holdfast.runtime.worker.deliveries import Deliveries
from holdfast.sinks.contract.sink import Repair, Rewinding
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, EpochOutput, Outcome

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def keeps_generation(right: Right) -> Right:
    def record(owner: str, job: joblog.Job, draft: append.Draft, at: int) -> joblog.Record:
        made: joblog.Record = right(owner, job, draft, at)
        if isinstance(made.body, joblog.Rewound):
            return msgspec.structs.replace(made, generation=job.generation)
        return made

    return record


def folds_into_generation(right: Right) -> Right:
    def fold_rewind(job: joblog.Job, record: joblog.Record, body: joblog.Rewound) -> joblog.Job:
        before = replace(job, generation=Generation(job.generation - 1))
        folded: joblog.Job = right(before, record, body)
        return folded

    return fold_rewind


def fences_afterwards(right: Right) -> Right:
    """Two transactions: one takes the rows back, the next one moves the tags and the owner, which fence."""

    def repair(table: SharedTable, rewinding: Rewinding, *stream: Any) -> Repair:
        repair_tags: set[Tag] = vars(table).setdefault("begun", set())
        if rewinding.to not in repair_tags:
            tags, owners = dict(table._tags), dict(table._owners)
            right(table, rewinding, *stream)
            table._tags, table._owners = tags, owners
            repair_tags.add(rewinding.to)
            raise Unavailable("the tags are still to be moved", next_step="try again")
        table.check_claim(rewinding.job_uuid, rewinding.sink, rewinding.claim)
        table.take_over(rewinding.job_uuid, rewinding.sink, rewinding.claim)
        for writer in rewinding.writers:
            standing = table._tags.get((rewinding.job_uuid, writer), rewinding.to)
            table._tags[rewinding.job_uuid, writer] = max(standing, rewinding.to)
        return Repair("overwrite", 0, 0, 0, (), "the tags are moved")

    return repair


def compares_epochs_alone(_: Right) -> Right:
    def deliver(table: SharedTable, job_uuid: str, writer: Writer, epochs: Sequence[EpochOutput], *_: Any) -> Outcome:
        standing = table.delivered(job_uuid, writer)
        if standing is not None and standing.epoch >= epochs[0].tag.epoch:
            return AlreadyDelivered(standing)
        read = [(epoch.tag, [row for batch in epoch.batches for row in batch.to_pylist()]) for epoch in epochs]
        table.publish(job_uuid, writer, read)
        table._tags[job_uuid, writer] = epochs[-1].tag
        return Delivered(sum(len(rows) for _, rows in read))

    return deliver


def repairs_once(right: Any) -> Any:
    """A recovery between the record and the end of the repairs does not complete them."""
    return property(lambda job: right.fget(job) and job.starts[-1].cause.startswith("rewound"))


def keeps_machines(right: Right) -> Right:
    def deploy(deliveries: Deliveries, timeline: Timeline, *rest: Any) -> None:
        deliveries._timeline = timeline
        right(deliveries, timeline, *rest)

    return deploy


def deploys_unrepaired(_: Right) -> Right:
    return lambda repository, spec, order: None
