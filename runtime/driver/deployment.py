"""Values that the master derives from its state: deployments, the next manifest, the right to write to targets.

Pure: no clock, thread or I/O.
Source: DESIGN sections 3 to 5; PROTOCOL P1, P8, P17, P18, P20; docs/decisions/0021-owned-targets.md,
0057-what-owners-completed.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from holdfast.checkpoint import coordinator, joblog, recovery
from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.committing import COMMITTER, gathered, left_by_others
from holdfast.checkpoint.joblog import Job
from holdfast.checkpoint.manifest import Confirmed, Manifest, follow
from holdfast.checkpoint.timeline import lineage_of
from holdfast.frozen import changed, replace
from holdfast.model import CHANGELOG, NO_EPOCH, Epoch, ObjectRef, SnapshotHandle, SourcePosition, Subtask, Tag, WorkerId
from holdfast.runtime.driver import killing
from holdfast.runtime.driver.killing import reads_alone
from holdfast.runtime.driver.partitions import added, counts_of, deployed, unassigned
from holdfast.runtime.driver.state import Deployed, Master
from holdfast.runtime.wire import messages as m
from holdfast.sinks.contract.owners import Claim


def older_output_is_left(state: Master, base: Manifest | None) -> bool:
    """P20: after a rescale no epoch is committed, and so delivered, before all output of old writers is delivered.

    The same holds for sinks that have one committer only since this run, or had one before it.
    """
    if base is None:
        return False
    older = base.pending if _moved(state, base) else left_by_others(base, state.rules.committed_once)
    return any(item.writer not in state.confirmed or state.confirmed[item.writer] < item.tag for item in older)


def next_manifest(state: Master, decided: coordinator.Decide) -> Manifest:
    assert isinstance(state.phase, Deployed) and state.phase.closing is not None
    rules, job, last = state.rules, state.job, state.phase.last
    header = Manifest(
        job.uuid,
        job.generation,
        job.timeline,
        decided.barrier.epoch,
        job.base_epoch,
        rules.parallelism,
        job.key_groups,
        (),
        (),
        (),
        (),
        rules.operators,
        shape=msgspec.UNSET if rules.shape is None else rules.shape,
        changelog=msgspec.UNSET if rules.changelog is None else dict(rules.changelog),
        committed_once=rules.committed_once or msgspec.UNSET,
    )
    handles = recovery.handles_for(last, rules.key_ranges) if last is None or _moved(state, last) else last.state
    new = (msgspec.structs.replace(each.position, subtask=each.subtask) for each in state.phase.closing.assigned)
    positions = (*(last.positions if last else ()), *new)
    before = last.audited if last else None
    parts = gathered(decided.parts, rules.committed_once)
    return follow(handles, positions, last.pending if last else (), state.confirmed, header, parts, before)


def completion(phase: Deployed, manifest: Manifest, ref: ObjectRef, duration_ms: int) -> joblog.CheckpointCompleted:
    """Return the record that commits this manifest."""
    known = {piece.object.path for handle in (phase.last.state if phase.last else ()) for piece in pieces(handle)}
    sizes = {piece.object.path: piece.object.size for handle in manifest.state for piece in pieces(handle)}
    bytes_new = sum(size for path, size in sizes.items() if path not in known)
    new, name = added(manifest, phase.last), None if phase.closing is None else phase.closing.savepoint
    return joblog.CheckpointCompleted(
        manifest.epoch, manifest.follows, ref, duration_ms, bytes_new, sum(sizes.values()), name, new
    )


def _moved(state: Master, last: Manifest | None) -> bool:
    return last is None or tuple(handle.key_groups for handle in last.state) != state.rules.key_ranges


def deployments(state: Master, base: Manifest | None, workers: Iterable[WorkerId]) -> list[tuple[WorkerId, m.Deploy]]:
    """Return each of these workers with its deployment. The base is distributed once, not per worker."""
    rules, job = state.rules, state.job
    peers = tuple(m.Peer(h.subtask, w, h.address) for w, h in state.workers.items() if h.subtask is not None)
    handles = recovery.handles_for(base, rules.key_ranges)
    positions, pending = deployed(state, base), recovery.pending_by_subtask(base, rules.parallelism)
    confirmed_tags: dict[Subtask, list[Confirmed]] = {}
    for writer, tag in state.confirmed.items():
        confirmed_tags.setdefault(Subtask(writer.subtask % rules.parallelism), []).append(Confirmed(writer, tag))
    cuts, claim, topic = recent_cuts(job), claim_of(job, rules.adopted), topic_state(state, base)
    deploys = []
    for worker in workers:
        subtask = state.workers[worker].subtask
        assert subtask is not None
        mine = positions.get(subtask, ())
        deploy = m.Deploy(
            job.uuid,
            job.generation,
            job.timeline,
            job.first_epoch,
            job.base_epoch,
            m.ActiveRole(subtask),
            peers,
            handles[subtask],
            mine,
            pending.get(subtask, ()),
            tuple(confirmed_tags.get(subtask, ())),
            _until(state, mine),
            local_bases(cuts, handles[subtask]),
            rules.audit,
            claim,
            topic,
            killing.suspects(state.kills, subtask),
            reads_alone(state, subtask),
            rules.record_order,
        )
        deploys.append((worker, deploy))
    return deploys


def topic_state(state: Master, base: Manifest | None) -> m.TopicState | None:
    """Return the facts about the changelog's topic for a restore of this base; None if there is no topic."""
    if state.rules.changelog is None:
        return None
    confirmed = () if base is None else base.confirmed
    delivered = {done.writer.subtask: done.tag.epoch for done in confirmed if done.writer.sink == CHANGELOG}
    committer = COMMITTER if CHANGELOG in state.rules.committed_once else None
    return m.TopicState(lineage_of(state.job.rewinds), delivered, committer)


def _until(state: Master, positions: tuple[SourcePosition, ...]) -> tuple[SourcePosition, ...]:
    """Return where reading of these partitions ends; nothing if it does not end."""
    until = state.rules.until
    if until is None:
        return ()
    return tuple(SourcePosition(at.source, at.partition, until[at.source].get(at.partition, 0)) for at in positions)


def recent_cuts(job: joblog.Job) -> dict[Epoch, str]:
    """Return the newest completed epochs with the hashes of their manifests."""
    kept = {each.body.epoch: each.body.manifest.sha256 for each in job.completed[-joblog.RECENT_KEPT :]}
    return {**kept, **dict(job.recent)}


def local_bases(cuts: Mapping[Epoch, str], handle: SnapshotHandle) -> dict[Epoch, str]:
    """P14: the epochs of which local state of this subtask may be, by hash; none below the handle's own base."""
    floor = max((piece.epoch for piece in pieces(handle) if piece.follows == NO_EPOCH), default=NO_EPOCH)
    return {epoch: manifest for epoch, manifest in cuts.items() if epoch >= floor}


def all_ended(state: Master) -> bool:
    """Return whether every known partition is read to its end."""
    return all_report(state, lambda heartbeat: heartbeat.ended)


def all_report(state: Master, said: Callable[[m.Heartbeat], bool]) -> bool:
    """Return whether every subtask reports this for all its partitions: a heartbeat may precede an assignment."""
    true = [h for h in state.workers.values() if h.subtask is not None and said(h.heartbeat)]
    if len(true) < state.rules.parallelism:
        return False
    counts = counts_of(state)
    return all(h.heartbeat.partitions == counts[h.subtask] for h in true if h.subtask is not None)


def nothing_new(state: Master, epochs: coordinator.Coordinator) -> bool:
    """Return whether every subtask reports nothing new since the last epoch, that epoch is completed, and no partition
    waits for a trigger.

    An epoch that was given up is not completed: its frozen state and staged output are owed to the next one. A
    generation always closes its first epoch, which records the outcome of older ones.
    """
    phase = state.deployed
    if not isinstance(epochs, coordinator.Idle) or phase is None or unassigned(state, phase):
        return False
    quiet = [hosted.heartbeat.quiet for hosted in state.workers.values() if hosted.subtask is not None]
    return len(quiet) == state.rules.parallelism and set(quiet) == {epochs.committed_through} != {NO_EPOCH}


def confirm(state: Master, delivered: tuple[Confirmed, ...]) -> Master:
    """Remember the newest tag of every writer."""
    newest_tags = state.confirmed
    for done in delivered:
        known = newest_tags.get(done.writer)
        if known is None or known < done.tag:
            newest_tags = changed(newest_tags, done.writer, done.tag)
    return replace(state, confirmed=newest_tags)


def claim_of(job: Job, adopted: Collection[str] = (), rewind_to: Epoch | None = None) -> Claim:
    """Return the claim of the job's newest owner.

    Args:
        adopted: Owners of other histories. Nothing that they delivered later than this job had completed at the start
            of its owner is taken for its own.
        rewind_to: The target is repaired to this epoch under the claim; None: as far as the log shows that it will be.
    """
    undone_after = job.base_epoch if rewind_to is None and job.repair_due else rewind_to
    theirs = job.before if rewind_to is None else Tag(job.timeline, rewind_to)
    known = {**dict.fromkeys(adopted, theirs), **job.reaches}
    return Claim(job.owner, job.generation, known, undone_after, tuple(adopted))
