"""The rules that hold in every run, checked during the run and at its end.

The checkers read only data that an outsider can read: the objects, the rows and tags of the targets, the
epochs that drivers trigger. They interpret the job log and the manifests a second time, as plain
JSON, and compare with an oracle that shares no code with the runtime.

    I1, I2  output equals the oracle: no loss, no duplicate, in the order of each partition
    I5      a reader of a writer's rows sees, at any time, one completed epoch in full
    I6      epochs, generations and tags only grow; an epoch number belongs to one generation
    I7      an overtaken driver appends nothing
    growth  a worker keeps nothing for an epoch that it knows to be committed
    I8      every object that a manifest names exists, with the right size and hash; a sweep leaves no other
    I9      every retained checkpoint restores to the oracle's answer for its offsets, and readers get it (inspected.py)
    P11     time never goes back, and a window is emitted no earlier and no later than the offsets allow (clocks.py)
    P12     a partition is read by one subtask, from its first record, and is in the manifest (assigned.py)
    I12     a run fails only because an object is damaged or a function failed, and names it
    P26     an epoch in microbatch mode consists of one attempt of each task (attempts.py)
    0048    partitions wait for those that are behind in event time, and for no other reason (aligned.py)
    P21     after a repair a target shows exactly the base of the rewind, and no older timeline writes to it again

Source: DESIGN section 10; research section 2b (I1 to I15); PROTOCOL P2, P6, P13, P17, P18, P21.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.chaos.sim.checks.accepted import AcceptedRequests
from holdfast.chaos.sim.checks.aligned import AlignmentCheck
from holdfast.chaos.sim.checks.assigned import AssignmentCheck
from holdfast.chaos.sim.checks.attempts import Attempts
from holdfast.chaos.sim.checks.audited import Audited
from holdfast.chaos.sim.checks.branched import Branched
from holdfast.chaos.sim.checks.clocks import NEVER, Channel
from holdfast.chaos.sim.checks.finishing import FinishRequests
from holdfast.chaos.sim.checks.history import History, plain_manifest
from holdfast.chaos.sim.checks.inspected import Inspected
from holdfast.chaos.sim.checks.lasts import Lasts
from holdfast.chaos.sim.checks.visible import AppendCheck, Upserted
from holdfast.chaos.sim.checks.windowed import SECOND_US, WindowCheck
from holdfast.chaos.sim.faults.schedule import EventJournal
from holdfast.chaos.sim.jobs import dropping, evolving, oracle
from holdfast.chaos.sim.jobs.arriving import batches_of
from holdfast.chaos.sim.jobs.branches.contract import Watched
from holdfast.chaos.sim.jobs.ledger import (
    ACCOUNTS,
    BALANCE,
    GATHERED,
    LEDGER_OPERATOR,
    REGROUPED,
    REGROUPED_OPERATOR,
    Ledger,
    Regrouped,
)
from holdfast.chaos.sim.jobs.lettered import LETTERED, Lettered
from holdfast.chaos.sim.jobs.oracle import Cut
from holdfast.chaos.sim.jobs.spelled import SPELLED, SPELLED_COLUMNS, SPELLED_OPERATOR
from holdfast.chaos.sim.jobs.tables import SharedTable
from holdfast.chaos.sim.jobs.workload import ADDED, LATE, OUT_OF_ORDERNESS_S, UPSERTS, WINDOWS, Scenario, operator_of
from holdfast.checkpoint import joblog
from holdfast.checkpoint.bases import pieces
from holdfast.checkpoint.manifest import Manifest, decode
from holdfast.errors import Damaged, ErrorReport, HoldfastError
from holdfast.model import NO_EPOCH, Epoch, JobUuid, Tag, Timeline, WorkerId, Writer
from holdfast.runtime.plan.kept_state import with_identities
from holdfast.runtime.plan.model import Plan
from holdfast.runtime.wire import messages as m
from holdfast.sinks.contract.sink import Rewinding
from holdfast.sinks.contract.target import OP
from holdfast.sinks.memory.immediate import ImmediateTable
from holdfast.state.store import Identity, Piece, StateStore
from holdfast.state.tables.slab import Rows
from holdfast.state.tables.table import StateTable
from holdfast.storage.objects import MemoryObjects

NO_TAG = Tag(Timeline(0), NO_EPOCH)
TOTALS = {"n": "n.count", "total": "total.sum", "low": "low.min", "high": "high.max"}
RESTORED_MAX, INSPECTED_MAX = 8, 60
"""How many of a run's checkpoints are restored before its end, and from how many the state of branches is read."""


class Checks:
    """The checkers of one run. They keep their findings; the first finding ends the run."""

    def __init__(
        self,
        scenario: Scenario,
        versions: Sequence[Plan],
        tables: Mapping[str, SharedTable],
        lasts: ImmediateTable,
        journal: EventJournal,
    ) -> None:
        plan = versions[0]
        self._scenario, self._plan, self._tables, self._journal = scenario, plan, tables, journal
        self._versions = versions
        self.objects = MemoryObjects()
        self.violations: list[str] = []
        self.history = History(self.fail)
        self.accepted = AcceptedRequests(self.history, self.fail)
        self.assigned = AssignmentCheck(self.history.cuts, self.fail)
        self.attempts = Attempts(self.fail)
        self.aligned = AlignmentCheck(self.fail)
        self.elapsed: Callable[[], float] = lambda: 0.0
        self._finishing = FinishRequests(scenario)
        self._fold: joblog.Job | None = None
        self._tags: dict[tuple[JobUuid, Writer], Tag] = {}
        self._added = AppendCheck(scenario, self.fail)
        batches = batches_of(scenario.partitions, plan.sources[0].source.schema)
        keys = {spec.name: spec.upsert_key for spec in plan.sinks if spec.upsert_key is not None}
        self._audited = Audited(batches, keys, scenario, self.fail)
        self._lasts, self.lasts = lasts, Lasts(scenario, self.fail)
        self._upserted = {
            name: Upserted(name, by, expected, scenario.moves_rows, self.fail)
            for name, by, expected in _expected_upserts(scenario)
        }
        self._key_of = {name: by for name, by, _ in _expected_upserts(scenario)}
        windowing = scenario.windowing
        self._windowed = None if windowing is None else WindowCheck(scenario, windowing, self.fail)
        self._branched = self._watching(scenario)
        self._ledger = Ledger(scenario.partitions, scenario.moves_rows, self.fail) if scenario.ledger else None
        self._regrouped = Regrouped(scenario.partitions, self.fail) if scenario.regroups else None
        self._since = dropping.Since(scenario.partitions, self.history.cuts, self.fail) if scenario.drops else None
        self._lettered = Lettered(scenario.partitions, self.fail)
        self.repairs = 0
        self.sources_waited_for_memory = 0
        """How often a worker took stock while its memory was full of changes, or its disk full."""
        self.barriers_wanted_early = 0
        self.promotions = 0
        """How often a worker took stock while it asked for a barrier that was not due."""
        self.restored: list[Epoch] = []
        """The restored checkpoints."""
        self._inspections = 0
        self.requests = Counter[tuple[str, str]]()
        """Requests that drivers accepted, by the driver's mode and the kind of the request."""
        self.outcomes: dict[str, int] = {}
        self.explained: Callable[[ErrorReport | None], bool] = lambda error: False
        """Whether a run may fail with this error."""

    def _watching(self, scenario: Scenario) -> Branched:
        windowing, clocks = scenario.windowing, None if self._windowed is None else self._windowed.clocks
        delay, idles = OUT_OF_ORDERNESS_S * SECOND_US, windowing is not None and windowing.idles
        watched = Watched(
            scenario.partitions, delay, idles, lambda: set() if clocks is None else clocks.overtaken, self.fail
        )
        return Branched(scenario.branches, watched, clocks, self._tables)

    @property
    def finished(self) -> bool:
        """Return whether the job is finished, according to the job log."""
        return self.history.finished

    def fail(self, rule: str, what: str) -> None:
        """Record a finding."""
        self._journal.say("CHECK", f"{rule}: {what}")
        self.violations.append(f"{rule}: {what}")

    def raised(self, error: BaseException) -> None:
        """A loop raised something other than an expected refusal: a broken invariant of the runtime itself."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = str(error) or "no message"
        self.fail("raised", f"{type(error).__name__} in {last.name} ({last.filename.rsplit('/', 1)[-1]}): {text}")

    def landed(self, path: str, data: bytes) -> None:
        """An object was written."""
        if path.startswith("log/"):
            self._record_landed(path, data)

    def triggered(self, trigger: m.Trigger, owner: str) -> None:
        """A driver sends a trigger."""
        self.history.triggered(trigger.generation, trigger.barrier.epoch, owner)
        self.accepted.triggered(owner, trigger.barrier.epoch, trigger.barrier.last)
        self.assigned.triggered(trigger)

    def deployed(self) -> None:
        """A worker received a deployment."""
        if self._windowed is not None:
            self._windowed.deployed(self.elapsed())

    def answered(self, owner: str, kind: str, args: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """A driver answered a request."""
        if answer["accepted"] and args.get("how") == "finish":
            least = self._finishing.accepted(owner, self.elapsed())
            if self._windowed is not None:
                self._windowed.clocks.finishes(owner, least)
        self.accepted.answered(owner, kind, args, answer)

    def reads_to(self, owner: str, ends: Mapping[str, Mapping[int, int]]) -> None:
        """A driver starts that reads each source up to these offsets and no further."""
        if self._windowed is not None:
            self._windowed.clocks.reads_to(owner, {p: end for each in ends.values() for p, end in each.items()})

    def driver_over(self, name: str, owner: str, outcome: str, error: ErrorReport | None) -> None:
        """A driver's run ended."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if outcome == "failed" and not self.explained(error):
            self.fail("I11 progress", f"{name} abandoned the job, although every fault passes: {error}")
        if outcome == "fenced" and self.history.owner == owner:
            self.fail("I7 fence", f"{name} was fenced, although it owns the newest generation")
        if outcome == "finished" and not self.finished:
            self.fail("P13", f"{name} finished without a record of it")
        self.accepted.over(owner, name, outcome)

    def delivered(self, writer: Writer, job_uuid: JobUuid, epochs: Sequence[tuple[Tag, list[pa.RecordBatch]]]) -> None:
        """A writer's transaction committed in its target, with one or more epochs."""
        for n, (tag, batches) in enumerate(epochs):
            before = self._tags.get((job_uuid, writer))
            if before is not None and tag <= before:
                self.fail("I6 tags", f"the tag of {writer} went from {before} to {tag}")
            self._tags[job_uuid, writer] = tag
            self._audited.delivered(writer, tag, batches)
            offsets = self.history.cuts.get(tag.epoch)
            if offsets is None:
                self.fail("I5 visible", f"output of {writer} became visible, but epoch {tag.epoch} is not completed")
            elif writer.sink in (ADDED, WINDOWS) or writer.sink in self._branched:
                # These tables show what each epoch added, as if it had been delivered alone.
                later = sum(batch.num_rows for _, more in epochs[n + 1 :] for batch in more)
                rows = self._tables[writer.sink].rows()
                self._look_at_added(writer, tag, offsets, rows[: len(rows) - later])
            elif n + 1 == len(epochs):
                self._look(writer, tag, offsets, [batch for _, each in epochs for batch in each])

    def _look_at_added(self, writer: Writer, tag: Tag, cut: Cut, rows: Sequence[Mapping[str, Any]]) -> None:
        if writer.sink == ADDED:
            self._added.look(writer, tag, cut, rows)
        elif writer.sink in self._branched:
            self._branched.look(writer, tag, cut, rows)
        elif self._windowed is not None:
            self._windowed.look(writer, tag, cut, rows)

    def _look(self, writer: Writer, tag: Tag, cut: Cut, batches: list[pa.RecordBatch]) -> None:
        """Compare the visible rows with the last epoch of a transaction; the batches belong to all its epochs."""
        if self._windowed is not None and writer.sink == LATE:
            self._windowed.look_late(self._tables[LATE].rows())
        elif self._regrouped is not None and writer.sink == REGROUPED:
            # Only the rows of this delivery: other writers may already show a later epoch (P25).
            written = [row for batch in batches for row in batch.to_pylist() if row[OP] == 0]
            self._regrouped.look(f"{writer} at epoch {tag.epoch}", cut, written)
        elif writer.sink in LETTERED:
            self._lettered.look(writer.sink, f"{writer} at epoch {tag.epoch}", self._tables[writer.sink].rows())
        elif self._ledger is not None and writer.sink == ACCOUNTS:
            accounts = {row["account"] for batch in batches for row in batch.to_pylist() if row[OP] == 0}
            self._ledger.look(writer, tag, cut, accounts, self._tables[ACCOUNTS].rows())
        elif writer.sink not in (dropping.SINCE, *self._branched.late):  # compared when all writers show the same epoch
            keys = {row[self._key_of[writer.sink]] for batch in batches for row in batch.to_pylist() if row[OP] == 0}
            self._upserted[writer.sink].look(writer, tag, cut, keys, self._tables[writer.sink].rows())

    def uploads_swept(self, names: Sequence[str]) -> None:
        """A sweep deletes these uploads: none of an epoch that is, or may still be, completed."""
        for epoch in {int(name.split("/")[3]) for name in names} & self.history.cuts.keys():
            self.fail("P16 uploads", f"an upload of epoch {epoch} was deleted, which is completed")

    def holds(self, worker: str, committed: Epoch, epochs: Collection[Epoch]) -> None:
        """A worker keeps something for these epochs; it needs nothing for committed ones."""
        if old := sorted(epoch for epoch in epochs if epoch <= committed):
            self.fail("growth", f"{worker} still keeps data of epochs {old}, although {committed} is committed")

    def took_stock(self, stock: m.Heartbeat) -> None:
        """A worker took stock of itself."""
        self.sources_waited_for_memory += "memory" in stock.progress.held_by
        self.barriers_wanted_early += stock.wants_barrier
        for copy in stock.copies:
            if copy.epoch != NO_EPOCH and copy.epoch not in self.history.cuts:
                self.fail("standby", f"{stock.worker} has a copy as of epoch {copy.epoch}, which is not completed")
        self.aligned.took_stock(stock)

    def ready(self, message: m.Ready) -> None:
        """A worker reports that it runs a subtask."""
        self.promotions += message.how == "promoted"

    def told_time(self, channel: Channel, at_us: int) -> None:
        """A subtask sent a watermark through a channel."""
        if self._windowed is not None:
            self._windowed.clocks.said(channel, at_us)

    def repairing(self, rewinding: Rewinding) -> None:
        """A transaction that removes output is about to commit: the rewind must be in the log first (P21)."""
        if self.history.bases.get(rewinding.to.timeline) != rewinding.to.epoch:
            self.fail(
                "P21 fence", f"{rewinding.sink} is repaired to {rewinding.to}, but the job log has no such rewind"
            )

    def repaired(self, rewinding: Rewinding) -> None:
        """The repair has committed: if it moved a tag, the target shows exactly the base epoch."""
        writers = [(JobUuid(rewinding.job_uuid), writer) for writer in rewinding.writers]
        moved = [key for key in writers if self._tags.get(key, NO_TAG) < rewinding.to]
        self._tags |= dict.fromkeys(moved, rewinding.to)
        offsets = self.history.cuts.get(rewinding.to.epoch)
        if not moved or offsets is None:
            return
        self.repairs += 1
        rows = self._tables[rewinding.sink].rows()
        if rewinding.sink == ADDED:
            self._added.taken_back(offsets, rows)
        elif rewinding.sink in self._branched:
            self._branched.taken_back(rewinding.sink, rewinding.to, offsets, rows)
        elif rewinding.sink == WINDOWS and self._windowed is not None:
            self._windowed.taken_back(rewinding.to, offsets, rows)
        elif rewinding.sink == LATE and self._windowed is not None:
            self._windowed.look_late(rows)
        elif rewinding.sink in self._branched.late:
            return  # compared at the end
        elif rewinding.sink == REGROUPED and self._regrouped is not None:
            self._regrouped.look(f"after going back to {rewinding.to}", offsets, rows)
        elif rewinding.sink in LETTERED:
            self._lettered.compare(rewinding.sink, f"after going back to {rewinding.to}", offsets, rows)
        elif rewinding.sink == ACCOUNTS and self._ledger is not None:
            self._ledger.compare("P21 repair", f"after going back to {rewinding.to}", offsets, rows)
        elif rewinding.sink == dropping.SINCE and self._since is not None:
            self._since.visible("P21 repair", rewinding.to.epoch, rows)
        else:
            self._upserted[rewinding.sink].taken_back(rewinding.to, offsets, rows)

    def at_end(self) -> None:
        """Compare everything with the oracle once nothing changes any longer."""
        everything, last = self._everything(), self._last_cut()
        if any(last.get(partition, 0) != count for partition, count in everything.items() if count):
            self.fail("I1 loss", f"the last checkpoint holds {last}, the input is {everything}")
        self._added.at_end(everything, self._tables[ADDED].rows())
        if self.history.lineage and not self.violations:
            schema = next(spec.schema for spec in self._plan.sinks if spec.name == ADDED)
            self._audited.at_end(Epoch(self.history.lineage[-1]), self._tables[ADDED].rows(), schema)
        self._compare_windows()
        if self._ledger is not None:
            self._ledger.compare("I1 loss", "at the end", everything, self._tables[ACCOUNTS].rows())
        if self._since is not None and self.history.lineage:
            self._since.visible("I1 loss", self.history.lineage[-1], self._tables[dropping.SINCE].rows())
        for name, upserted in self._upserted.items():
            upserted.at_end(everything, self._tables[name].rows())
        if self._scenario.letters:
            for sink in LETTERED:
                self._lettered.compare(sink, "at the end", everything, self._tables[sink].rows())
        if self._scenario.immediate:
            self.lasts.at_end(everything, self._lasts)
        if self._fold is not None and self._fold.completed:
            for done in self._sampled(self._fold.retained):
                self._restore(done)

    def _sampled(self, retained: Sequence[joblog.Completed]) -> list[joblog.Completed]:
        """Return the checkpoints to restore at the end: oldest, one by seed, newest.

        Neighbours share most of their objects: the time of another restore is better spent on another seed. The oldest
        is next to the objects that a sweep deletes; the newest is restored even if it was before, since a finished job
        may have no window left.
        """
        last = self._fold_last()
        others = [done for done in retained if done.body.epoch not in self.restored and done != last]
        chosen = {0, self._scenario.seed % len(others)} if others else set[int]()
        return [others[place] for place in sorted(chosen)] + ([] if last is None else [last])

    def _everything(self) -> Cut:
        """Return the cut that holds the whole input, also if a user asked the job to finish."""
        return self._finishing.everything(self.history.owner or "", self._last_cut())

    def _last_cut(self) -> Cut:
        return self.history.cuts[self.history.lineage[-1]] if self.history.lineage else {}

    def _record_landed(self, path: str, data: bytes) -> None:
        if not self.history.record(path, data, self.objects, self._standing):
            return
        try:
            record = joblog.decode(data, path)
            self._fold = joblog.fold(self._fold, record)
        except HoldfastError as error:
            self.fail("I7 fold", f"the fold refuses {path}: {error.what}")
            return
        if self.history.finished and not self.violations:
            self._all_delivered()
        body = record.body
        is_checkpoint = isinstance(body, joblog.CheckpointCompleted)
        if isinstance(body, joblog.CheckpointCompleted) and not self.violations:
            history = self.history
            before = history.cuts[history.lineage[-2]] if len(history.lineage) > 1 else {}
            self._audited.completed(history.manifests[body.epoch], before, history.cuts[body.epoch])
            self.assigned.completed(body.epoch, record.generation, body.follows)
            self.attempts.completed(body.epoch, history.named[body.epoch])
        if isinstance(body, joblog.CheckpointCompleted) and self._since is not None:
            self._since.completed(decode(plain_manifest(self.objects, body.manifest.path), body.manifest))
        if isinstance(body, joblog.CheckpointCompleted) and self._windowed is not None:
            cut = self.history.cuts[body.epoch]
            self._windowed.clocks.completed(body.epoch, body.follows, cut, record.owner)
            if not self.violations:
                self._windowed.completed(self.history.manifests[body.epoch])
        if is_checkpoint and self._scenario.immediate:
            self.lasts.completed(self.history.cuts[self._fold.completed[-1].body.epoch])
        if (
            is_checkpoint
            and self._scenario.verify_every_checkpoint
            and len(self.restored) < RESTORED_MAX
            and not self.violations
        ):
            self._restore(self._fold.completed[-1])
        if is_checkpoint and self._scenario.inspects and self._scenario.branches and not self.violations:
            self._inspect(self._fold.completed[-1])

    def _standing(self, sink: str, subtask: int) -> tuple[int, int]:
        """Return the writer's tag in the target, (0, 0) if it has none."""
        for (uuid, writer), tag in self._tags.items():
            if uuid == self.history.job_uuid and writer.sink == sink and writer.subtask == subtask:
                return tag.timeline, tag.epoch
        return 0, 0

    def _all_delivered(self) -> None:
        """P13: a job is not finished before the output of its last epoch is delivered."""
        scenario = self._scenario
        everything = self._everything()
        expected = sum(len(ids) for ids in oracle.passing(scenario.partitions, everything, scenario.above).values())
        if (found := len(self._tables[ADDED].rows())) != expected:
            self.fail("P13 finished", f"{found} rows were added when Finished was appended, {expected} expected")
        self._compare_windows()
        if self._ledger is not None:
            self._ledger.compare("P13 finished", "at Finished", everything, self._tables[ACCOUNTS].rows())
        for name in scenario.upserts:
            rows = sorted(self._tables[name].rows(), key=lambda row: int(row[UPSERTS[name]]))
            by_key = oracle.totals(scenario.partitions, everything, UPSERTS[name])
            if rows != [by_key[key] for key in sorted(by_key)]:
                self.fail("P13 finished", f"{name} held {rows} when Finished was appended")

    def _compare_windows(self) -> None:
        if self._windowed is not None:
            self._windowed.at_end(self._everything(), self._tables[WINDOWS].rows(), self._tables[LATE].rows())
        if self._regrouped is not None:
            self._regrouped.at_end(self._tables[REGROUPED].rows(), self._tables[WINDOWS].rows())
        self._branched.at_end(self._everything())

    def _restore(self, completed: joblog.Completed) -> None:
        """I9: rebuild the state of every subtask from the objects that the manifest names."""
        self.restored.append(completed.body.epoch)
        ref = completed.body.manifest
        manifest = decode(plain_manifest(self.objects, ref.path), ref)
        stores = [self._store(manifest, subtask) for subtask in range(manifest.parallelism)]
        reader = Inspected(manifest, self.objects)
        for sink in self._scenario.upserts:
            operator, by = self._plan.operator(operator_of(sink)).id, UPSERTS[sink]
            version = evolving.version_of(manifest.operators) if self._scenario.evolves else 0
            restored_rows = {
                row[by]: row for row in _rows(stores, operator, TOTALS | (evolving.RENAMED if version else {}))
            }
            if version == evolving.LAST_VERSION:
                self._compare_twins(manifest.epoch, _rows(stores, operator, evolving.TWINS))
            expected_rows = oracle.totals(self._scenario.partitions, self.history.cuts[manifest.epoch], by)
            if restored_rows != expected_rows:
                self.fail(
                    "I9 state", f"epoch {manifest.epoch}, {sink}: restored {restored_rows}, expected {expected_rows}"
                )
            read = {row[by]: evolving.as_at_first(row) for row in reader.rows(operator_of(sink))}
            if read != expected_rows:
                self.fail("I9 read", f"epoch {manifest.epoch}, {sink}: a reader gets {read}, expected {expected_rows}")
        if self._ledger is not None:
            operator = self._plan.operator(LEDGER_OPERATOR).id
            accounts, when = _rows(stores, operator, BALANCE), f"restored at epoch {manifest.epoch}"
            self._ledger.compare("I9 state", when, self.history.cuts[manifest.epoch], accounts)
        if self._since is not None:
            number = dropping.of(manifest.operators).id
            self._since.restored("I9 state", manifest.epoch, _rows(stores, number, dropping.SINCE_COLUMNS))
            self._since.restored("I9 read", manifest.epoch, reader.rows(dropping.SINCE_OPERATOR))
        self._branched.restored(manifest.epoch, self.history.cuts[manifest.epoch], reader.rows)
        if self._scenario.texts:
            self._restored_words(manifest.epoch, stores, reader.rows(SPELLED_OPERATOR))
        if self._windowed is not None:
            self._restored_windows(self._windowed, completed, stores, reader.rows(operator_of(WINDOWS)))

    def _inspect(self, completed: joblog.Completed) -> None:
        """Read the state of the branches from a checkpoint, which takes less time than to restore all state."""
        self._inspections += 1
        if self._inspections <= INSPECTED_MAX:
            ref, epoch = completed.body.manifest, completed.body.epoch
            manifest = decode(plain_manifest(self.objects, ref.path), ref)
            self._branched.restored(epoch, self.history.cuts[epoch], Inspected(manifest, self.objects).rows)

    def _restored_words(self, epoch: Epoch, stores: Iterable[StateStore], read: Sequence[Mapping[str, Any]]) -> None:
        expected_words = oracle.spelled(self._scenario.partitions, self.history.cuts[epoch])
        restored = _rows(stores, self._plan.operator(SPELLED_OPERATOR).id, SPELLED_COLUMNS)
        for rule, found in (("I9 state", restored), ("I9 read", read)):
            if {row["word"]: row for row in found} != expected_words:
                self.fail(rule, f"epoch {epoch}: words are {found}, expected {expected_words}")

    def _compare_twins(self, epoch: Epoch, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if row[evolving.ONE] != row[evolving.TWIN]:
                self.fail("I9 evolution", f"epoch {epoch}: two aggregates added together differ: {row}")

    def last_manifest(self) -> Manifest | None:
        """Return the manifest of the last checkpoint, as a start reads it."""
        last = self._fold_last()
        return None if last is None else decode(self.objects.get(last.body.manifest.path), last.body.manifest)

    def _restored_windows(
        self, windowed: WindowCheck, completed: joblog.Completed, stores: Iterable[StateStore], read: Sequence[Any]
    ) -> None:
        operator, epoch = self._plan.operator(operator_of(WINDOWS)).id, completed.body.epoch
        windows = _rows(stores, operator, TOTALS)
        offsets, when = self.history.cuts[epoch], f"restored at epoch {epoch}"
        # Late records are known from the output: only once it is complete, and only for the current lineage.
        is_told = self.finished and epoch in self.history.lineage
        late = self._tables[LATE].rows() if is_told else None
        windowed.restored(when, offsets, windows, late)
        windowed.restored(f"read at epoch {epoch}", offsets, read, late)
        shown = [{name: row[name] for name in windows[0]} for row in read] if windows else read
        if sorted(map(str, shown)) != sorted(map(str, windows)):
            self.fail("I9 read", f"epoch {epoch}: a reader gets the windows {shown}, {windows} were restored")
        lineage = self.history.lineage
        windowed.clocks.restored(epoch, lineage, offsets, self._clocks(stores))
        if self._regrouped is not None:
            operator = self._plan.operator(REGROUPED_OPERATOR).id
            self._regrouped.look(when, offsets, _rows(stores, operator, GATHERED))
        if windows and self.finished and completed == self._fold_last():
            self.fail("P13 windows", f"the state of a finished job still holds {len(windows)} windows")

    def _clocks(self, stores: Iterable[StateStore]) -> dict[int, int]:
        """Return the clock of every key group."""
        spec = next(spec for spec in self._plan.operators if spec.name == f"{operator_of(WINDOWS)}.clock")
        clocks = dict.fromkeys(range(self._plan.key_groups), NEVER)
        for table in (store.table(spec.id) for store in stores):
            slots = table.present()
            groups = table.keys_at(slots).key_groups(self._plan.key_groups).tolist()
            clocks |= dict(zip(groups, table.column("at")[slots].tolist(), strict=True))
        return clocks

    def _fold_last(self) -> joblog.Completed | None:
        return self._fold.completed[-1] if self._fold is not None and self._fold.completed else None

    def _store(self, manifest: Manifest, subtask: int) -> StateStore:
        handle = manifest.state[subtask]
        identity = Identity(manifest.job_uuid, manifest.generation, manifest.timeline, WorkerId("checker"))
        plan = self._plan
        if self._scenario.evolves:
            plan, _ = with_identities(self._versions[evolving.version_of(manifest.operators)], manifest.operators, ())
        specs = [spec.table for spec in plan.operators]
        store = StateStore(identity, specs, manifest.key_groups, handle.key_groups)
        segments = [
            Piece(self.objects.get(each.object.path), each.key_groups or handle.key_groups) for each in pieces(handle)
        ]
        try:
            store.restore(manifest.epoch, segments)
        except Damaged as error:
            self.fail("I9 state", f"subtask {subtask} of epoch {manifest.epoch} cannot be restored: {error.what}")
        return store


def _expected_upserts(scenario: Scenario) -> list[tuple[str, str, Callable[[Cut], Mapping[Any, Any]]]]:
    """Return the upsert sinks that are compared with the oracle after every delivery: name, key, expected rows."""
    sinks: list[tuple[str, str, Callable[[Cut], Mapping[Any, Any]]]] = [
        (name, UPSERTS[name], partial(oracle.totals, scenario.partitions, by=UPSERTS[name]))
        for name in scenario.upserts
    ]
    return [*sinks, *([(SPELLED, "word", partial(oracle.spelled, scenario.partitions))] if scenario.texts else [])]


def _values(table: StateTable, column: str, slots: Rows) -> list[Any]:
    """Return the working values of a column as Python values."""
    if table.spec.column(column).plain:
        return list(table.column(column)[slots].tolist())
    return list(table.read(column, slots).to_pylist())


def _rows(stores: Iterable[StateStore], operator: int, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of an operator under the oracle's column names; `columns` gives the names in the state."""
    rows: list[dict[str, Any]] = []
    for table in (store.table(operator) for store in stores):
        slots = table.present()
        keys = [column.to_pylist() for column in table.key_columns(slots)]
        named = dict(zip(table.spec.key.names, keys, strict=True))
        named |= {short: _values(table, long, slots) for short, long in columns.items()}
        rows += [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
    return rows
