"""The list of the checks of a start: each has a case that it refuses, and is the first one that does.

Facts are data, so a case states what storage and targets would say. That the words of each refusal reach users is
checked where its subject is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from master_runs import running

import holdfast as hf
from holdfast.checkpoint import joblog
from holdfast.checkpoint.manifest import Confirmed, Manifest, OperatorState
from holdfast.checkpoint.timeline import Rewind
from holdfast.model import (
    Epoch,
    Generation,
    JobUuid,
    ObjectRef,
    Pending,
    SourcePosition,
    Staged,
    Subtask,
    Tag,
    Timeline,
    Writer,
)
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.checks import ordered, second_run
from holdfast.runtime.execution.facts import NO_CHOICES, Choices, Facts, TargetFacts, facts_of
from holdfast.runtime.execution.inputs import SourceFacts
from holdfast.runtime.plan.shape import shape_of
from holdfast.runtime.rows.schema import schema_of
from holdfast.runtime.wire.presence import myself
from holdfast.sinks.contract.owners import Held, Holding, Rival
from holdfast.storage.log.log import create_log
from holdfast.storage.objects import LocalObjects, MemoryObjects
from tests.unit.runtime.test_explain import shown


@dataclass
class Order:
    word: str
    v: int


TAG, COPY = Tag(Timeline(1), Epoch(1)), Writer("copy", Subtask(0))
BEFORE = Manifest(
    *(JobUuid("job"), Generation(1), Timeline(1), Epoch(1), Epoch(0), 2, 128),
    positions=(SourcePosition("orders", 0, 3),),
    state=(),
    pending=(),
    confirmed=(Confirmed(Writer("out", Subtask(0)), TAG),),
    operators=(),
)
DONE = joblog.Completed(
    joblog.CheckpointCompleted(Epoch(1), Epoch(0), ObjectRef("m", 1, "0"), 1, 1, 1), Generation(1), Timeline(1), 0
)
JOB = joblog.Job(JobUuid("job"), "orders", 128, 0, 2, completed=(DONE,), owners=("mine",))
REWOUND = replace(JOB, rewinds=(Rewind(Timeline(2), Epoch(1), Epoch(9), 0),), timeline=Timeline(2))


class Records:
    """What the repository of a job says."""

    def __init__(self, manifest: Manifest = BEFORE, *origins: joblog.ForkOrigin) -> None:
        self._manifest, self._origins = manifest, origins

    def origins(self) -> tuple[joblog.ForkOrigin, ...]:
        return self._origins

    def records(self) -> tuple[joblog.Record, ...]:
        return ()

    def load_manifest(self, ref: ObjectRef) -> Manifest:
        return self._manifest


class Renewed(MemoryObjects):
    """A folder in which a live driver renews `live.json` all the time."""

    def get(self, path: str) -> bytes:
        return json.dumps(shown(running(), driver=myself("other", time.time_ns() // 1000))).encode()


def facts(
    folder: Path, source: Any = None, sink: Any = None, choices: Choices = NO_CHOICES, root: str = "root", **flags: str
) -> Facts:
    """Return the facts of a first start."""
    app = hf.App("orders", root=root if "://" in root else str(folder / root))
    orders = app.source("orders", source or hf.Log(folder / "orders", Order))
    totals = orders.key_by("word").agg("totals", total=hf.sum("v"))
    totals.sink("out", sink or hf.SQLite(folder / "out.db", table="totals", key=["word"]))
    known = facts_of(app.plan(), resolve(app, flags), choices)
    vars(known.folder).update(job=None)
    return known


def continued(known: Facts, job: joblog.Job = JOB, before: Manifest = BEFORE, **targets: Holding) -> Facts:
    """Return the facts of a start after this checkpoint, whose source and targets are as they were."""
    vars(known.folder).update(job=job, before=before, repository=Records(before), store=MemoryObjects())
    vars(known).update(_looks={"orders": SourceFacts(None, (0,), {0: 3})}, targets=TargetFacts(targets, job))
    return known


def changed(**fields: Any) -> Manifest:
    return msgspec.structs.replace(BEFORE, **fields)


def forked(folder: Path) -> Facts:
    known = continued(facts(folder))
    there = {"out": {"kind": "SQLite", **known.outputs[0].sink.traits.place}}
    origin = joblog.ForkOrigin("first", JobUuid("first"), Timeline(1), Epoch(1), there)
    vars(known.folder).update(repository=Records(BEFORE, origin))
    return known


def beside_a_run(folder: Path) -> Facts:
    known = continued(facts(folder))
    vars(known.folder).update(store=Renewed())
    return known


def immediate(folder: Path) -> Facts:
    app = hf.App("orders", root=str(folder / "root"))
    orders = app.source("orders", hf.Log(folder / "orders", Order), partitioned_by=["word"])
    orders.sink("out", hf.SQLite(folder / "out.db", table="t", key=["word"], delivery="idempotent"))
    return continued(facts_of(app.plan(), resolve(app), Choices(takeover=True)))


def recreated(folder: Path) -> Facts:
    create_log(LocalObjects(folder / "orders"), schema_of(Order))
    known = continued(facts(folder))
    vars(known).update(_looks={"orders": SourceFacts(hf.Damaged("another log", not_done="none", next_step="none"))})
    return known


def moved(folder: Path) -> Facts:
    known = continued(facts(folder), replace(REWOUND, abandoned=(DONE,)), out=Holding(None, None))
    shape = shape_of(facts(folder, sink=hf.SQLite(folder / "former.db", table="totals", key=["word"])).plan)
    vars(known.folder).update(repository=Records(changed(shape=shape)))
    return known


CASES: dict[str, Callable[[Path], Facts]] = {
    "private_memory": lambda folder: facts(folder, root="memory://here"),
    "own_root": lambda folder: facts(folder, hf.Files(folder / "in", Order, "jsonl"), root="in/jobs"),
    "state_memory": lambda folder: facts(folder, state_memory="64MiB", parallelism="16"),
    "microbatch": lambda folder: facts(folder, mode="microbatch", standbys="1"),
    "savepoint": lambda folder: facts(folder, choices=Choices(savepoint="v9")),
    "finished_rows": lambda folder: continued(
        facts(folder, hf.Rows([Order("a", 1)])), replace(JOB, ended=joblog.Finished(Epoch(1)))
    ),
    "fork_targets": forked,
    "key_groups": lambda folder: continued(facts(folder, key_groups="16")),
    "second_run": beside_a_run,
    "changelog": lambda folder: continued(facts(folder), before=changed(changelog={"kind": "kafka", "topic": "t"})),
    "undelivered": lambda folder: continued(
        facts(folder), before=changed(pending=(Pending(COPY, TAG, Staged((), 1)),))
    ),
    "written_immediately": immediate,
    "rewound": lambda folder: continued(facts(folder), REWOUND, changed(confirmed=(Confirmed(COPY, TAG),))),
    "kept_state": lambda folder: continued(facts(folder), before=changed(operators=(OperatorState("former", 1, {}),))),
    "secrets": lambda folder: facts(
        folder, sink=hf.Postgres("postgresql://a@127.0.0.1:1/x", "t", ["word"], password=hf.secret("env:NOT_SET_HERE"))
    ),
    "sources": facts,
    "inputs": recreated,
    "moved_targets": moved,
    "rivals": lambda folder: continued(facts(folder), out=Holding(None, None, Rival("other", "out", None))),
    "adoption": lambda folder: continued(facts(folder, choices=Choices(adopt_targets=["elsewhere"]))),
    "holdings": lambda folder: continued(facts(folder), out=Holding(Held("other", Generation(9)), None)),
}
WORDS = {
    "private_memory": "the root is memory://here, which is in the memory of one process",
    "own_root": "and so also the files of the job itself",
    "state_memory": "state_memory is 64MiB, and every worker",
    "microbatch": "standbys is 1, but in microbatch mode",
    "savepoint": "has no savepoint 'v9'",
    "finished_rows": "has finished, and its source 'orders' has other rows now",
    "fork_targets": "to which job 'first' delivers its sink 'out'; this job was forked from its epoch 1",
    "key_groups": "was created with key_groups=128, but now has key_groups=16",
    "second_run": "is running on",
    "changelog": "has its changelog in the root, but the state of epoch 1 is in",
    "undelivered": "no longer has the sink 'copy', but output for it is committed and not delivered yet",
    "written_immediately": "was written at each commit until now, and would now be written immediately",
    "rewound": "was rewound and sink 'copy' may hold output to undo",
    "kept_state": "state is kept for former, which the app no longer has",
    "secrets": "sink 'out': the environment variable NOT_SET_HERE",
    "sources": "no log exists at",
    "inputs": "another log",
    "moved_targets": "the output of sink 'out' is not undone yet: its output is in",
    "rivals": "sink 'out'",
    "adoption": "--adopt-targets elsewhere: the job has no sink of this name",
    "holdings": "another run took it over, in generation 9",
}
"""What the refusal of each case says."""
STAGES = ordered.ANY_JOB, ordered.OF_A_FINISHED_JOB, ordered.BEFORE_TARGETS, ordered.OF_TARGETS


class TestChecks:
    def test_are_all_listed_once_in_the_order_of_their_stages(self) -> None:
        assert [check for stage in STAGES for check in stage] == list(ordered.ALL)
        assert [ordered.name_of(check) for check in ordered.ALL] == list(CASES)

    def test_are_all_modules_of_the_room(self) -> None:
        modules = {file.stem for file in Path(ordered.__file__).parent.rglob("*.py")} - {"__init__", "ordered"}
        assert modules == set(CASES)

    @pytest.mark.parametrize("name", CASES)
    def test_refuses_its_case_and_is_the_first(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(second_run, "LOOK_EVERY_S", 0.0)
        known = CASES[name](tmp_path)
        (stage,) = (stage for stage in STAGES if name in map(ordered.name_of, stage))
        refused = [ordered.name_of(check) for check in stage if check(known) is not None]
        assert refused[0] == name
        with pytest.raises(hf.HoldfastError) as caught:
            ordered.pass_all(stage, known)
        assert WORDS[name] in caught.value.what

    def test_accept_a_start_that_continues_where_the_last_one_ended(self, tmp_path: Path) -> None:
        create_log(LocalObjects(tmp_path / "orders"), schema_of(Order))
        mine = Holding(Held("mine", Generation(1)), TAG)
        known = continued(facts(tmp_path), out=mine)
        for stage in STAGES:
            ordered.pass_all(stage, known)

    def test_settings_checks_show_a_plan_with_locations_that_only_a_run_refuses(self, tmp_path: Path) -> None:
        ordered.pass_all(ordered.OF_SETTINGS, CASES["private_memory"](tmp_path))


class TestFacts:
    def test_are_read_when_a_check_needs_them_and_once(self, tmp_path: Path) -> None:
        known = facts(tmp_path)
        assert list(tmp_path.iterdir()) == [], "nothing is opened before"
        assert known.outputs is known.outputs and known.given is known.given
        assert known.look(known.plan.sources[0]) is known.look(known.plan.sources[0])
