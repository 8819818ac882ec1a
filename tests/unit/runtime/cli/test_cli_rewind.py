"""`holdfast rewind` on a job with real targets, whose runs are those of a cluster in memory."""

from __future__ import annotations

import json
import shlex
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import words_job

from holdfast.checkpoint.repository import Repository
from holdfast.runtime.cli.main import main

FILE = """
import holdfast as hf
import polars as pl
from dataclasses import dataclass

@dataclass
class Said:
    word: str
    n: int

app = hf.App("words", root={folder!r} + "/root", checkpoint_every="1s")
rows = app.source("rows", hf.Log({folder!r} + "/rows", Said))
rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n")).sink(
    "out", hf.SQLite({folder!r} + "/out.db", table="totals", key=["word"])
)
"""


class Words(words_job.Words):
    """The same with one target, and commands on it."""

    code = FILE

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root, self.db = str(folder / "root"), str(folder / "out.db")

    def table(self) -> dict[str, int]:
        with closing(sqlite3.connect(self.db)) as db:
            return dict(db.execute("SELECT word, total FROM totals").fetchall())

    def rewind(self, *arguments: str) -> int:
        return main(["rewind", *arguments])


@pytest.fixture
def words(tmp_path: Path) -> Words:
    job = Words(tmp_path)
    job.say(a=1, b=2)
    job.say(a=10, c=3)
    return job


class TestPlan:
    def test_shows_the_effects_and_changes_nothing(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        words.stop()
        records = len(Repository(words.store).records())
        assert words.rewind(words.file, "--to-epoch", str(words.epochs[0]), "--json") == 3
        shown = json.loads(capsys.readouterr().out)
        head = words.job.base_epoch
        assert shown["from"] == {"timeline": 1, "epoch": head}
        assert (shown["to"]["timeline"], shown["to"]["epoch"]) == (2, words.epochs[0])
        assert [(at["records"], at["available"]) for at in shown["sources"] if at["records"]] == [(2, True)]
        assert [each["operator"] for each in shown["state"]] == ["totals"]
        [out] = shown["sinks"]
        assert (out["verdict"], out["restore"], out["delete"]) == ("overwrite", 1, 1)
        assert shown["applied"] is False and len(Repository(words.store).records()) == records
        assert words.table() == {"a": 11, "b": 2, "c": 3}

    def test_targets_are_unknown_if_only_the_job_name_is_given(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words.stop()
        assert words.rewind("words", "--root", words.root, "--to-epoch", str(words.epochs[0]), "--json") == 3
        shown = json.loads(capsys.readouterr().out)
        assert [(sink["verdict"], sink["restore"]) for sink in shown["sinks"]] == [(None, None)]
        assert {at["available"] for at in shown["sources"]} == {None}

    def test_a_stopped_job_given_by_name_is_not_offered_a_rewind(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words.stop()
        assert words.rewind("words", "--root", words.root, "--to-epoch", str(words.epochs[0])) == 3
        reported = capsys.readouterr().err
        assert "--apply" not in reported
        assert f"Give the file instead of the name: holdfast rewind JOB.py --to-epoch {words.epochs[0]}" in reported

    def test_the_text_has_tables_and_the_next_command(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        words.stop()
        assert words.rewind(words.file, "--to-epoch", str(words.epochs[0])) == 3
        reported = capsys.readouterr()
        assert "would be rewound" in reported.out and "overwrite" in reported.out
        assert "--apply --plan" in reported.err

    def test_the_next_command_finds_the_same_job(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        words.stop()
        Path(words.root).rename(elsewhere := Path(words.root).with_name("an other root"))
        epoch = str(words.epochs[0])
        assert words.rewind(words.file, "--root", str(elsewhere), "--app", "words", "--to-epoch", epoch) == 3
        advice = capsys.readouterr().err.strip().splitlines()[-1]
        command = shlex.split(advice[advice.index("holdfast rewind ") :])
        assert main(command[1:]) == 0
        assert words.table() == {"a": 1, "b": 2}

    def test_an_epoch_that_does_not_exist_names_its_neighbours(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words.stop()
        assert words.rewind(words.file, "--to-epoch", "1000") == 2
        reported = capsys.readouterr().err
        assert "no checkpoint of epoch 1000 exists" in reported and str(words.job.base_epoch) in reported

    def test_an_app_can_be_chosen_only_from_a_file(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("words", "--root", words.root, "--to-epoch", str(words.epochs[0]), "--app", "nope")
        assert words.rewind(*arguments) == 2
        assert "--app chooses an app of a file" in capsys.readouterr().err

    def test_a_time_without_its_zone_is_refused(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        assert words.rewind(words.file, "--to-time", "2026-11-20T18:00:00") == 2
        assert "has no time zone" in capsys.readouterr().err


class TestApply:
    def test_a_stopped_job_is_rewound_and_resumes_from_the_base(self, words: Words) -> None:
        words.stop()
        assert words.rewind(words.file, "--to-epoch", str(words.epochs[0]), "--apply") == 0
        assert words.table() == {"a": 1, "b": 2}
        job = words.job
        assert (job.timeline, job.base_epoch, type(job.ended).__name__) == (2, words.epochs[0], "Stopped")
        words.cluster.replace_driver()
        words.say(b=20)
        assert words.table() == {"a": 11, "b": 22, "c": 3}

    def test_a_job_whose_rows_a_table_never_accepts_can_be_rewound_and_corrected(self, words: Words) -> None:
        refuse = "CREATE TRIGGER no BEFORE INSERT ON totals WHEN NEW.word = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END"
        with closing(sqlite3.connect(words.db)) as db:
            db.execute(refuse)
        words.say(bad=1, a=5)
        assert words.cluster.driver.outcome is not None
        how, error = words.cluster.driver.outcome
        assert how == "failed" and error is not None
        following = error.next
        assert "holdfast rewind JOB.py --to-epoch N" in following and "last delivered" in following
        assert words.rewind(words.file, "--to-epoch", str(words.epochs[1]), "--apply") == 0
        words.go_on(FILE.replace("rows.key_by", "rows.filter(pl.col('word') != 'bad').key_by"))
        words.say(b=20)
        assert words.table() == {"a": 16, "b": 22, "c": 3}

    def test_a_checkpoint_can_be_given_by_time_or_savepoint(self, words: Words) -> None:
        words.stop()
        assert main(["savepoint", "words", "kept", "--root", words.root]) == 0
        assert words.rewind(words.file, "--to-savepoint", "kept", "--apply") == 0
        first = next(each for each in words.job.completed if each.body.epoch == words.epochs[0])
        at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=first.at)
        assert words.rewind(words.file, "--to-time", at.isoformat(), "--apply") == 0
        assert words.job.base_epoch == words.epochs[0] and words.table() == {"a": 1, "b": 2}

    def test_a_plan_is_applied_only_while_the_head_is_unchanged(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words.stop()
        to = ("--to-epoch", str(words.epochs[0]))
        words.rewind(words.file, *to, "--json")
        plan = json.loads(capsys.readouterr().out)["plan_id"]
        assert words.rewind(words.file, *to, "--apply", "--plan", plan) == 0
        assert words.rewind(words.file, *to, "--apply", "--plan", plan) == 6
        assert "does not fit job 'words' as it is now" in capsys.readouterr().err

    def test_a_stopped_job_given_by_name_is_not_rewound(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        words.stop()
        arguments = ("words", "--root", words.root, "--to-epoch", str(words.epochs[0]), "--apply")
        assert words.rewind(*arguments) == 2
        assert "only its file names its targets" in capsys.readouterr().err
        assert words.job.timeline == 1

    def test_a_locked_target_is_repaired_by_the_next_run(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words.stop()
        with closing(sqlite3.connect(words.db, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            arguments = ("--to-epoch", str(words.epochs[0]), "--apply", "--timeout", "1s")
            assert words.rewind(words.file, *arguments) == 5
            assert "is rewound, but not all targets were repaired" in capsys.readouterr().err
            # As soon as the target is free its lane may get through, as long as the process lives.
            assert words.job.repair_due and words.table() == {"a": 11, "b": 2, "c": 3}
        words.cluster.replace_driver()
        words.say(b=20)
        assert words.table() == {"a": 11, "b": 22, "c": 3} and not words.job.repair_due

    def test_abandoned_checkpoints_are_listed_and_cannot_be_rewound_to(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words.stop()
        left = words.job.base_epoch
        assert words.rewind(words.file, "--to-epoch", str(words.epochs[0]), "--apply") == 0
        capsys.readouterr()
        assert main(["checkpoints", "list", "words", "--root", words.root, "--json"]) == 0
        assert left in [each["epoch"] for each in json.loads(capsys.readouterr().out)]
        assert words.rewind(words.file, "--to-epoch", str(left), "--apply") == 2
        assert "an earlier rewind abandoned epoch" in capsys.readouterr().err
        assert main(["events", "words", "--root", words.root, "--json"]) == 0
        [event] = [each for each in json.loads(capsys.readouterr().out) if each["event"] == "rewound"]
        assert (event["timeline"], event["epoch"]) == (2, words.epochs[0])
        assert main(["status", "words", "--root", words.root, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["timeline"] == 2 and shown["rewind_horizon"]["epoch"] <= words.epochs[0]


class TestTargetOfAnotherHistory:
    """A copy of the job's folder took the target over, or the folder was restored from an older copy."""

    def taken_over(self, words: Words) -> None:
        words.stop()
        with closing(sqlite3.connect(words.db)) as db, db:
            db.execute("UPDATE holdfast_owner SET owner = 'elsewhere', generation = 9")

    def test_it_is_not_repaired_without_adopt_targets(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        self.taken_over(words)
        assert words.rewind(words.file, "--to-epoch", str(words.epochs[0]), "--apply") == 2
        reported = capsys.readouterr().err
        assert "not in the log of this job" in reported and words.table() == {"a": 11, "b": 2, "c": 3}
        assert words.job.timeline == 1

    def test_it_is_repaired_and_taken_over_if_the_user_names_its_sink(self, words: Words) -> None:
        self.taken_over(words)
        to = ("--to-epoch", str(words.epochs[0]), "--apply", "--adopt-targets", "out")
        assert words.rewind(words.file, *to) == 0
        assert words.table() == {"a": 1, "b": 2}
        with closing(sqlite3.connect(words.db)) as db:
            assert db.execute("SELECT owner FROM holdfast_owner").fetchall() == [(words.job.owner,)]

    def test_adopting_targets_needs_the_file_of_the_job(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        self.taken_over(words)
        base = str(words.epochs[0])
        assert words.rewind("words", "--root", words.root, "--to-epoch", base, "--adopt-targets", "out") == 2
        assert "give its file" in capsys.readouterr().err
