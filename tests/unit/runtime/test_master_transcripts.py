"""The master, as transcripts: tests/transcripts/master."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transcripts import compare, scripts

from holdfast.checkpoint import append, coordinator, joblog
from holdfast.checkpoint.manifest import Confirmed
from holdfast.errors import Unavailable
from holdfast.model import Epoch, Generation, SourcePosition, Subtask, Tag, Timeline, WorkerId, Writer
from holdfast.runtime.driver import master
from holdfast.runtime.driver.events import (
    BaseLoaded,
    Cancel,
    CreateRecord,
    Dismiss,
    Effect,
    End,
    Launch,
    ListPartitions,
    LoadManifest,
    Moment,
    RepairTargets,
    Send,
    SourcesUnlisted,
    StoreManifest,
    SweepObjects,
    TargetsRepaired,
)
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
    Stopping,
)
from holdfast.runtime.wire import messages as m
from tests.unit.runtime.test_master import RULES, Run, staged

OUT = Writer("out", Subtask(0))


class Played:
    """One driver of a job with two subtasks, whose epochs close every 10 s. Events:

    `begin`; `append` (the record in flight reaches the log); `load` (the manifest of the base is read); `store` (the
    manifest is durable); `repaired`; `pass SECONDS`; `register W..`; `ready W..`; `ack EPOCH W.. [staged]`;
    `beat W.. [ended] [delivered=TIMELINE/EPOCH]`; `lose W`; `ask stop|finish|savepoint NAME|rewind EPOCH [stop]`;
    `begin every SECONDS` (between two listings of the sources); `list [PARTITION..]` (the sources have what is known,
    and these); `unlisted` (they could not be listed).
    """

    def __init__(self) -> None:
        self.run = Run(RULES)
        self.run.lists = False

    def play(self, words: list[str]) -> list[str]:
        """Take one event."""
        before = len(self.run.effects)
        said = self._take(words)
        return [*said, *filter(None, map(self._effect, self.run.effects[before:])), self._state()]

    def _take(self, words: list[str]) -> list[str]:
        run = self.run
        match words:
            case ["begin"]:
                run.begin()
            case ["append"]:
                run.append()
            case ["load"]:
                base = next(each for each in run.manifests if each.epoch == run.state.job.base_epoch)
                run.take(master.step(run.state, BaseLoaded(base), Moment(run.now)))
            case ["store"]:
                run.store()
            case ["repaired"]:
                run.take(master.step(run.state, TargetsRepaired(run.generation, frozenset((OUT,))), Moment(run.now)))
            case ["pass", seconds]:
                run.pass_time(float(seconds), alive=tuple(run.state.workers))
            case ["register", *names]:
                run.register(*map(WorkerId, names))
            case ["ready", *names]:
                run.ready(*map(WorkerId, names))
            case ["ack", epoch, *names]:
                self._ack(Epoch(int(epoch)), names)
            case ["beat", *names]:
                self._beat(names)
            case ["lose", name]:
                run.lose(WorkerId(name))
            case ["begin", "every", seconds]:
                run.rules = replace(RULES, discover_every=float(seconds))
                run.begin()
            case ["list", *partitions]:
                new = [SourcePosition("s", int(partition), 0) for partition in partitions]
                run.answer(self._listing(), *new)
            case ["unlisted"]:
                error = Unavailable("source 's' is unreachable", next_step="wait")
                run.take(master.step(run.state, SourcesUnlisted(self._listing().number, error), Moment(run.now)))
            case ["ask", *request]:
                return [self._ask(request)]
            case _:
                pytest.fail(f"no event: {words}")
        return []

    def _listing(self) -> ListPartitions:
        return next(each for each in reversed(self.run.effects) if isinstance(each, ListPartitions))

    def _ack(self, epoch: Epoch, names: list[str]) -> None:
        output = {"out": staged(f"out{epoch}")} if "staged" in names else {}
        for name in names:
            if name != "staged":
                self.run.ack(WorkerId(name), epoch, staged=output if name == "a" else {})

    def _beat(self, names: list[str]) -> None:
        delivered = [each.partition("=")[2] for each in names if each.startswith("delivered=")]
        done = tuple(Confirmed(OUT, _tag(each)) for each in delivered)
        for name in names:
            if name != "ended" and "=" not in name:
                self.run.hear(self.run.heartbeat(WorkerId(name), "ended" in names, done=done))

    def _ask(self, request: list[str]) -> str:
        run = self.run
        kind, args = "stop", dict[str, Any]()
        match request:
            case ["rewind", epoch, *stop]:
                kind, args = "rewind", {"epoch": int(epoch), "timeline": run.state.job.timeline, "stop": bool(stop)}
            case ["savepoint", name]:
                kind, args = "savepoint", {"name": name}
            case ["finish"]:
                args = {"how": "finish"}
        generation = run.generation
        state, effects, answer = carry_out(run.state, kind, args, generation, Generation(1))
        run.take((state, effects))
        assert answer is not None
        return "accepted" if answer.accepted else "refused"

    def _effect(self, effect: Effect) -> str | None:
        match effect:
            case CreateRecord(record):
                return f"append #{record.seq} {_record(record)}"
            case LoadManifest(ref):
                return f"load {ref.path}"
            case StoreManifest(manifest):
                stands = ", ".join(f"partition {at.partition} at {at.offset}" for at in manifest.positions)
                return f"store the manifest of epoch {manifest.epoch}" + (f", {stands}" if stands else "")
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
            case End(outcome, _):
                return f"end as {outcome}"

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


def _tag(text: str) -> Tag:
    timeline, _, epoch = text.partition("/")
    return Tag(Timeline(int(timeline)), Epoch(int(epoch)))


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
            pending = " ".join(f"{item.tag.timeline}/{item.tag.epoch}" for item in message.pending)
            known = [f"{at.partition}" for at in message.positions if at.partition > 2]
            where += f", with partition {', '.join(known)}" if known else ""
            return f"Deploy subtask {message.subtask} in {where}" + (f", deliver {pending}" if pending else "")
        case m.Trigger(_, barrier, finishing):
            last = ", the last, of finished input" if finishing else ", the last" if barrier.last else ""
            new = [f"{each.position.partition} to subtask {each.subtask}" for each in message.assignment]
            gives = f", gives partition {', '.join(new)}" if new else ""
            return f"Trigger epoch {barrier.epoch}, committed through {barrier.committed_through}{last}{gives}"
        case m.Committed(_, epoch, _):
            return f"Committed epoch {epoch}"
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
