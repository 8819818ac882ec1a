"""The interpreter of the driver: takes events, steps the master, performs its effects.

The same loop runs in production, in the test driver and in the simulator; only its ports differ. One thread calls
`turn`; reads and writes of the job's history go to a lane.

Invariants
    - Events are handled one at a time, to completion, and timers are checked after each.
    - An append whose outcome is unknown is sent again until its slot is read (P4).
    - No effect of a state that breaks an invariant of fence, owner or order is performed.

Source: DESIGN sections 2 to 4; PROTOCOL P4, P9; docs/decisions/0116-roots-that-go.md.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from holdfast.checkpoint import joblog
from holdfast.checkpoint.joblog import record_path
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repository import Repository, RootLost
from holdfast.errors import Damaged, ErrorReport, Fenced, HoldfastError, Unavailable
from holdfast.frozen import replace
from holdfast.model import Epoch, Generation, ObjectRef, WorkerId, Writer
from holdfast.ports import Clock, Lane
from holdfast.runtime.driver import master
from holdfast.runtime.driver.background.compactions import Compactions
from holdfast.runtime.driver.background.folds import Folds
from holdfast.runtime.driver.background.listings import Listings
from holdfast.runtime.driver.background.loss_alarm import LossAlarm
from holdfast.runtime.driver.background.publications import Publications
from holdfast.runtime.driver.background.sweep import Sweep
from holdfast.runtime.driver.events import (
    AppendUnknown,
    Beat,
    Cancel,
    CreateRecord,
    Dismiss,
    Effect,
    End,
    EpochAsked,
    Event,
    Launch,
    LaunchEnded,
    ListPartitions,
    LoadManifest,
    ManifestLoaded,
    ManifestStored,
    Moment,
    RecordFound,
    RepairTargets,
    Send,
    SourcesListed,
    SourcesUnlisted,
    StopAsked,
    StoreManifest,
    SweepObjects,
    TargetsRepaired,
    Tick,
    WorkerStreamClosed,
)
from holdfast.runtime.driver.failover import end
from holdfast.runtime.driver.invariants import refusal
from holdfast.runtime.driver.killing import noted
from holdfast.runtime.driver.repair import RunRepairs
from holdfast.runtime.driver.requests import carry_out, is_judged
from holdfast.runtime.driver.state import Kills, Master, Over, RewindWanted, Rules, Site
from holdfast.runtime.plan.model import SinkSpec, SourceSpec
from holdfast.runtime.wire import messages as m
from holdfast.sinks.contract.changelogs import Changelog

_log = logging.getLogger("holdfast.driver")
LOG_RETRY_S = 0.1
REFUSED = "refused"
"""The outcome of a run whose exit status is that of its error; see runtime/execution/executing.py."""
_ENDINGS = ("failed", REFUSED)
_OF_OTHERS = (Damaged.kind, Fenced.kind)
"""Errors that a newer run of the job may have caused."""
DAMAGED_READS_MAX = 3
"""A log that is damaged in one read may be intact in the next; if all of these reads fail, the damage is permanent."""


class DriverPorts(Protocol):
    """Services that the driver needs from its surroundings."""

    @property
    def clock(self) -> Clock: ...
    @property
    def repository(self) -> Repository: ...
    @property
    def sinks(self) -> Sequence[SinkSpec]: ...
    @property
    def sources(self) -> Sequence[SourceSpec]: ...
    @property
    def changelog(self) -> Changelog: ...

    def send(self, worker: WorkerId, message: m.FromDriver) -> None:
        """Send to a worker; may be lost."""

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """Start a process that will register as a worker, and not in these places if there are others."""

    def dismiss(self, worker: WorkerId, launch: int) -> None:
        """Close the worker's stream."""

    def cancel(self, launch: int) -> None:
        """End a launch whose worker never registered."""

    def lane(self, name: str) -> Lane:
        """Return the lane of this name; its results are handed to `done` between turns."""


class DriverLoop:
    """One run of a job, from taking it over to its end.

    Args:
        watch: Called with the master after every event, before its effects are performed.
    """

    def __init__(
        self,
        rules: Rules,
        owner: str,
        ports: DriverPorts,
        pulse_every: float = 0.5,
        watch: Callable[[Master], None] = lambda _: None,
    ) -> None:
        self._watch = watch
        self._rules, self._owner, self._ports = rules, owner, ports
        self._pulse_every, self._next_pulse = pulse_every, 0.0
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._timer_ids = itertools.count()
        self._master: Master | None = None
        self.sweep = Sweep(ports.repository, lambda: ports.lane("sweep"))
        self.compactions = Compactions(ports.changelog, lambda: ports.lane("compactions"))
        self._folds = Folds(ports.repository, lambda: ports.lane("folds"))
        self.repairs = RunRepairs(
            ports.repository, ports.sinks, ports.lane, self._after, self._repaired, self._fail, rules.adopted
        )
        self._listings = Listings(rules.name, ports.sources, lambda: ports.lane("sources"))
        self.publications = Publications(ports.sources, lambda: ports.lane("positions"), self._after)
        self.loss_alarm = LossAlarm(
            ports.sources, lambda: ports.lane("retention"), rules.loss_alarm, rules.checkpoint_every
        )
        self.outcome: tuple[str, ErrorReport | None] | None = None
        self.acted = False
        """Whether anything but repetitions was sent or done since the caller has reset this."""
        self.refused: HoldfastError | None = None
        """Why the root did not take the last record or manifest; None once it does."""
        self._last: Manifest | None = None
        """The manifest of the last completed epoch, as far as this run has read or written it."""

    @property
    def state(self) -> Master:
        """Return the master's state, for reports."""
        assert self._master is not None, "the run has not begun"
        return self._master

    def begin(self, job: joblog.Job | None, cause: str) -> None:
        """Take the job over as the log describes it, or create it."""
        self._perform(*master.begin(self._rules, self._owner, job, cause, self._ports.clock.wall_us()))

    def rewind(self, job: joblog.Job, asked: RewindWanted) -> None:
        """Take over a job that is not running, rewind it, repair its targets, and end."""
        self._perform(*master.begin_rewind(self._rules, self._owner, job, asked, self._ports.clock.wall_us()))

    def received(self, message: m.FromWorker) -> None:
        """Handle a message of a worker."""
        kills = self.state.kills
        self._step(message)
        self._warn(kills)

    def stream_closed(self, worker: WorkerId, why: str) -> None:
        """A worker's control stream closed."""
        kills = self.state.kills
        self._step(WorkerStreamClosed(worker, why))
        self._warn(kills)

    def _warn(self, before: Kills) -> None:
        """Warn of a function that has ended its process: the run may try several times, and be silent otherwise."""
        if self.state.kills is not before and (said := noted(self.state, before)) is not None:
            _log.warning(said)

    def launch_ended(self, number: int, error: str | None) -> None:
        """The Spark job that hosts a worker ended."""
        self._step(LaunchEnded(number, error))

    def judges(self, generation: int, first: Generation) -> bool:
        """Return whether this run can already answer a request made for this generation."""
        return is_judged(self.state, generation, first)

    def asked(self, kind: str, args: Mapping[str, Any], generation: int, first: Generation) -> Mapping[str, Any] | None:
        """Carry out a request; return its answer, None if it is for a generation not known here."""
        state, effects, answer = carry_out(self.state, kind, args, generation, first)
        self._perform(state, effects)
        return None if answer is None else answer.as_json()

    def stop(self) -> None:
        """Take a last checkpoint and end the run."""
        self._step(StopAsked())

    def close_epoch(self) -> None:
        """Close the next epoch when it is due, even if nothing is new."""
        self._step(EpochAsked())

    def turn(self) -> None:
        """Handle the passing of time: due timers, silent workers, due epochs, the driver's own pulse."""
        now = self._now()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        if self.outcome is not None:
            return
        self._step(Tick())
        if now >= self._next_pulse and self.outcome is None:
            self._next_pulse = now + self._pulse_every
            self._step(Beat(self._pulse_every))
            deployed = self.state.deployed
            self.loss_alarm.turn(now, None if deployed is None else deployed.last)

    def _step(self, event: Event) -> None:
        state, effects = master.step(self.state, event, self._moment())
        self.acted |= bool(effects) and not isinstance(event, Beat)  # which repeats what workers know
        self._perform(state, effects)

    def _moment(self) -> Moment:
        return Moment(self._now(), self._ports.clock.wall_us())

    def _perform(self, state: Master, effects: list[Effect]) -> None:
        self._master = state
        self._watch(state)
        if (broken := refusal(state)) is not None:
            self._perform(*end(state, "failed", broken.report()))
            return
        for effect in effects:
            match effect:
                case CreateRecord(record):
                    self._lane(lambda r=record: self._ports.repository.create_record(r), self._record_found)  # type: ignore[misc]
                case LoadManifest(ref):
                    self._lane(lambda r=ref: self._ports.repository.load_manifest(r), self._base_loaded)  # type: ignore[misc]
                case StoreManifest(manifest):
                    self._store_manifest(manifest)
                case Send(worker, message):
                    self._ports.send(worker, message)
                case Launch(number, avoid):
                    self._ports.launch(number, avoid)
                case Dismiss(worker, launch):
                    self._ports.dismiss(worker, launch)
                case Cancel(launch):
                    self._ports.cancel(launch)
                case RepairTargets(job, base):
                    self.repairs.request(job, base)
                case ListPartitions(number) as asked:
                    self._listings.ask(asked, partial(self._listed, number))
                case SweepObjects(job):
                    self.sweep.request(job)
                    self.compactions.request(job)
                case End(outcome, error) if outcome in _ENDINGS and error and error.kind in _OF_OTHERS:
                    self._close_sources()
                    self._end_if_ours(outcome, error)
                case End(outcome, error):
                    self.outcome = outcome, error
                    self._close_sources()

    def _close_sources(self) -> None:
        self._listings.close()
        self.publications.close()
        self.loss_alarm.close()

    def _listed(self, number: int, result: object) -> None:
        if isinstance(self.state.phase, Over):
            return
        match result:
            case Unavailable() as error:
                self._step(SourcesUnlisted(number, error))
            case tuple() as found:
                self._step(SourcesListed(number, found))
            case _:
                self._fail(result)

    def _repaired(self, generation: Generation, writers: frozenset[Writer]) -> None:
        self._step(TargetsRepaired(generation, writers))

    def _end_if_ours(self, how: str, error: ErrorReport, damaged_reads: int = 0) -> None:
        """End as fenced if a newer generation owns the job: it sweeps objects and fences targets (P16). Else as given.

        Only the log identifies the owner. If it stays damaged, nothing shows whether this driver was fenced, and the
        run reports the damage.
        """

        def done(result: object) -> None:
            if isinstance(result, Unavailable):
                self._after(LOG_RETRY_S, lambda: self._end_if_ours(how, error, damaged_reads))
            elif isinstance(result, Damaged) and damaged_reads + 1 < DAMAGED_READS_MAX:
                self._after(LOG_RETRY_S, lambda: self._end_if_ours(how, error, damaged_reads + 1))
            elif isinstance(result, Damaged) and error.kind == Fenced.kind:
                self.outcome = "failed", result.report()
            elif isinstance(result, joblog.Job) and self._is_overtaken_in(result):
                self.outcome = "fenced", master.taken_over(result)
            elif (lost := self._lost_in(result)) is not None:
                self.outcome = REFUSED, report_of_lost_root(self.state, self._last, lost)
            else:
                self.outcome = how, error

        self._lane(self._ports.repository.read_log, done)

    def _is_overtaken_in(self, job: joblog.Job) -> bool:
        """Return whether a newer run owns the job; in an older copy of the root, an older one does."""
        known = self.state.log.job
        return job.owner != self._owner and (known is None or job.generation > known.generation)

    def _lost_in(self, result: object) -> RootLost | None:
        """Return the error if this log is shorter than the one read before; a worker may miss an object first."""
        job = self.state.log.job
        if job is None or isinstance(result, BaseException):
            return None
        last = result.next_seq - 1 if isinstance(result, joblog.Job) else 0
        return RootLost(joblog.record_path(job.next_seq - 1), last) if last < job.next_seq - 1 else None

    def _store_manifest(self, manifest: Manifest) -> None:
        def done(result: object) -> None:
            match result:
                case ObjectRef():
                    self.refused = None
                    self._step(ManifestStored(manifest, result))
                case Unavailable() as error:
                    self.refused = error
                    self._after(LOG_RETRY_S, lambda: self._store_manifest(manifest))
                case _:
                    self._fail(result)

        self._lane(lambda: self._ports.repository.store_manifest(manifest, self._owner), done)

    def _record_found(self, result: object) -> None:
        match result:
            case joblog.Record():
                self.refused = None
                try:
                    transition = master.step(self.state, RecordFound(result), self._moment())
                except HoldfastError as error:  # a record of another job or history: the root was replaced
                    self._fail(error)
                    return
                self._perform(*transition)
                self._folds.seen(self.state.job)
                if (deployed := self.state.deployed) is not None:
                    self._last = deployed.last
                    self.publications.completed(deployed.last)
            case Unavailable() as error:
                self.refused = error
                self._after(LOG_RETRY_S, lambda: self._step(AppendUnknown()))
            case Fenced():
                self._perform(*end(self.state, "fenced", result.report()))
            case _:
                self._fail(result)

    def _base_loaded(self, result: object) -> None:
        match result:
            case Manifest():
                self._last = result
                self._step(ManifestLoaded(result))
            case Unavailable():
                completed = self.state.job.completed[-1]
                load = LoadManifest(completed.body.manifest)
                self._after(LOG_RETRY_S, lambda: self._perform(self.state, [load]))
            case _:
                self._fail(result)

    def _fail(self, error: object) -> None:
        if not isinstance(error, HoldfastError):
            assert isinstance(error, BaseException)
            raise error
        if isinstance(error, RootLost):
            self._perform(*end(self.state, REFUSED, report_of_lost_root(self.state, self._last, error)))
        else:
            self._perform(*end(self.state, "failed", error.report()))

    def _lane(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self._ports.lane("log").submit(work, done)

    def _after(self, delay_s: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._timers, (self._now() + delay_s, next(self._timer_ids), action))

    def _now(self) -> float:
        return self._ports.clock.monotonic()


SHOWN_MAX = 20
"""How many positions and targets the message names."""


def report_of_lost_root(state: Master, last: Manifest | None, error: HoldfastError) -> ErrorReport:
    """Return the error with the progress of the job and the place where its state still is.

    Args:
        last: The manifest of the last completed epoch; None if it is unknown.
    """
    report, job = error.report(), state.log.job
    if job is None or not job.completed:
        return report
    through = job.base_epoch
    clauses = [f"{report.not_done}. The last checkpoint was that of epoch {through}"]
    if last is not None and last.epoch == through:
        read = [f"{at.source}:{at.partition} at {at.offset}" for at in last.positions]
        clauses.append(f"the sources were read as far as {_shown(read)}")
    if delivered := _delivered(state):
        targets = [f"{sink} through epoch {epoch}" for sink, epoch in delivered]
        clauses.append(f"targets keep delivered output: {_shown(targets)}")
    if hosts := sorted({hosted.host for hosted in state.workers.values() if hosted.subtask is not None}):
        clauses.append(
            f"the state as of epoch {through} is in the memory of the workers, which ends with this run; their local "
            f"folders on {', '.join(hosts)} lag behind it, and only a root with this log can use them"
        )
    next_step = (
        f"put the root back as it was (undo the move, mount it, or restore a copy that has "
        f"{record_path(job.next_seq - 1)}) and run the job again: it continues after epoch {through}. Without such "
        "a copy the state cannot be restored: begin under another name, with targets of its own, and it reads its "
        "sources from the start"
    )
    return replace(report, job=job.name, epoch=through, not_done="; ".join(clauses), next=next_step)


def _delivered(state: Master) -> list[tuple[str, Epoch]]:
    newest: dict[str, Epoch] = {}
    for writer, tag in state.confirmed.items():
        newest[writer.sink] = max(newest.get(writer.sink, tag.epoch), tag.epoch)
    return sorted(newest.items())


def _shown(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN_MAX} more" if len(items) > SHOWN_MAX else ""
    return ", ".join(items[:SHOWN_MAX]) + more
