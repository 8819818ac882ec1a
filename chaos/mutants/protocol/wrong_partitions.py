"""Wrong ways to discover and assign partitions; mutants.py says which rule each negates.

Source: PROTOCOL P12, P13, P20; docs/decisions/0035-partition-discovery.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replaced

from holdfast.checkpoint import coordinator
from holdfast.checkpoint.manifest import Manifest
from holdfast.model import SourcePosition, Subtask
from holdfast.runtime.driver import deployment, epochs, gathering, partitions
from holdfast.runtime.driver import requests as master_requests
from holdfast.runtime.driver.background import listings as listing
from holdfast.runtime.driver.events import ListPartitions
from holdfast.runtime.driver.state import Deployed, Master
from holdfast.runtime.plan.model import SourceSpec
from holdfast.runtime.wire import messages as m
from holdfast.runtime.worker import protocol as worker
from holdfast.runtime.worker.loop import WorkerLoop

Right = Callable[..., Any]
"""The function that a mutant replaces."""


def starts_at_the_end(right: Right) -> Right:
    """Records that a new partition already has are skipped, as if only later records counted."""

    def listed(listings: listing.Listings, spec: SourceSpec, asked: ListPartitions) -> list[SourcePosition]:
        found: list[SourcePosition] = right(listings, spec, asked)
        ends = listings._opened[spec.name].end_offsets()
        return [at if at.offset < 0 else replaced(at, offset=ends[at.partition]) for at in found]

    return listed


def keeps_it_out_of_the_manifest(right: Right) -> Right:
    """A manifest holds the partitions that were read, and none that is only assigned."""

    def next_manifest(state: Master, decided: coordinator.Decide) -> Manifest:
        assert isinstance(state.phase, Deployed) and state.phase.closing is not None
        bare = replace(state.phase, closing=replace(state.phase.closing, assigned=()))
        made: Manifest = right(replace(state, phase=bare), decided)
        return made

    return next_manifest


def reads_before_the_barrier(right: Right) -> Right:
    """A worker begins to read when the trigger arrives, and closes the epoch with its next turn."""

    def received(loop: WorkerLoop, message: m.FromDriver) -> None:
        active = loop._active
        if active is None or not isinstance(message, m.Trigger) or not loop._is_current(message.generation):
            right(loop, message)
            return
        loop._perform(*worker._assigned(active.machine, message.assignment))
        active.triggers.append(message)

    return received


def assigns_to_another_too(right: Right) -> Right:
    """Triggers also carry the partitions of a recovery's deployment, for the next subtask."""

    def unassigned(state: Master, phase: Deployed) -> tuple[m.Assigned, ...]:
        assignments: tuple[m.Assigned, ...] = right(state, replace(phase, known=0))
        new = {each.position.partition for each in right(state, phase)}
        width = state.rules.parallelism
        return tuple(
            each if each.position.partition in new else m.Assigned(each.position, Subtask((each.subtask + 1) % width))
            for each in assignments
            if each.position.offset >= 0
        )

    return unassigned


def assigns_once(right: Right) -> Right:
    """An assignment rides on one trigger, whatever becomes of its epoch."""

    def unassigned(state: Master, phase: Deployed) -> tuple[m.Assigned, ...]:
        lost = isinstance(phase.epochs, coordinator.Idle) and phase.epochs.given_up
        return () if lost else right(state, phase)

    return unassigned


def forgets_who_read(right: Right) -> Right:
    """Every driver assigns all partitions in the order in which it learnt of them."""
    return lambda state, base: right(state, None)


def trusts_its_own_listing(_: Right) -> Right:
    """A driver that takes over reads the partitions that it had listed, and ignores the base manifest."""
    return lambda state, base: state


def finishes_without_looking(_: Right) -> Right:
    """When every known partition has ended, the job finishes."""
    return lambda state, phase: True


def believes_any_heartbeat(right: Right) -> Right:
    """`ended` counts whichever partitions it is about."""

    def all_report(state: Master, said: Callable[[m.Heartbeat], bool]) -> bool:
        true = [hosted for hosted in state.workers.values() if hosted.subtask is not None and said(hosted.heartbeat)]
        return len(true) == state.rules.parallelism

    return all_report


VERSIONS = (
    ("new-partition-from-its-end", "P12", "a new partition is read from its end as of the listing",
     ((listing.Listings, "_of", starts_at_the_end),)),
    ("assignment-not-in-manifest", "P12", "a manifest lacks the partitions that its trigger assigned",
     ((epochs, "next_manifest", keeps_it_out_of_the_manifest),)),
    ("assignment-before-its-barrier", "P12", "a partition is read as soon as its trigger arrives",
     ((WorkerLoop, "received", reads_before_the_barrier),)),
    ("partition-for-two-subtasks", "P12", "after a recovery triggers give what was deployed to another subtask too",
     ((epochs, "unassigned", assigns_to_another_too), (deployment, "unassigned", assigns_to_another_too))),
    ("assignment-given-up", "P12", "an assignment is lost with the epoch of its trigger",
     ((epochs, "unassigned", assigns_once), (deployment, "unassigned", assigns_once))),
    ("partition-changes-its-writer", "P12, P20", "a takeover assigns partitions without looking at the base manifest",
     ((partitions, "owners", forgets_who_read),)),
    ("base-partitions-ignored", "P12", "a takeover reads only the partitions that it had listed itself",
     ((gathering, "with_those_of", trusts_its_own_listing),)),
    ("finished-without-a-listing", "P13", "a job finishes when every partition that it knows has ended",
     ((master_requests, "all_input_is_listed", finishes_without_looking),)),
    ("ended-before-it-was-assigned", "P13", "a subtask counts as ended although it was given a partition since",
     ((deployment, "all_report", believes_any_heartbeat), (master_requests, "all_report", believes_any_heartbeat))),
)  # fmt: skip
"""Name, rules, wrong behaviour, replaced code."""
