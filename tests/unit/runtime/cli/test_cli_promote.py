"""`holdfast promote`: a stopped job, its targets, and what a kill between two steps leaves."""

from __future__ import annotations

import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import words_job

CODE = """
import holdfast as hf
from dataclasses import dataclass

@dataclass
class Said:
    word: str
    n: int

def counted(said: Said) -> Said:
    return Said(said.word, said.n)

app = hf.App("words", root={folder!r} + "/root", checkpoint_every="1s")
rows = app.source("rows", hf.Log({folder!r} + "/rows", Said)).map(counted, to=Said)
totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
totals.sink("out", hf.SQLite({folder!r} + "/out.db", table="totals", key=["word"]))
"""
DOUBLING = CODE.replace("said.n)", "2 * said.n)")


class Words(words_job.Words):
    """A job that counts right, then wrong since the second epoch, and is stopped."""

    code = CODE

    def __init__(self, folder: Path, holdfast: Callable[..., Any]) -> None:
        super().__init__(folder)
        self.holdfast, self.new = holdfast, str(folder / "new.py")
        self.say(a=1, b=2)
        self.stop()
        self.go_on(DOUBLING)
        self.say(a=10, c=3)
        self.say(b=100)
        self.stop()
        self.written(CODE)

    def written(self, code: str) -> None:
        Path(self.new).write_text(code.format(folder=str(self.folder)))

    def table(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.folder / "out.db")) as db:
            return dict(db.execute("SELECT word, total FROM totals").fetchall())

    def promote(self, *arguments: str) -> Any:
        return self.holdfast("promote", self.file, self.new, *arguments)

    def run_new(self) -> None:
        """Run the new code to the end of the input."""
        self.go_on(Path(self.new).read_text().replace("{", "{{").replace("}", "}}"))
        self.cluster.pass_time(3.0)
        self.stop()


@pytest.fixture
def words(tmp_path: Path, holdfast: Callable[..., Any]) -> Words:
    job = Words(tmp_path, holdfast)
    assert job.table() == {"a": 21, "b": 202, "c": 6}
    return job


RIGHT = {"a": 11, "b": 102, "c": 3}


class TestPlan:
    def test_shows_what_would_be_done_and_changes_nothing(self, words: Words) -> None:
        before = words.job
        ended = words.promote("--from", str(words.epochs[0]), "--json")
        assert ended.status == 3, ended
        found = ended.json
        assert (found["epoch"], found["savepoint"]) == (words.epochs[0], f"before-promote-{words.epochs[0]}")
        assert (found["state"], found["applied"], found["rewind"]["applied"]) == ("stopped", False, False)
        [out] = found["rewind"]["sinks"]
        assert (out["name"], out["restore"], out["delete"]) == ("out", 2, 1)
        assert shlex.split(found["start"]) == ["holdfast", "run", words.new]
        assert (words.job, words.table()) == (before, {"a": 21, "b": 202, "c": 6})

    def test_as_text_ends_with_the_command_that_carries_it_out(self, words: Words) -> None:
        ended = words.promote("--from", str(words.epochs[0]))
        assert ended.status == 3
        assert f"would be rewound from epoch {words.job.base_epoch}" in ended.out
        command = shlex.split(ended.err[ended.err.index("holdfast promote") :])
        assert command[-1] == "--apply" and words.holdfast(*command[1:]).status == 0


class TestApply:
    def test_without_a_checkpoint_names_the_last_one_and_says_how_to_start(self, words: Words) -> None:
        ended = words.promote("--apply", "--json")
        assert ended.status == 0, ended
        name = f"before-promote-{words.job.base_epoch}"
        assert words.job.savepoint(name) is not None and ended.json["savepoint"] == name
        assert words.table() == {"a": 21, "b": 202, "c": 6}, "nothing is taken back"
        assert f"holdfast run {words.new}" in ended.err

    def test_from_a_checkpoint_mends_what_the_former_code_wrote(self, words: Words) -> None:
        ended = words.promote("--from", str(words.epochs[0]), "--apply")
        assert ended.status == 0, ended
        assert words.table() == {"a": 1, "b": 2}, "as it was at the checkpoint"
        words.run_new()
        assert words.table() == RIGHT
        assert words.holdfast("audit", words.new).status == 0

    def test_can_be_repeated(self, words: Words) -> None:
        to = ("--from", str(words.epochs[0]), "--apply", "--json")
        first = words.promote(*to)
        timeline = words.job.timeline
        again = words.promote(*to)
        assert (first.status, again.status) == (0, 0)
        assert words.job.timeline == timeline and again.json["rewind"] is None
        words.run_new()
        assert words.table() == RIGHT


KILLED = 9
DYING = """
import os, sys
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.replay import promote
from holdfast.runtime.cli.operate import rewind
from holdfast.runtime.rewind import stopped

def dies(*args, **named):
    os._exit({killed})

def dies_behind_the_record(loop):
    turn(loop)
    if loop.state.log.job is not None and loop.state.log.job.timeline > 1:
        dies()

turn = stopped.DriverLoop.turn
{place} = {how}
main(sys.argv[1:])
"""


class TestKill:
    """Each place at which the command may end early; the same command then completes what is left."""

    @pytest.mark.parametrize(
        ("place", "how", "timeline"),
        [
            ("rewind.rewind_here", "dies", 1),
            ("stopped.DriverLoop.turn", "dies_behind_the_record", 2),
            ("promote.name_last", "dies", 2),
        ],
    )
    def test_leaves_a_state_that_the_same_command_completes(
        self, words: Words, place: str, how: str, timeline: int
    ) -> None:
        code = DYING.format(killed=KILLED, place=place, how=how)
        command = ["promote", words.file, words.new, "--from", str(words.epochs[0]), "--apply"]
        killed = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
        assert (killed.returncode, words.job.timeline) == (KILLED, timeline), killed.stderr
        ended = words.holdfast(*command)
        assert ended.status == 0, ended
        assert words.job.savepoint(f"before-promote-{words.epochs[0]}") is not None
        assert words.table() == {"a": 1, "b": 2}
        words.run_new()
        assert words.table() == RIGHT
        assert words.holdfast("audit", words.new).status == 0


class TestRefusals:
    @pytest.mark.parametrize(
        ("code", "arguments", "what"),
        [
            (CODE.replace('"words"', '"other"'), (), "builds the job 'other'"),
            (CODE.replace('.agg("totals"', '.agg("sums"'), (), "state is kept for totals"),
            (CODE.replace("total=hf.sum", "total=hf.max"), (), "total"),
            (CODE.replace('"1s")', '"1s", key_groups=64)'), (), "key_groups"),
            (CODE, ("--from", "99"), "has no checkpoint of epoch 99"),
            (CODE, ("--timeout", "soon"), "--timeout"),
        ],
    )
    def test_name_the_reason_and_change_nothing(
        self, words: Words, code: str, arguments: tuple[str, ...], what: str
    ) -> None:
        before = words.job
        words.written(code)
        ended = words.promote(*arguments, "--apply")
        assert ended.status == 2 and what in ended.err, ended
        assert "Not done: nothing was" in ended.err
        assert words.job == before

    def test_state_that_is_given_up_is_part_of_the_command_that_starts(self, words: Words) -> None:
        words.written(CODE.replace('.agg("totals"', '.agg("sums"'))
        ended = words.promote("--apply", "--drop-state", "totals")
        assert ended.status == 0, ended
        assert f"holdfast run {words.new} --drop-state totals" in ended.err
