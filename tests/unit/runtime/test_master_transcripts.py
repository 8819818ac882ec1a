"""The master, as transcripts: tests/transcripts/master."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from master_runs import RULES, Run, blob, report, staged
from transcripts import compare, scripts

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.manifest import Confirmed, SubtaskPart
from holdfast.errors import Unavailable
from holdfast.model import Epoch, Generation, SourcePosition, Subtask, Tag, Timeline, WorkerId, Writer
from holdfast.runtime.driver import master
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
    StoreManifest,
    SweepObjects,
    TargetsRepaired,
    WorkerStreamClosed,
)
from holdfast.runtime.driver.partitions import counts_of
from holdfast.runtime.driver.requests import carry_out
from holdfast.runtime.driver.state import (
    Delivering,
    Deployed,
    Finishing,
    Gathering,
    Interrupted,
    Loading,
    Opening,
    Over,
    Phase,
    Repaired,
    Repairing,
    RewindWanted,
    Stopping,
)
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.vitals import FUNCTION

OUT = Writer("out", Subtask(0))


SHORT: Mapping[str, Callable[[list[str]], tuple[str, ...]]] = {
    "start": lambda w: ("begin", "append", "append", "pass 0", f"register {' '.join(w)}", f"ready {' '.join(w)}"),
    "complete": lambda w: (f"ack {' '.join(w)}", "store", "append"),
}
"""Events in short, of which a transcript does not show the effects; start.txt and epoch.txt do."""


class Played:
    """Drivers of a job with two subtasks, whose epochs close every 10 s and are given up after 30 s. Events:

    `start W..`: a new job runs on these workers; `complete EPOCH W.. [staged]`: they ack it, its record is appended.
    `driver NAME [once] [width=N] [failures=N] [every=SECONDS] [standbys=N]`: this driver takes the next events. A new
    one shares the log and reads up to fixed ends, has so many subtasks, is ended by one failure more, lists the sources
    every so often, wants so many standbys. `begin [rewind EPOCH]`; `append`: the record in flight reaches the log;
    `append unknown`; `append SavepointNamed EPOCH NAME`: another process appends that first; `record SEQ` is read.
    `load`: the manifest of the base is read; `store`: the manifest is durable; `repaired`.

    `pass SECONDS [without W..]`: time passes, and these workers are silent; `pulse`; `close`: an epoch is wanted.

    `register W..`; `ready W..`; `ack EPOCH W.. [staged]`; `beat W.. [ended] [caught-up] [wants] [broken] [quiet=EPOCH]
    [delivered=TIMELINE/EPOCH[/SUBTASK]]`; `fail W WHAT [permanent]`; `vitals W held|hung`; each with `old` before it:
    of the generation before. `lose W`; `end launch N WHAT`.

    `ask stop|finish|drop|now|savepoint NAME|rewind EPOCH [stop]`; `list [PARTITION..]`: the sources have what is known,
    and these, or `list only PARTITION..`; `unlisted`.
    """

    def __init__(self) -> None:
        self.runs = dict[str, Run]()
        self.run: Run
        self.moves = set[tuple[type, type]]()
        """The changes of phase that were seen."""

    def _driver(self, name: str, given: list[str]) -> Run:
        if name not in self.runs:
            known = dict(each.partition("=")[::2] for each in given)
            rules = replace(
                RULES,
                until={"s": {0: 5, 1: 7, 2: 0}} if "once" in known else None,
                restart_failures_max=int(known.get("failures", RULES.restart_failures_max)),
                discover_every=float(known.get("every", 0)),
                standbys=int(known.get("standbys", 0)),
                key_ranges=((0, 128),) if known.get("width") == "1" else RULES.key_ranges,
            )
            run = Run(rules)
            run.lists = False
            if self.runs:
                run.log, run.manifests, run.now = self.run.log, self.run.manifests, self.run.now
            self.runs[name] = run
        self.run, self.name = self.runs[name], name
        return self.run

    def play(self, words: list[str]) -> list[str]:
        """Take one event."""
        if words[0] == "driver":
            run = self._driver(words[1], words[2:])
            return [self._state() if hasattr(run, "state") else f"{words[1]} has not begun"]
        if not self.runs:
            self._driver("driver", [])
        before = len(self.run.effects)
        if words[0] in SHORT:
            for line in SHORT[words[0]](words[1:]):
                self.play(line.split())
            return [self._state()]
        said = self._take(words)
        return [*said, *filter(None, map(self._effect, self.run.effects[before:])), self._state()]

    def step(self, event: Event) -> None:
        """Give the driver an event, and note where it leads."""
        phase = type(self.run.state.phase)
        self.run.take(master.step(self.run.state, event, Moment(self.run.now)))
        self.moves.add((phase, type(self.run.state.phase)))

    def _take(self, words: list[str]) -> list[str]:
        run = self.run
        match words:
            case ["begin"]:
                run.begin(self.name)
            case ["begin", "rewind", epoch]:
                job = reduce(joblog.fold, run.log, None)
                assert job is not None
                run.take(master.begin_rewind(run.rules, self.name, job, RewindWanted(Epoch(int(epoch)), True), 0))
            case ["append"]:
                self._append()
            case ["append", "unknown"]:
                self.step(AppendUnknown())
            case ["append", "SavepointNamed", epoch, name]:
                job, body = run.state.job, joblog.SavepointNamed(Epoch(int(epoch)), name)
                run.log.append(joblog.Record(job.next_seq, job.uuid, job.generation, job.timeline, "other", 0, body))
                self._append()
            case ["record", seq]:
                self.step(RecordFound(run.log[int(seq) - 1]))
            case ["load"]:
                base = next(each for each in run.manifests if each.epoch == run.state.job.base_epoch)
                self.step(ManifestLoaded(base))
            case ["store"]:
                manifest = next(e.manifest for e in reversed(run.effects) if isinstance(e, StoreManifest))
                run.manifests.append(manifest)
                self.step(ManifestStored(manifest, blob(f"manifests/{manifest.epoch}")))
            case ["repaired"]:
                self.step(TargetsRepaired(run.generation, frozenset({OUT})))
            case ["pass", seconds, *silent]:
                phase = type(run.state.phase)
                run.pass_time(float(seconds), alive=tuple(w for w in run.state.workers if w not in silent))
                self.moves.add((phase, type(run.state.phase)))
            case ["pulse"]:
                self.step(Beat(0.5))
            case ["close"]:
                self.step(EpochAsked())
            case ["lose", name]:
                self.step(WorkerStreamClosed(WorkerId(name), "stream closed"))
            case ["end", "launch", number, *why]:
                self.step(LaunchEnded(int(number), " ".join(why)))
            case ["list", "only", *partitions]:
                there = [SourcePosition("s", int(partition), 0) for partition in partitions]
                self.step(SourcesListed(self._listing().number, there))
            case ["list", *partitions]:
                known = [SourcePosition(s, p, 0) for s, some in self._listing().known.items() for p in some]
                new = [SourcePosition("s", int(partition), 0) for partition in partitions]
                self.step(SourcesListed(self._listing().number, (*known, *new)))
            case ["unlisted"]:
                error = Unavailable("source 's' is unreachable", next_step="wait")
                self.step(SourcesUnlisted(self._listing().number, error))
            case ["ask", *request]:
                return [self._ask(request)]
            case ["old", *message]:
                self._hear(message, Generation(run.generation - 1))
            case _:
                self._hear(words, run.state.log.job.generation if run.state.log.job else Generation(0))
        return []

    def _append(self) -> None:
        """The record in flight reaches the log, if its number is free; whatever is there is read."""
        run = self.run
        record = next(e.record for e in reversed(run.effects) if isinstance(e, CreateRecord))
        if record.seq == len(run.log) + 1:
            run.log.append(record)
        self.step(RecordFound(run.log[record.seq - 1]))

    def _listing(self) -> ListPartitions:
        return next(each for each in reversed(self.run.effects) if isinstance(each, ListPartitions))

    def _hear(self, words: list[str], generation: Generation) -> None:
        """Take a message, of each of these workers."""
        run, (what, *rest) = self.run, words
        names = [WorkerId(word) for word in rest if len(word) == 1 and word.isalpha()]
        flags = dict(word.partition("=")[::2] for word in rest)
        assert names and what in ("register", "ready", "ack", "beat", "fail", "vitals"), f"no event: {words}"
        for name in names:
            hosted = run.state.workers.get(name)
            subtask = Subtask(0) if hosted is None or hosted.subtask is None else hosted.subtask
            match what:
                case "register":
                    launch = min(run.state.launching, default=99)
                    self.step(m.Register(name, launch, "here", 1, "boot", ("here", ord(name))))
                case "ready":
                    self.step(m.Ready(name, generation, "empty", 1))
                case "ack":
                    output = {"out": staged(f"out{rest[0]}")} if "staged" in flags and subtask in (0, 1) else {}
                    output = output if name == names[0] else {}
                    self.step(m.Ack(name, generation, Epoch(int(rest[0])), SubtaskPart(subtask, (), None, output, ())))
                case "beat":
                    self.step(self._heartbeat(name, subtask, generation, flags))
                case "fail":
                    error = report(rest[1])
                    self.step(m.Failed(name, generation, error, "permanent" in flags))
                case _:
                    self.step(m.Vitals(name, "hung" if "hung" in flags else "held", FUNCTION + "total", 5_000))

    def _heartbeat(
        self, name: WorkerId, subtask: Subtask, generation: Generation, flags: Mapping[str, str]
    ) -> m.Heartbeat:
        done = (_confirmed(flags["delivered"]),) if "delivered" in flags else ()
        return m.Heartbeat(
            name,
            generation,
            "ended" in flags,
            "broken" in flags,
            done,
            m.WorkerProgress(),
            caught_up="caught-up" in flags,
            quiet=Epoch(int(flags.get("quiet", 0))),
            partitions=counts_of(self.run.state)[subtask],
            wants_barrier="wants" in flags,
        )

    def _ask(self, request: list[str]) -> str:
        run = self.run
        kind, args = "stop", dict[str, Any]()
        match request:
            case ["rewind", epoch, *stop]:
                kind, args = "rewind", {"epoch": int(epoch), "timeline": run.state.job.timeline, "stop": bool(stop)}
            case ["savepoint", name]:
                kind, args = "savepoint", {"name": name}
            case ["finish" | "now" as how]:
                args = {"how": how}
            case ["drop"]:
                args = {"how": "finish", "unread": "drop"}
        state, effects, answer = carry_out(run.state, kind, args, run.generation, Generation(1))
        run.take((state, effects))
        assert answer is not None
        return "accepted" if answer.accepted else f"refused: {answer.reason}"

    def _effect(self, effect: Effect) -> str | None:
        match effect:
            case CreateRecord(record):
                return f"append #{record.seq} {_record(record)}"
            case LoadManifest(ref):
                return f"load {ref.path}"
            case StoreManifest(manifest):
                parts = [f"partition {at.partition} at {at.offset}" for at in manifest.positions]
                parts += [f"{_tag(item.tag)} of writer {item.writer.subtask} to deliver" for item in manifest.pending]
                parts += [f"{_tag(done.tag)} of writer {done.writer.subtask} delivered" for done in manifest.confirmed]
                return ", ".join([f"store the manifest of epoch {manifest.epoch}", *parts])
            case RepairTargets(job, base):
                return f"repair the targets to epoch {base.epoch} on timeline {job.timeline}"
            case Send(worker, message):
                return f"to {worker}: {_message(message)}"
            case Launch(number):
                return f"launch {number}"
            case Dismiss(worker, _):
                return f"dismiss {worker}"
            case Cancel(number):
                return f"cancel launch {number}"
            case ListPartitions(_, known, _):
                return f"list the sources, of which {_places(known)} is known"
            case SweepObjects():
                return "sweep"
            case End(outcome, error):
                return f"end as {outcome}" + (f": {error.what}" if error else "")

    def _state(self) -> str:
        state = self.run.state
        flight = f", {type(state.log.record.body).__name__} in flight" if isinstance(state.log, append.InFlight) else ""
        match state.ending:
            case Stopping():
                flight += ", stopping"
            case Finishing():
                flight += ", finishing"
        return _phase(state.phase) + flight


def _places(partitions: Mapping[str, tuple[int, ...]]) -> str:
    return "; ".join(f"{source}/{','.join(map(str, some))}" for source, some in partitions.items())


def _confirmed(text: str) -> Confirmed:
    timeline, epoch, *subtask = map(int, text.split("/"))
    return Confirmed(Writer("out", Subtask(*subtask or [0])), Tag(Timeline(timeline), Epoch(epoch)))


def _tag(tag: Tag) -> str:
    return f"{tag.timeline}/{tag.epoch}"


def _record(record: joblog.Record) -> str:
    where = f"generation {record.generation}, timeline {record.timeline}"
    match record.body:
        case joblog.GenerationStarted(first_epoch=first, base_epoch=base, cause=cause):
            return f"GenerationStarted: {where}, base {base}, first epoch {first} ({cause})"
        case joblog.Rewound(base_epoch=base, first_epoch=first):
            return f"Rewound: {where}, base {base}, first epoch {first}"
        case joblog.CheckpointCompleted(epoch=epoch, follows=follows, savepoint=savepoint):
            return f"CheckpointCompleted: epoch {epoch} after {follows}" + (f" as {savepoint}" if savepoint else "")
        case joblog.Finished(epoch=epoch) | joblog.Stopped(epoch=epoch):
            return f"{type(record.body).__name__} at epoch {epoch}"
        case _:
            return type(record.body).__name__


def _message(message: m.FromDriver) -> str:
    match message:
        case m.Deploy():
            where = f"generation {message.generation}, timeline {message.timeline}, base {message.base_epoch}"
            pending = " ".join(f"{_tag(item.tag)} of writer {item.writer.subtask}" for item in message.pending)
            done = " ".join(f"{_tag(each.tag)} of writer {each.writer.subtask}" for each in message.confirmed)
            until = " ".join(f"{at.partition}/{at.offset}" for at in message.until)
            known = [f"{at.partition}" for at in message.positions if at.partition > 2]
            where += f", with partition {', '.join(known)}" if known else ""
            where += f", deliver {pending}" if pending else ""
            where += f", delivered {done}" if done else ""
            where += f", read to {until}" if until else ""
            return f"Deploy subtask {message.subtask} in {where}"
        case m.Trigger(_, barrier, finishing):
            last = ", the last, of finished input" if finishing else ", the last" if barrier.last else ""
            new = [f"{each.position.partition} to subtask {each.subtask}" for each in message.assignment]
            gives = f", gives partition {', '.join(new)}" if new else ""
            return f"Trigger epoch {barrier.epoch}, committed through {barrier.committed_through}{last}{gives}"
        case m.Committed(_, epoch, _):
            return f"Committed epoch {epoch}"
        case m.EndInput(drop_unread=True):
            return "EndInput, unread records are dropped"
        case m.Exit(reason):
            return f"Exit ({reason})"
        case _:
            return type(message).__name__


def _phase(phase: Phase) -> str:
    match phase:
        case Opening():
            return "opening"
        case Loading(stops=stops):
            return "loading the base" + (", then the run ends" if stops else "")
        case Repairing(stops=stops):
            return "repairing targets" + (", then the run ends" if stops else "")
        case Repaired():
            return "repaired: the run ends"
        case Gathering():
            return "gathering workers"
        case Delivering(final=final):
            return f"delivering epoch {final}, the last"
        case Deployed():
            return f"{type(phase).__name__.lower()}, {_epochs(phase)}"
        case Interrupted(deployed=deployed, cause=cause):
            return f"interrupted ({cause}), {_epochs(deployed)}"
        case Over(outcome=outcome):
            return f"over: {outcome}"


def _epochs(phase: Deployed) -> str:
    match phase.epochs:
        case coordinator.Idle(committed_through=epoch):
            return f"epoch {epoch} is completed"
        case coordinator.Collecting(barrier=barrier) | coordinator.Deciding(barrier=barrier) as epochs:
            return f"{type(epochs).__name__.lower()} epoch {barrier.epoch}"


@pytest.mark.parametrize("path", scripts("master"), ids=lambda path: path.stem)
def test_transcript(path: Path, rewrite: bool) -> None:
    compare(path, Played().play, rewrite=rewrite)
