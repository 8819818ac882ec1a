"""Which source partitions a job reads, which subtask reads each, and when the sources are listed again (P12).

The partitions of a source are those listed when the run started, then others in the order in which this driver learnt
of them: from a base manifest, or from a listing. While the parallelism stays, a partition stays with the subtask that
the base manifest names. The others go, in this order, to the subtask that has the fewest of their source, the first of
several. So nothing that is being read moves, and the output of a partition has one writer, in order (P20).

Subtasks of sources that are aligned in event time report how far they are; those that are ahead receive a limit up to
which they may read.

Invariants
    - A deployment holds every partition known by then, at its position in the base manifest or at its first record.
    - Every later trigger holds the partitions that neither the deployment nor the last completed manifest has.
    - No partition becomes known from a source that is not the one that was read, or that lacks a known partition.
    - The input is over only if a listing that began after every partition had ended shows no other partition.

Pure: no clock, thread or I/O. Part of runtime/driver/master.py.
Source: PROTOCOL P12, P13, P22; docs/decisions/0035-partition-discovery.md, 0048-event-time-alignment.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heapreplace

from msgspec.structs import replace as replaced

from holdfast.checkpoint.manifest import Manifest
from holdfast.errors import ConfigError, Damaged, HoldfastError, Where
from holdfast.frozen import replace
from holdfast.model import SourcePosition, Subtask
from holdfast.runtime.driver.events import ListPartitions, Moment, Send, SourcesUnlisted, Step
from holdfast.runtime.driver.state import (
    ALIGNED_WITHIN_S,
    Delivering,
    Deployed,
    Exhausted,
    Finishing,
    Halted,
    Hosted,
    Listing,
    Master,
    Reason,
    Running,
    is_complete,
)
from holdfast.runtime.time.time_alignment import ALWAYS_LEFT, Look, PartitionProgress, Place, looked
from holdfast.runtime.wire import messages as m

LIST_AGAIN_S = 1.0
"""How long to wait before sources that could not be listed are listed again."""
LIST_LOSSES_EVERY_S = 10.0
"""Time between two listings that only look for deleted partitions, if the rules give none."""
FIRST_RECORD = -1
"""In a deployment, instead of an offset: the first record of the partition, wherever that is."""


def known(state: Master) -> dict[str, tuple[int, ...]]:
    """Return the partitions of every source, in the order in which they became known."""
    found = {source: dict.fromkeys(partitions) for source, partitions in sorted(state.rules.partitions.items())}
    for at in state.discovered:
        found[at.source].setdefault(at.partition)
    return {source: tuple(partitions) for source, partitions in found.items()}


def owners(state: Master, base: Manifest | None) -> dict[Place, Subtask]:
    """Return which subtask reads each partition in a generation with this base."""
    width = state.rules.parallelism
    same = base is not None and base.parallelism == width
    base_readers = {(at.source, at.partition): at.subtask for at in (base.positions if base and same else ())}
    readers: dict[Place, Subtask] = {}
    for source, partitions in known(state).items():
        places = [(source, partition) for partition in partitions]
        readers |= {place: reader for place in places if (reader := base_readers.get(place)) is not None}
        counts = Counter(readers[place] for place in places if place in readers)
        fewest = [(counts[Subtask(subtask)], subtask) for subtask in range(width)]
        heapify(fewest)
        for place in places:
            if place not in readers:
                count, subtask = fewest[0]
                readers[place] = Subtask(subtask)
                heapreplace(fewest, (count + 1, subtask))
    return readers


def counts_of(state: Master) -> Counter[Subtask]:
    """Return how many partitions each subtask reads once everything known is assigned."""
    phase = state.deployed
    return _counts(_Known(state, None if phase is None else phase.base))


class _Known:
    """Inputs that determine which subtask reads a partition; compared by identity, as every turn asks."""

    def __init__(self, state: Master, base: Manifest | None) -> None:
        self.state, self.base = state, base

    def _parts(self) -> tuple[int, int, int]:
        return id(self.state.rules), id(self.state.discovered), id(self.base)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())


@lru_cache(maxsize=4)
def _counts(known: _Known) -> Counter[Subtask]:
    return Counter(owners(known.state, known.base).values())


def with_those_of(state: Master, base: Manifest) -> Master:
    """Add the partitions of a base manifest: another driver may have discovered some after this one had listed."""
    here = {source: set(partitions) for source, partitions in known(state).items()}
    new = [
        SourcePosition(at.source, at.partition, FIRST_RECORD)
        for at in base.positions
        if at.source in here and at.partition not in here[at.source]
    ]
    return replace(state, discovered=(*state.discovered, *new))


def deployed(state: Master, base: Manifest | None) -> dict[Subtask, tuple[SourcePosition, ...]]:
    """Return where a generation with this base begins to read each partition, by the subtask that reads it."""
    base_positions = {(at.source, at.partition): replaced(at, subtask=None) for at in (base.positions if base else ())}
    found = {(at.source, at.partition): at for at in state.discovered}
    positions: dict[Subtask, list[SourcePosition]] = {}
    for place, owner in owners(state, base).items():
        at = base_positions.get(place) or found.get(place) or SourcePosition(*place, FIRST_RECORD)
        positions.setdefault(owner, []).append(at)
    return {subtask: tuple(each) for subtask, each in positions.items()}


def unassigned(state: Master, phase: Deployed) -> tuple[m.Assigned, ...]:
    """Return the partitions for the next trigger: those that neither deployment nor last completed manifest has."""
    if len(state.discovered) == phase.known:
        return ()
    kept = {(at.source, at.partition) for at in (phase.last.positions if phase.last else ())}
    new = [at for at in state.discovered[phase.known :] if (at.source, at.partition) not in kept]
    readers = owners(state, phase.base) if new else {}
    return tuple(m.Assigned(at, readers[at.source, at.partition]) for at in new)


def waits_for_nothing(state: Master, phase: Deployed) -> bool:
    """Return whether unassigned partitions are all that is left to read: they do not wait for the interval."""
    ended = all(hosted.heartbeat.ended for hosted in state.workers.values() if hosted.subtask is not None)
    return (ended or isinstance(state.ending, Finishing)) and bool(unassigned(state, phase))


def added(manifest: Manifest, before: Manifest | None) -> dict[str, tuple[int, ...]]:
    """Return the partitions that a manifest has and the one that it follows lacks; none for the first one."""
    if before is None:
        return {}
    kept, new = {(at.source, at.partition) for at in before.positions}, defaultdict[str, list[int]](list)
    for at in manifest.positions:
        if (at.source, at.partition) not in kept:
            new[at.source].append(at.partition)
    return {source: tuple(partitions) for source, partitions in new.items()}


# Listings


def begin_listing(state: Master, phase: Deployed, reason: Reason, now: float) -> Step:
    """Ask for a listing of all sources."""
    listing = Listing(state.listings + 1, reason, state.job.generation, now)
    state = replace(state, listing=listing, listings=listing.number)
    positions = phase.last.positions if phase.last else ()
    return state, [ListPartitions(listing.number, known(state), positions)]


def is_awaited(state: Master, number: int) -> bool:
    """Return whether this listing is the one under way."""
    return state.listing is not None and state.listing.number == number


def listed(state: Master, found: Sequence[SourcePosition], now: float) -> Master | HoldfastError:
    """Take the answer to the listing under way; return the error if these partitions end the run."""
    places, job = {(source, p) for source, partitions in known(state).items() for p in partitions}, state.rules.name
    if gone := sorted(places - {(at.source, at.partition) for at in found}):
        return no_longer_listed(job, gone)
    assert state.listing is not None
    new = [at for at in found if (at.source, at.partition) not in places and at.offset >= 0]
    if state.listing.reason == "interval" and not _takes_new(state):
        new = []  # it was made for a deleted partition
    if (refusal := refusal_to_grow(job, state.rules.fixed, new)) is not None:
        return refusal
    after = replace(state, listing=None, list_again_at=now, listed_at=now, list_error=None)
    return _taken(after, state.listing, new)


def unlisted(state: Master, event: SourcesUnlisted, at: Moment) -> Step:
    """Sources could not be listed: nothing is known of them; they are listed again a little later."""
    if not is_awaited(state, event.number):
        return state, []
    return replace(state, listing=None, list_again_at=at.now + LIST_AGAIN_S, list_error=event.error.report()), []


def _taken(state: Master, listing: Listing, new: Sequence[SourcePosition]) -> Master:
    once = state.rules.until is not None and not isinstance(state.ending, Finishing)
    if not once:
        state = replace(state, discovered=(*state.discovered, *new))
    if listing.reason == "finish" and isinstance(state.ending, Finishing):
        return replace(state, ending=replace(state.ending, listed=True))
    phase = state.phase
    if listing.reason != "end" or listing.generation != state.job.generation or (new and not once):
        return state
    match phase:
        case Running():
            return replace(state, phase=Exhausted(**phase.shared, complete=not new))
        case Halted():
            return replace(state, phase=replace(phase, complete=not new))
        case _:
            return state


def all_input_is_listed(state: Master, phase: Deployed) -> bool:
    """Return whether nothing more can appear in the sources, or nothing that the user wants to be read."""
    match state.ending:
        case Finishing(drop_unread=drop, listed=is_listed):
            # After a last barrier nothing more is read, so there is no other listing if its epoch is given up.
            return drop or is_listed or (isinstance(phase, Halted) and phase.complete)
        case _:
            return is_complete(phase)


def reason_to_list(state: Master, phase: Deployed, now: float, *, ended: bool) -> Reason | None:
    """Return why the sources are to be listed now; None if they are not, or a listing is under way.

    Args:
        ended: Whether every known partition is read to its end.
    """
    if isinstance(phase, Halted | Delivering) or state.listing is not None or now < state.list_again_at:
        return None
    match state.ending:
        case Finishing(drop_unread=False, listed=False):
            return "finish"
        case None if ended and isinstance(phase, Running):
            return "end"
        case None if state.rules.loses_partitions or (_takes_new(state) and state.rules.discover_every):
            return _interval(state, now)
        case Finishing(drop_unread=False) if state.rules.loses_partitions:
            return _interval(state, now)
        case _:
            return None


def _interval(state: Master, now: float) -> Reason | None:
    last, every = state.listed_at, state.rules.discover_every or LIST_LOSSES_EVERY_S
    return "interval" if last is None or now - last >= every else None


def _takes_new(state: Master) -> bool:
    """Return whether partitions that a listing finds at an interval are to be read in this run."""
    if isinstance(state.ending, Finishing):
        return not state.ending.listed
    return state.rules.until is None and state.rules.discover_every > 0


# Refusals, of a start too


def no_longer_listed(job: str, gone: Iterable[Place]) -> Damaged:
    """Return the error for partitions that the job reads and the source does not have."""
    source, partition = next(iter(gone))
    return Damaged(
        f"source {source!r} no longer has partition {partition}, which job {job!r} reads",
        not_done="no more records were read; the job is at its last checkpoint",
        next_step="restore the source as it was; or rewind to a checkpoint before the partition was added: "
        f"holdfast checkpoints list {job}",
        where=Where(job=job, source=source, partition=partition),
    )


def refusal_to_grow(job: str, fixed: Mapping[str, str], new: Collection[SourcePosition]) -> ConfigError | None:
    """Return the error if a new partition belongs to a source that must keep its partitions; see `Rules.fixed`."""
    for at in new:
        if (sink := fixed.get(at.source)) is not None:
            return ConfigError(
                f"source {at.source!r} has a new partition, {at.partition}, but sink {sink!r} is written immediately "
                "from it: every key must come from one partition, and a key may now come from two",
                not_done="no record of the new partition was read; the job is at its last checkpoint",
                next_step=f"write it at the commit: leave out partitioned_by (or the log's key) of source "
                f"{at.source!r}, and give the sink another name and another target",
                where=Where(job=job, source=at.source, partition=at.partition),
            )
    return None


PULSES_PER_WINDOW = 4
"""Looks in a window, so that a limit outlasts lost and late messages."""


# Alignment in event time


def hold_back(state: Master, now: float, every: float) -> Step:
    """Look how far the sources are read; return the limits, for the subtasks that they apply to.

    Args:
        every: Seconds between two looks.
    """
    phase = state.phase
    if not (isinstance(phase, Deployed) and state.rules.aligned and state.rules.parallelism > 1 and state.all_ready):
        return state, []
    partitions: dict[Place, PartitionProgress] = {}
    reader: dict[Place, Subtask] = {}
    for worker_entry in state.workers.values():
        if worker_entry.subtask is not None:
            mine = _reached(state, worker_entry)
            partitions |= mine
            reader |= dict.fromkeys(mine, worker_entry.subtask)
    window = max(ALIGNED_WITHIN_S, PULSES_PER_WINDOW * every)
    before = replace(phase.aligned, window=window)
    alignment = looked(before, Look(now, partitions), state.rules.aligned)
    state = replace(state, phase=replace(phase, aligned=alignment))
    effects = []
    for worker in state.assigned:
        subtask = state.workers[worker].subtask
        others = [(group, limit) for group, limit in alignment.limits.items() if reader[limit.slowest] != subtask]
        later_than = {source: limit.at_us for group, limit in others for source in group.sources}
        if alignment.limits or before.limits:  # an empty one ends those that were in force
            effects.append(Send(worker, m.HoldBack(state.job.generation, later_than, window)))
    return state, [*effects]


def _reached(state: Master, hosted: Hosted) -> dict[Place, PartitionProgress]:
    """Return how far a worker has read the partitions that this run has not read to their end, by its report."""
    progress, until = hosted.heartbeat.progress, state.rules.until
    boundless = {source for group in state.rules.aligned for source in group.boundless}
    ends = {(at.source, at.partition): at.offset for at in progress.ends}
    ended_places = {(at.source, at.partition) for at in progress.ended}
    progress_by_place: dict[Place, PartitionProgress] = {}
    for at in progress.positions:
        place = at.source, at.partition
        if place in ended_places or place not in ends:
            continue
        end = ends[place] if until is None else min(ends[place], until[at.source].get(at.partition, 0))
        left = ALWAYS_LEFT if at.source in boundless else max(0, end - max(at.offset, 0))
        progress_by_place[place] = PartitionProgress(at.offset, at.watermark, left)
    return progress_by_place
