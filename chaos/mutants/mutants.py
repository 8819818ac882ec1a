"""Wrong versions of the protocol, each the negation of a rule, which the simulator must catch.

A checker that never found anything proves nothing. A mutant swaps a function or two while its context is open; only
the simulator opens one.

Source: PROTOCOL, list of mutants; research section 2b, checker validation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.chaos.mutants import audit_mutants
from holdfast.chaos.mutants import rewind_mutants as wrong
from holdfast.chaos.mutants.mutation import Mutant, Right, Swap
from holdfast.chaos.mutants.protocol import (
    wrong_alignment,
    wrong_batches,
    wrong_committers,
    wrong_endings,
    wrong_evolutions,
    wrong_expiry,
    wrong_joins,
    wrong_memory,
    wrong_partitions,
    wrong_reads,
    wrong_recoveries,
    wrong_standbys,
    wrong_times,
    wrong_writes,
)
from holdfast.chaos.sim.jobs.tables import SharedTable
from holdfast.chaos.sim.ports import network
from holdfast.chaos.sim.ports.immediate import ProcessWrites
from holdfast.checkpoint import append, catalogue, coordinator, joblog
from holdfast.checkpoint.repository import Repository
from holdfast.errors import JobFailed
from holdfast.model import Epoch, Generation, Pending, Staged, Tag, Writer
from holdfast.runtime.driver import deployment, epochs, gathering, loop, master, repair
from holdfast.runtime.driver import requests as master_requests
from holdfast.runtime.driver.events import Event, Moment, Step
from holdfast.runtime.driver.state import Delivering, Deployed, Master
from holdfast.runtime.inspect import reading
from holdfast.runtime.operators.backlog import Backlog
from holdfast.runtime.operators.event_clock import EventClock
from holdfast.runtime.plan import fields, given_up, kept_state
from holdfast.runtime.rows.dead_letters import Letters
from holdfast.runtime.sources.event_time import EventTime
from holdfast.runtime.time import watermark
from holdfast.runtime.wire import messages
from holdfast.runtime.worker import compaction, deliveries, immediate, seal, subtask, topic
from holdfast.runtime.worker import protocol as worker
from holdfast.runtime.worker.local.kept import LocalCopies
from holdfast.runtime.worker.loop import WorkerLoop
from holdfast.sinks.contract.target import AlreadyDelivered, Delivered, EpochOutput, Outcome, already
from holdfast.sinks.memory.immediate import ImmediateTable
from holdfast.sinks.protocol import delivery
from holdfast.state import merged
from holdfast.state.local.image import Wanted
from holdfast.state.store import Identity, StateStore
from holdfast.state.tables.table import StateTable

# State and output of unfinished epochs


def _freezes_only_new(right: Right) -> Right:
    def freeze(table: StateTable, epoch: Epoch, committed_through: Epoch) -> None:
        table.commit(committed_through)
        table._intervals, table._expiries._closed = [], []
        right(table, epoch, committed_through)

    return freeze


def _stages_only_new(_: Right) -> Right:
    def staged_through(state: worker.Worker, epoch: Epoch) -> dict[str, Staged]:
        return dict(state.sealed[epoch].staged) if epoch in state.sealed else {}

    return staged_through


def _acks_what_is_sealed(_: Right) -> Right:
    def output_sealed(state: worker.Worker, epoch: Epoch, sealed: worker.Sealed) -> tuple[worker.Worker, list[Any]]:
        state = replace(state, sealing=state.sealing - {epoch}, sealed={**state.sealed, epoch: sealed})
        staged = worker._staged_through(state, epoch)
        return state, [worker.SendAck(epoch, sealed.segment, staged, state.positions.get(epoch, ()))]

    return output_sealed


def _closes_stages_late(_: Right) -> Right:
    return lambda run, index, epoch: None


def _takes_open_stages(_: Right) -> Right:
    def take_stages(run: subtask.SubtaskRun, epoch: Epoch) -> dict[str, Any]:
        taken, run._stages = run._stages, {spec.name: run._new_stage(spec.name) for spec in run._plan.sinks}
        return taken

    return take_stages


def _keeps_stages(_: Right) -> Right:
    return lambda run, epoch: dict(run._closed.get(epoch, {}))


def _rolls_back_too_far(_: Right) -> Right:
    def roll_back(store: StateStore, base: Epoch, identity: Identity | None = None) -> bool:
        tables = store._tables.values()
        if not all(table.holds(base) for table in tables):
            return False
        for table in tables:
            table.roll_back(table.committed_through)
            table.committed_through = base
        store._committed = base
        store.identity = identity or store.identity
        return True

    return roll_back


def _leaves_batches_half_done(right: Right) -> Right:
    def work_on(backlog: Backlog, work: Any) -> None:
        try:
            right(backlog, work)
        except JobFailed:
            backlog._stack[:] = [each for each in backlog._stack if each is not work]

    return work_on


def _begins_one_too_early(right: Right) -> Right:
    return lambda job: Epoch(max(right(job) - 1, 1))


def _drops_if_full(right: Right) -> Right:
    def queue(state: Any, pending: Pending) -> Any:
        return (state, []) if delivery.is_full(state) else right(state, pending)

    return queue


def _never_midway(_: Right) -> Right:
    return lambda run: False


def _forgets_what_waits(right: Right) -> Right:
    def once_through(run: subtask.SubtaskRun, index: int, then: Callable[[], None]) -> None:
        right(run, index, then)
        run._fragments[index].backlog._stack.clear()

    return once_through


# Job log and generations


def _goes_on_overtaken(right: Right) -> Right:
    def occupied(state: append.InFlight, found: joblog.Record) -> tuple[append.Appender, list[append.Effect]]:
        after, effects = right(state, found)
        if not isinstance(after, append.OvertakenDriver):
            return after, effects
        record = append._record(state.owner, after.job, state.draft, state.record.at)
        return append.InFlight(state.owner, after.job, record, state.draft), [append.Create(record)]

    return occupied


def _drafts_once(right: Right) -> Right:
    def append_(state: append.Quiet, draft: append.Draft, at: int) -> tuple[append.Appender, list[append.Effect]]:
        assert state.job is not None
        body = draft(state.job)
        result: tuple[append.Appender, list[append.Effect]] = right(state, lambda _job: body, at)
        return result

    return append_


def _abandons_in_doubt(right: Right) -> Right:
    def turn(state: Master, phase: Deployed, at: Moment) -> Step:
        deciding, log = phase.epochs, state.log
        if not isinstance(deciding, coordinator.Deciding) or not isinstance(log, append.InFlight):
            step: Step = right(state, phase, at)
            return step
        if at.now - deciding.started <= state.rules.epoch_deadline:
            return state, []
        barrier = deciding.barrier
        idle = coordinator.Idle(deciding.parallelism, barrier.committed_through, Epoch(barrier.epoch + 1), 1)
        quiet = append.Quiet(log.owner, log.job)
        return replace(state, log=quiet, phase=replace(phase, epochs=idle, closing=None)), []

    return turn


def _counts_on(_: Right) -> Right:
    return lambda job: Epoch(job.base_epoch + 1)


def _hears_the_old(right: Right) -> Right:
    def step(state: Master, event: Event, at: Moment) -> Step:
        if isinstance(event, messages.Ack) and isinstance(state.phase, Deployed):
            event = msgspec.structs.replace(event, generation=state.job.generation)
        step: Step = right(state, event, at)
        return step

    return step


def _forgets_pending(right: Right) -> Right:
    return lambda handles, positions, pending, *rest: right(handles, positions, (), *rest)


def _finishes_early(right: Right) -> Right:
    def finish(state: Master, phase: Delivering, at: Moment) -> Step:
        assert phase.last is not None
        last = msgspec.structs.replace(phase.last, pending=())
        step: Step = right(state, replace(phase, last=last), at)
        return step

    return finish


# Retention


def _takes_all_for_decided(_: Right) -> Right:
    return lambda job, path: True


def _expires_savepoints(_: Right) -> Right:
    return lambda job, epoch, through: epoch > through


def _starts_in_holes(_: Right) -> Right:
    return lambda repository, record: None


# Channels


def _takes_any_connection(_: Right) -> Right:
    return lambda hello, request: True


def _never_pauses(_: Right) -> Right:
    return lambda run, channel: None


# Delivery


def _newest_first(right: Right) -> Right:
    def go_on(
        writer: Writer, floor: Tag | None, queue: tuple[Pending, ...], failures: int, effects: list[Any]
    ) -> tuple[delivery.Delivery, list[delivery.Effect]]:
        newest = tuple(sorted(queue, key=lambda pending: pending.tag, reverse=True))
        result: tuple[delivery.Delivery, list[delivery.Effect]] = right(writer, floor, newest, failures, effects)
        return result

    return go_on


def _publish(table: SharedTable, job_uuid: str, writer: Writer, epochs: Sequence[EpochOutput], *_: Any) -> Outcome:
    tagged_rows = [(epoch.tag, [row for batch in epoch.batches for row in batch.to_pylist()]) for epoch in epochs]
    table.fault("before_begin")
    table.publish(job_uuid, writer, tagged_rows)
    table._tags[job_uuid, writer] = epochs[-1].tag
    return Delivered(sum(len(rows) for _, rows in tagged_rows))


def _guards_by_generation(_: Right) -> Right:
    def deliver(table: SharedTable, job_uuid: str, writer: Writer, epochs: Sequence[EpochOutput], *_: Any) -> Outcome:
        if table.generation < table.newest.get(writer, Generation(0)):
            return AlreadyDelivered(epochs[-1].tag)
        table.newest[writer] = table.generation
        return _publish(table, job_uuid, writer, epochs)

    return deliver


def _guards_by_last(_: Right) -> Right:
    def deliver(table: SharedTable, job_uuid: str, writer: Writer, epochs: Sequence[EpochOutput], *_: Any) -> Outcome:
        standing = table.delivered(job_uuid, writer)
        if standing is not None and standing >= epochs[-1].tag:
            return already("the table", epochs[-1].tag, standing)
        return _publish(table, job_uuid, writer, epochs)

    return deliver


MUTANTS = (
    Mutant("unfinished-epoch-drops-its-delta", "P8", "a freeze holds only what changed since the last barrier",
           (Swap(StateTable, "freeze", _freezes_only_new),)),
    Mutant("unfinished-epoch-drops-its-output", "P8", "an ack names only its own epoch's output",
           (Swap(worker, "_staged_through", _stages_only_new),)),
    Mutant("fate-unknown-at-freeze", "P8", "an epoch that was given up counts as committed at the next freeze",
           (Swap(coordinator, "deadline_passed", wrong_recoveries.counts_what_it_gave_up),)),
    Mutant("values-of-the-last-freeze", "P8, DESIGN 5", "a segment holds the state at the last operator's freeze",
           (Swap(StateStore, "deltas", wrong_endings.seals_what_is_there_now),)),
    Mutant("ack-before-upload", "P8, DESIGN 4.4", "segments and staged parts are stored after the ack",
           (Swap(seal.SealJob, "run", wrong_writes.seals_hastily),)),
    Mutant("fence-skipped", "P6", "an overtaken driver keeps appending",
           (Swap(append, "occupied", _goes_on_overtaken),)),
    Mutant("sink-guards-by-generation", "P17", "a target refuses older generations only",
           (Swap(SharedTable, "deliver_together", _guards_by_generation),)),
    Mutant("stale-batches", "P2", "channels are not bound to a generation",
           (Swap(network, "belongs", _takes_any_connection),)),
    Mutant("abandon-while-in-doubt", "P4", "an epoch is given up although its record was sent",
           (Swap(master, "turn", _abandons_in_doubt),)),
    Mutant("base-before-refold", "P5", "a generation's base is not recomputed after a conflict",
           (Swap(append, "append", _drafts_once),)),
    Mutant("survivor-drops-committed-delta", "P10", "a rollback forgets what was frozen for the base itself",
           (Swap(StateStore, "roll_back", _rolls_back_too_far),)),
    Mutant("stale-ack-reused-number", "P2", "epoch numbers continue from the base, and acks of any generation count",
           (Swap(joblog, "next_first_epoch", _counts_on), Swap(master, "step", _hears_the_old))),
    Mutant("commit-before-manifest", "DESIGN 4.5", "the record is appended before its manifest is stored",
           (Swap(Repository, "store_manifest", wrong_writes.stores_manifest_hastily),)),
    Mutant("check-then-write", "P17", "a delivery reads the tag first and writes without a guard",
           (Swap(SharedTable, "deliver_together", lambda _: _publish),)),
    Mutant("several-guarded-by-last", "P17", "a delivery of several epochs compares the tag with the last of them",
           (Swap(SharedTable, "deliver_together", _guards_by_last),)),
    Mutant("out-of-order-delivery", "P18", "the newest epoch is delivered first",
           (Swap(delivery, "_go_on", _newest_first),)),
    Mutant("pending-not-carried", "P18", "a manifest names only its own epoch's output",
           (Swap(deployment, "follow", _forgets_pending),)),
    Mutant("finished-early", "P13", "Finished is appended before the last epoch is delivered",
           (Swap(epochs, "end_if_delivered", _finishes_early),)),
    Mutant("tags-forgotten-at-the-end", "P17", "the driver that appends Finished removes the tags from the targets",
           (Swap(Repository, "create_record", wrong_endings.forgets_tags),)),
    Mutant("savepoint-forgotten", "P13", "a savepoint is accepted and never taken",
           (Swap(loop, "carry_out", wrong_endings.forgets_savepoints),)),
    Mutant("stop-forgotten", "P13", "a stop is accepted and the run continues",
           (Swap(master_requests, "stop", wrong_endings.forgets_to_stop),), needs="ends"),
    Mutant("finish-leaves-a-backlog", "P13", "a job that is asked to finish reads nothing more of its input",
           (Swap(subtask.SubtaskRun, "end_input", wrong_endings.gives_up_the_backlog),), needs="ends"),
    Mutant("rewind-forgotten", "P6", "a rewind is accepted and never begun",
           (Swap(master_requests, "accept_rewind", wrong_endings.forgets_to_rewind),), needs="rewinds"),
    Mutant("old-writers-last", "P20", "after a rescale new writers do not wait for the output of older ones",
           (Swap(epochs, "older_output_is_left", wrong_recoveries.waits_for_no_older_writer),), needs="rescales"),
    Mutant("committer-drops-a-writer", "P18", "one commit for all writers leaves out the last of them",
           (Swap(deployment, "gathered", wrong_committers.drops_the_last_writer),), needs="hands_over"),
    Mutant("committer-overtakes-older-writers", "P20", "a committer does not wait for output that writers left",
           (Swap(deployment, "left_by_others", wrong_committers.waits_for_no_other_writers),), needs="switches"),
    Mutant("handed-over-with-a-gap", "P18", "a committer is handed the newest epoch alone",
           (Swap(epochs, "hand_over", wrong_committers.hands_over_the_newest),), needs="hands_over"),
    Mutant("sweep-of-completed-uploads", "P16", "a start deletes the uploads of every epoch before it",
           (Swap(deliveries, "_sweep", wrong_committers.sweeps_all_before),), needs="hands_over"),
    Mutant("uuid-missing-from-tag", "P1", "tags are kept by sink and writer alone",
           (Swap(SharedTable, "delivered", wrong_writes.without_uuid),
            Swap(SharedTable, "deliver_together", wrong_writes.without_uuid))),
    Mutant("barrier-does-not-pause", "DESIGN 4.3", "a channel whose barrier came early is not paused",
           (Swap(subtask.SubtaskRun, "pause", _never_pauses),)),
    Mutant("output-closed-with-last-fragment", "DESIGN 4.4", "a sink's epoch ends when the last fragment closes",
           (Swap(subtask.SubtaskRun, "_close_stages", _closes_stages_late),
            Swap(subtask.SubtaskRun, "take_stages", _takes_open_stages))),
    Mutant("ack-overtakes-left-over-output", "P8", "an epoch is acked while an earlier one's output is not durable",
           (Swap(worker, "output_sealed", _acks_what_is_sealed),)),
    Mutant("sweep-of-uploads-in-flight", "P16", "a sweep deletes every object that no manifest names yet",
           (Swap(catalogue, "_is_decided", _takes_all_for_decided),)),
    Mutant("sweep-counts-the-latest", "P16", "a sweep keeps only what the newest checkpoint names",
           (Swap(catalogue.ObjectCatalogue, "expire", wrong_endings.counts_the_latest_alone),)),
    Mutant("sweep-of-whole-folders", "P16", "a bulk deletion takes the folder of each object, with objects still named",
           (Swap(Repository, "delete_all", wrong_endings.deletes_whole_folders),)),
    Mutant("sweep-of-nothing", "P16", "a sweep finds nothing to delete",
           (Swap(catalogue.ObjectCatalogue, "expire", wrong_endings.finds_nothing),
            Swap(catalogue.ObjectCatalogue, "garbage", wrong_endings.finds_nothing))),
    Mutant("sweep-of-savepoints", "P16", "expiry also removes the savepoints before the expired checkpoint",
           (Swap(joblog, "_outlives", _expires_savepoints),)),
    Mutant("watermark-reset-in-windows", "P11", "a restored window operator starts from no watermark",
           (Swap(EventClock, "_read", wrong_times.starts_without_clock),), needs="windowing"),
    Mutant("watermark-reset-in-sources", "P11", "a restored source partition starts from no watermark",
           (Swap(EventTime, "__init__", wrong_times.starts_without_watermarks),), needs="windowing"),
    Mutant("watermark-before-its-rows", "P11", "a watermark is sent before the rows that raised it",
           (Swap(subtask.SubtaskRun, "_emit", wrong_times.tells_time_before_rows),), needs="windowing"),
    Mutant("watermark-of-the-fastest", "P11", "time follows the fastest partition or channel, not the slowest",
           (Swap(watermark, "reported", wrong_times.closes_at_the_largest),), needs="windowing"),
    *(Mutant(name, rules, does, (Swap(*swap),), needs="windowing")
      for name, rules, does, swap in wrong_expiry.VERSIONS),
    *(Mutant(name, rules, does, (Swap(*swap),), needs=needs)
      for name, rules, does, swap, needs in wrong_times.VERSIONS),
    *(Mutant(name, rules, does, (Swap(*swap),), "joins")
      for name, rules, does, swap in wrong_joins.VERSIONS),
    *(Mutant(name, rules, does, tuple(Swap(*swap) for swap in swaps), needs="grows")
      for name, rules, does, swaps in wrong_partitions.VERSIONS),
    *(Mutant(name, rules, does, tuple(Swap(*swap) for swap in swaps), "aligns")
      for name, rules, does, swaps in wrong_alignment.VERSIONS),
    *(Mutant(name, rules, does, tuple(Swap(*swap) for swap in swaps), "batched")
      for name, rules, does, *swaps in wrong_batches.VERSIONS),
    *(Mutant(name, rules, does, (Swap(*swap),), "standbys")
      for name, rules, does, swap in wrong_standbys.VERSIONS),
    Mutant("stages-kept", "P8, DESIGN 5", "a sink's collected output stays in memory after it is durable",
           (Swap(subtask.SubtaskRun, "take_stages", _keeps_stages),)),
    Mutant("letters-kept", "P8, DESIGN 6", "dead letters of an epoch are staged again with the next one",
           (Swap(Letters, "take", wrong_writes.tells_letters_again),), needs="letters"),
    Mutant("spans-ignored", "P14, DESIGN 5", "a restore takes a whole piece, whichever of its key groups count",
           (Swap(topic, "pieces", wrong_reads.takes_whole_pieces),), needs="regrows"),
    Mutant("reader-takes-the-oldest", "P8", "a reader of stored state shows the oldest row of a key",
           (Swap(reading, "merged", wrong_reads.reads_older_rows_last),)),
    Mutant("reader-ignores-ranges", "P8", "a reader of stored state shows windows that a range erased",
           (Swap(merged, "_erased", wrong_reads.reads_without_ranges),), needs="windowing"),
    Mutant("start-in-a-pruned-hole", "P7", "a driver whose start fell into a hole of the log runs the job",
           (Swap(Repository, "_refuse_hole", _starts_in_holes),)),
    Mutant("rewound-without-generation", "P6", "a rewind continues in the generation of the previous owner",
           (Swap(append, "_record", wrong.keeps_generation),
            Swap(joblog, "_fold_rewind", wrong.folds_into_generation)), needs="rewinds"),
    Mutant("repair-before-fence", "P21", "a target removes rows in one transaction and moves the tags in the next",
           (Swap(SharedTable, "repair", wrong.fences_afterwards),), needs="rewinds"),
    Mutant("epoch-without-timeline", "P17", "a target compares epochs without their timeline",
           (Swap(SharedTable, "deliver_together", wrong.compares_epochs_alone),), needs="rewinds"),
    Mutant("repair-not-made-up-for", "P21", "a start after an interrupted rewind repairs nothing",
           (Swap(joblog.Job, "repair_due", wrong.repairs_once),), needs="rewinds"),
    Mutant("deployed-unrepaired", "P21", "a rewind continues without repairing the targets",
           (Swap(repair, "repair_one", wrong.deploys_unrepaired),), needs="rewinds"),
    Mutant("delivery-outlives-rewind", "P21", "a worker's deliveries continue across a rewind",
           (Swap(deliveries.Deliveries, "deploy", wrong.keeps_machines),), needs="rewinds"),
    Mutant("image-lacks-a-segment", "P14", "an image is said to be as of a base whose last segment was not read",
           (Swap(LocalCopies, "renew", wrong_recoveries.leaves_a_segment_out),), needs="folders"),
    Mutant("image-of-other-key-groups", "P14", "a left-over image is used whatever key groups it holds",
           (Swap(Wanted, "has_key_groups", wrong_writes.takes_any_range),)),
    Mutant("immediate-check-then-write", "P22", "a write checks the fence before its transaction, not in it",
           (Swap(ProcessWrites, "write", wrong_writes.looks_before_it_writes),
            Swap(ImmediateTable, "fence_holds", wrong_writes.trusts)), needs="immediate"),
    Mutant("immediate-write-without-tags", "P22", "an immediate write applies whatever tag its key has",
           (Swap(ImmediateTable, "is_newer", wrong_writes.applies_anything),), needs="immediate"),
    Mutant("ack-before-immediate-writes", "P22, DESIGN 4.4", "an epoch is acked while its rows are not written yet",
           (Swap(immediate.ImmediateWrites, "when_in", wrong_writes.waits_for_nothing),), needs="immediate"),
    Mutant("digests-dropped-on-merge-forward", "P8", "an ack reports only its own epoch's digests",
           (Swap(worker, "_audit_through", audit_mutants.tells_only_new),)),
    Mutant("abandoned-epoch-counted-twice", "P10", "digests from before a rollback are reported with later ones",
           (Swap(WorkerLoop, "_deploy", audit_mutants.keeps_counts),)),
    Mutant("committed-epoch-counted-twice", "P8", "digests of a committed epoch are reported again in the next",
           (Swap(worker, "committed", audit_mutants.tells_committed_again),)),
    Mutant("restored-unverified", "P16, DESIGN 5", "a restore accepts the bytes of a segment unverified",
           (Swap(compaction, "open_verified", wrong_reads.trusts_every_byte),), needs="reads_damaged"),
    Mutant("record-read-unverified", "DESIGN 13", "a record of the job log is accepted whatever its hash",
           (Swap(joblog, "fits_hash", wrong_reads.trusts_every_record),), needs="damages_records"),
    Mutant("owner-token-ignored", "P4", "a taken record number always counts as another driver's",
           (Swap(Repository, "create_record", wrong_reads.takes_taken_for_lost),)),
    Mutant("failed-batch-half-kept", "DESIGN 4.2", "a batch stays half done where a function failed",
           (Swap(Backlog, "_work_on", _leaves_batches_half_done),), needs="functions"),
    Mutant("epoch-closed-midway", "P8, DESIGN 4.2", "a barrier overtakes rows that wait for a slow function",
           (Swap(subtask.SubtaskRun, "midway", _never_midway),), needs="slow_functions"),
    Mutant("first-epoch-used-before", "P2", "a generation begins with a number that the one before may have used",
           (Swap(joblog, "next_first_epoch", _begins_one_too_early),), needs="small_bounds"),
    Mutant("full-queue-skips-output", "P18", "a writer with a full queue drops the next committed output",
           (Swap(delivery, "_queue", _drops_if_full),), needs="small_bounds"),
    Mutant("waiting-rows-forgotten", "P8, DESIGN 4.2", "rows left over from a turn are never processed",
           (Swap(subtask.SubtaskRun, "_once_through", _forgets_what_waits),), needs="slow_functions"),
    Mutant("field-id-reused", "decisions/0038", "a column of state gets the id of one that was removed",
           (Swap(fields, "free_id", wrong_evolutions.reuses_ids),), needs="evolves"),
    Mutant("image-of-other-columns", "P14, decisions/0038", "an image is used whatever columns its rows have",
           (Swap(Wanted, "has_columns", wrong_evolutions.reads_any_image),), needs="evolves"),
    Mutant("base-of-other-code", "P5, decisions/0038",
           "a checkpoint is read with ids that were computed from another one",
           (Swap(gathering, "_unchecked_state", wrong_evolutions.takes_any_base),), needs="evolves"),
    Mutant("state-given-up-again", "decisions/0046", "every start gives up state, also one that repeats the command",
           (Swap(given_up, "_carried_out", wrong_evolutions.drops_at_every_start),), needs="drops"),
    Mutant("number-reused-after-drop", "decisions/0046",
           "the new state of an operator has the number of the former one",
           (Swap(kept_state, "_reserved", wrong_evolutions.reuses_numbers),), needs="drops"),
    Mutant("early-barrier-never-asked", "decisions/0039", "a worker full of changes waits for the next barrier",
           (Swap(WorkerLoop, "_wants_barrier", wrong_memory.never_asks),), needs="budgeted"),
    Mutant("abandoned-changes-forgotten", "P8, decisions/0039",
           "no barrier is asked for the changes of abandoned epochs",
           (Swap(WorkerLoop, "_wants_barrier", wrong_memory.asks_for_new_changes_only),), needs="budgeted"),
    Mutant("sources-stopped-for-good", "decisions/0039", "sources that waited for memory are never read again",
           (Swap(WorkerLoop, "_memory_is_full", wrong_memory.stops_for_good),), needs="budgeted"),
    Mutant("full-disk-asked-once", "decisions/0039", "a worker whose disk was full does not try it again",
           (Swap(StateStore, "settle", wrong_memory.asks_the_disk_once),), needs="budgeted"),
    Mutant("frozen-record-overwritten", "P8, decisions/0043", "a change overwrites a frozen record before it is copied",
           (Swap(StateTable, "fold", wrong_memory.copies_what_was_changed),
            Swap(StateTable, "fold_at", wrong_memory.copies_what_was_changed)), needs="copies_slowly"),
)  # fmt: skip
"""The mutants that the tests must catch; each names the rule that it negates."""
