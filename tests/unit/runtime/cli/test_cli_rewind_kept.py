"""`holdfast rewind` to a record, with what stays accepted by name, with an estimate, and after a driver that died."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from words_job import Words, visible

import holdfast as hf
from holdfast.checkpoint.repository import Repository
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.operate.history import observed
from holdfast.runtime.rewind.plan import granted
from holdfast.runtime.rewind.sinks import outlooks, stands_against
from holdfast.runtime.wire import presence
from holdfast.runtime.wire.clock import SystemClock
from holdfast.sinks.contract.sink import Repair, Rewinding
from tests.unit.runtime.statuses import status_with

Capture = pytest.CaptureFixture[str]


class UnreachableTable(hf.SQLite):
    """A target that is unreachable."""

    def plan_repair(self, rewinding: Rewinding, schema: pa.Schema, key: Sequence[str] | None) -> Repair:
        raise hf.Unavailable("nobody answers", next_step="try again")


@pytest.fixture
def words(tmp_path: Path) -> Words:
    job = Words(tmp_path)
    job.say(a=1, b=2)
    job.say(a=10, c=3)
    return job


def plan(words: Words, capsys: Capture, *arguments: str) -> dict[str, Any]:
    """Return the plan, which is only shown."""
    capsys.readouterr()
    assert main(["rewind", words.file, *arguments, "--json"]) == 3
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def refusal(words: Words, capsys: Capture, *arguments: str) -> str:
    """Return the message of a refused rewind."""
    timeline = words.job.timeline
    assert main(["rewind", words.file, *arguments]) == 2
    assert words.job.timeline == timeline
    return capsys.readouterr().err


def next_offset(words: Words, epoch: int) -> int:
    """Return the offset from which a checkpoint resumes reading partition 0."""
    done = next(each for each in words.job.completed if each.body.epoch == epoch)
    manifest = Repository(words.store).load_manifest(done.body.manifest)
    return next(at.offset for at in manifest.positions if at.partition == 0)


class TestToOffset:
    @pytest.mark.parametrize("offset", [2, 3])
    def test_goes_to_the_newest_checkpoint_that_has_not_read_the_record(
        self, words: Words, capsys: Capture, offset: int
    ) -> None:
        words.stop()
        shown = plan(words, capsys, "--to-offset", f"rows:0:{offset}")
        epoch = shown["to"]["epoch"]
        later = [each.body.epoch for each in words.job.completed if each.body.epoch > epoch]
        assert next_offset(words, epoch) == 2 and next_offset(words, later[0]) == 4
        assert [at["records"] for at in shown["sources"] if at["partition"] == 0] == [2]
        assert main(["rewind", words.file, "--to-offset", f"rows:0:{offset}", "--apply"]) == 0
        assert visible(words.folder)["out"] == [["a", 1, 1], ["b", 1, 2]]

    @pytest.mark.parametrize("offset", [4, 1_000])
    def test_a_record_that_was_not_read_yet_is_refused(self, words: Words, capsys: Capture, offset: int) -> None:
        words.stop()
        said = refusal(words, capsys, "--to-offset", f"rows:0:{offset}", "--apply")
        last = words.job.base_epoch
        assert f"offset {offset:,} of partition 0 of 'rows' was not read yet" in said
        assert f"the last checkpoint, epoch {last}, at offset 4" in said
        assert f"--to-epoch {last}" in said

    def test_a_record_before_the_oldest_checkpoint_is_refused_with_its_offset(
        self, words: Words, capsys: Capture
    ) -> None:
        words.stop()
        said = refusal(words, capsys, "--to-offset", "rows:0:1")
        assert "has read up to offset 2" in said and "the nearest epochs it can be rewound to" in said

    @pytest.mark.parametrize(
        ("asked", "why"),
        [
            ("rowz:0:1", "has no source 'rowz'"),
            ("rows:9:1", "has no partition 9"),
            ("rows:0", "does not name a record"),
            ("rows:0:-1", "does not name a record"),
            (":0:1", "does not name a record"),
        ],
    )
    def test_a_source_or_partition_that_the_job_never_read_is_refused(
        self, words: Words, capsys: Capture, asked: str, why: str
    ) -> None:
        words.stop()
        assert why in refusal(words, capsys, "--to-offset", asked)


class TestAccept:
    def test_the_plan_lists_the_verdicts_to_accept(self, words: Words, capsys: Capture) -> None:
        words.stop()
        words.forget("out")
        shown = plan(words, capsys, "--to-epoch", str(words.epochs[0]))
        out = next(sink for sink in shown["sinks"] if sink["name"] == "out")
        assert shown["accept"] == ["out:impossible"]
        assert (out["verdict"], out["restore"], out["delete"]) == ("impossible", None, None)
        assert "if you accept that, its rows stay" in out["reason"]

    @pytest.mark.parametrize("given", [[], ["--accept", "said:impossible"]])
    def test_other_verdicts_than_the_listed_ones_are_refused(
        self, words: Words, capsys: Capture, given: list[str]
    ) -> None:
        words.stop()
        words.forget("out")
        said = refusal(words, capsys, "--to-epoch", str(words.epochs[0]), "--apply", *given)
        assert "or accept it: --accept out:impossible" in said

    @pytest.mark.parametrize("given", ["out", "out:overwrite", "out:duplicate", ":impossible"])
    def test_an_argument_that_is_no_verdict_is_refused(self, words: Words, capsys: Capture, given: str) -> None:
        words.stop()
        assert "names no sink's verdict" in refusal(words, capsys, "--to-epoch", "1", "--accept", given)

    def test_an_unknown_sink_is_refused(self, words: Words, capsys: Capture) -> None:
        words.stop()
        said = refusal(words, capsys, "--to-epoch", str(words.epochs[0]), "--apply", "--accept", "oot:impossible")
        assert "the app has no sink 'oot'" in said and "log, out, said, tagged" in said

    def test_accepted_rows_stay_writers_are_fenced_and_the_log_records_it(self, words: Words, capsys: Capture) -> None:
        words.stop()
        words.forget("out", "said")
        accept = ("--accept", "out:impossible", "--accept", "said:impossible")
        assert main(["rewind", words.file, "--to-epoch", str(words.epochs[0]), "--apply", *accept]) == 0
        assert words.job.rewinds[-1].accepted == ("out:impossible", "said:impossible")
        found = visible(words.folder)
        assert found["out"] == [["a", 2, 11], ["b", 1, 2], ["c", 1, 3]]
        assert found["said"] == [["a", 1], ["a", 10], ["b", 2], ["c", 3]]
        assert found["tagged"] == [["a", 1, 1], ["b", 1, 2]] and found["log"] == [["a", 1], ["b", 2]]
        with closing(sqlite3.connect(words.folder / "out.db")) as db:
            tags = db.execute("SELECT DISTINCT timeline, epoch FROM holdfast_progress").fetchall()
        assert tags == [(2, words.epochs[0])]
        capsys.readouterr()
        assert main(["events", "words", "--root", str(words.folder / "root"), "--json"]) == 0
        [event] = [each for each in json.loads(capsys.readouterr().out) if each["event"] == "rewound"]
        assert event["cause"] == f"rewound to epoch {words.epochs[0]}, accepted: out:impossible, said:impossible"

    def test_output_processed_again_is_added_to_accepted_rows(self, words: Words) -> None:
        words.stop()
        words.forget("out", "said")
        accept = ("--accept", "out:impossible", "--accept", "said:impossible")
        assert main(["rewind", words.file, "--to-epoch", str(words.epochs[0]), "--apply", *accept]) == 0
        words.cluster.replace_driver()
        words.say(d=4)
        found = visible(words.folder)
        assert found["out"] == found["tagged"] == [["a", 2, 11], ["b", 1, 2], ["c", 1, 3], ["d", 1, 4]]
        assert found["said"] == [["a", 1], ["a", 10], ["a", 10], ["b", 2], ["c", 3], ["c", 3], ["d", 4]]
        assert found["log"] == [["a", 1], ["a", 10], ["b", 2], ["c", 3], ["d", 4]]

    def test_an_interrupted_repair_gives_the_same_rows_when_it_is_completed(self, words: Words) -> None:
        words.stop()
        words.forget("out")
        with closing(sqlite3.connect(words.folder / "out.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            arguments = ("--to-epoch", str(words.epochs[0]), "--apply", "--accept", "out:impossible", "--timeout", "1s")
            assert main(["rewind", words.file, *arguments]) == 5
        cut_short = words.job
        assert cut_short.repair_due and cut_short.timeline == 2
        words.cluster.replace_driver()
        words.say(d=4)
        made_up_for = words.job
        assert not made_up_for.repair_due and made_up_for.timeline == 2
        assert visible(words.folder)["out"] == [["a", 2, 11], ["b", 1, 2], ["c", 1, 3], ["d", 1, 4]]

    def test_a_later_rewind_undoes_output_after_the_accepted_one(self, words: Words) -> None:
        words.stop()
        words.forget("said")
        accept = ("--accept", "said:impossible")
        assert main(["rewind", words.file, "--to-epoch", str(words.epochs[0]), "--apply", *accept]) == 0
        words.cluster.replace_driver()
        words.say(d=4)
        words.say(e=5)
        words.stop()
        assert main(["rewind", words.file, "--to-epoch", str(words.epochs[2]), "--apply"]) == 0
        said = [["a", 1], ["a", 10], ["a", 10], ["b", 2], ["c", 3], ["c", 3], ["d", 4]]
        assert visible(words.folder)["said"] == said

    def test_a_sealed_target_cannot_be_accepted(self, words: Words, capsys: Capture) -> None:
        words.stop()
        assert main(["log", "seal", str(words.folder / "log")]) == 0
        to = ("--to-epoch", str(words.epochs[0]))
        assert plan(words, capsys, *to)["accept"] == []
        said = refusal(words, capsys, *to, "--apply", "--accept", "log:impossible")
        assert "the log is sealed" in said and "accept" not in said

    def test_a_missing_target_cannot_be_accepted(self, words: Words, capsys: Capture) -> None:
        words.stop()
        (words.folder / "out.db").unlink()
        assert plan(words, capsys, "--to-epoch", str(words.epochs[0]))["accept"] == []

    def test_a_damaged_target_cannot_be_accepted(self, words: Words, capsys: Capture) -> None:
        words.stop()
        with (words.folder / "out.db").open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 3900)
        self.nothing_helps(words, capsys)

    def test_a_target_on_a_newer_timeline_cannot_be_accepted(self, words: Words, capsys: Capture) -> None:
        words.stop()
        with closing(sqlite3.connect(words.folder / "out.db")) as db, db:
            db.execute("UPDATE holdfast_progress SET timeline = 9")
        self.nothing_helps(words, capsys)

    def test_an_unreachable_target_is_unknown_and_blocks_nothing(self, words: Words) -> None:
        repository, job = Repository(words.store), words.job
        there = repository.load_manifest(job.completed[0].body.manifest)
        spec = next(spec for spec in words.plan.sinks if spec.name == "out")
        away = replace(spec, sink=UnreachableTable(words.folder / "out.db", "totals", ["word"]))
        out = outlooks(repository, job, there, there, [away], SystemClock())[0]
        assert (out.shown["verdict"], out.shown["reason"]) == (None, "nobody answers")
        assert stands_against(out, ()) is None

    def nothing_helps(self, words: Words, capsys: Capture) -> None:
        """A rewind that would have to repair `out` is refused before it starts, whatever is accepted."""
        to = ("--to-epoch", str(words.epochs[0]))
        shown = plan(words, capsys, *to)
        assert next(sink["verdict"] for sink in shown["sinks"] if sink["name"] == "out") == "impossible"
        assert shown["accept"] == []
        said = refusal(words, capsys, *to, "--apply", "--accept", "out:impossible")
        assert "sink 'out' cannot undo its output" in said

    def test_a_running_job_is_rewound_only_with_the_verdicts_its_targets_need(self, words: Words) -> None:
        words.forget("out")
        assert str(granted_to(words)).endswith("to accept that: --accept out:impossible")
        assert isinstance(granted_to(words, "said:impossible"), str)
        args = granted_to(words, "out:impossible")
        generation = words.job.generation
        assert isinstance(args, dict)
        assert words.cluster.driver.asked("rewind", args, generation, generation) is not None
        words.say(d=4)
        assert words.job.rewinds[-1].accepted == ("out:impossible",)
        assert visible(words.folder)["out"] == [["a", 2, 11], ["b", 1, 2], ["c", 1, 3], ["d", 1, 4]]

    def test_a_running_job_drops_verdicts_that_its_targets_do_not_need(self, words: Words) -> None:
        """Otherwise rows would stay silently if the horizon moved before the repair, now or in a recovery."""
        words.forget("out")
        args = granted_to(words, "out:impossible", "said:impossible")
        assert isinstance(args, dict) and args["accept"] == ["out:impossible"]

    def test_a_running_job_refuses_an_unknown_sink(self, words: Words) -> None:
        assert "has no sink 'oot'" in str(granted_to(words, "oot:impossible"))


def granted_to(words: Words, *accept: str) -> object:
    """Return the running driver's answer to a request to rewind to the first epoch."""
    args = {"epoch": words.epochs[0], "timeline": 1, "accept": list(accept)}
    operators = words.cluster.driver.state.rules.operators
    return granted(Repository(words.store), words.job, args, words.plan.sinks, operators)


class TestPlan:
    def test_the_rewind_plan_of_a_running_job_stays_valid_after_newer_checkpoints(
        self, words: Words, capsys: Capture
    ) -> None:
        to = ("--to-epoch", str(words.epochs[0]))
        first = plan(words, capsys, *to)
        words.say(d=4)
        second = plan(words, capsys, *to)
        assert first["from"]["epoch"] < second["from"]["epoch"] and first["plan_id"] == second["plan_id"]

    def test_becomes_invalid_when_a_target_needs_another_verdict(self, words: Words, capsys: Capture) -> None:
        words.stop()
        to = ("--to-epoch", str(words.epochs[0]))
        shown = plan(words, capsys, *to)
        words.forget("out")
        accept = ("--accept", "out:impossible")
        assert main(["rewind", words.file, *to, "--apply", "--plan", shown["plan_id"], *accept]) == 6
        assert words.job.timeline == 1

    def test_becomes_invalid_when_the_job_was_started_again(self, words: Words, capsys: Capture) -> None:
        words.stop()
        to = ("--to-epoch", str(words.epochs[0]))
        shown = plan(words, capsys, *to)
        words.cluster.replace_driver()
        words.say(d=4)
        words.stop()
        assert main(["rewind", words.file, *to, "--apply", "--plan", shown["plan_id"]]) == 6
        assert words.job.timeline == 1


class TestEstimate:
    def test_divides_records_by_the_best_rate_of_recent_epochs(self, words: Words, capsys: Capture) -> None:
        words.stop()
        shown = plan(words, capsys, "--to-epoch", str(words.epochs[0]))
        # Two records in epochs of a second make a second; taking back a few rows adds to it.
        assert shown["estimate_ms"] is not None and shown["estimate_ms"] > 900

    def test_is_unknown_if_targets_are_unknown(self, words: Words, capsys: Capture) -> None:
        words.stop()
        arguments = ["rewind", "words", "--root", str(words.folder / "root"), "--to-epoch", str(words.epochs[0])]
        assert main([*arguments, "--json"]) == 3
        assert json.loads(capsys.readouterr().out)["estimate_ms"] is None
        assert main(arguments) == 3
        assert "time until the job is back where it is now: unknown" in capsys.readouterr().out

    def test_is_zero_only_if_there_is_nothing_to_do(self, words: Words, capsys: Capture) -> None:
        words.stop()
        assert plan(words, capsys, "--to-epoch", str(words.job.base_epoch))["estimate_ms"] == 0


class TestDeadDriver:
    """The log records that a generation began just now; nothing but its owner is known."""

    def state(self, words: Words, **changed: object) -> object:
        with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
            ended.wait()
        now_us = words.job.starts[-1].at + 1_000
        driver = msgspec.structs.replace(presence.myself(words.job.owner, now_us), **{"pid": ended.pid, **changed})
        live = status_with(generation=0, mode="continuous", driver=driver)
        return observed(words.job, "words", "", live, now_us).state

    def test_is_detected_by_its_token_before_its_first_status(self, words: Words) -> None:
        assert self.state(words) == "unreachable"

    def test_is_not_inferred_from_the_end_of_another_driver(self, words: Words) -> None:
        assert self.state(words, owner="another") == "starting"

    def test_a_live_driver_is_awaited(self, words: Words) -> None:
        assert self.state(words, pid=os.getpid()) == "starting"

    def test_the_command_reports_its_own_presence_and_its_end(self, words: Words) -> None:
        assert main(["rewind", words.file, "--to-epoch", str(words.epochs[0]), "--apply"]) == 0
        live = json.loads(words.store.get("live.json"))
        assert (live["state"], live["timeline"], live["driver"]["owner"]) == ("stopped", 2, words.job.owner)
