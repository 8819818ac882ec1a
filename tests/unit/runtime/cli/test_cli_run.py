"""`holdfast run` and `holdfast plan` as far as they go without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.checkpoint import joblog
from holdfast.errors import ErrorReport, Fenced, JobFailed
from holdfast.model import Generation, JobUuid
from holdfast.runtime.cli.start.run import error_of, summary
from holdfast.runtime.driver.master import taken_over
from holdfast.runtime.execution.executing import RunOutcome
from tests.unit.runtime.statuses import status_with

if TYPE_CHECKING:
    from tests.unit.runtime.cli.conftest import Ended, History

    Holdfast = Callable[..., Ended]
    Begin = Callable[[str], History]

CODE = """
from dataclasses import dataclass
import holdfast as hf

@dataclass
class Word:
    word: int

app = hf.App("hot", checkpoint_every="2s"{more})
words = app.source("words", hf.Generator(Word, lambda i: Word(i % 10), count=100))
words.key_by("word").agg("counts", rows=hf.count()).sink("out", hf.SQLite({db!r}, table="counts", key=["word"]))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A job that counts words."""
    (tmp_path / "hot.py").write_text(CODE.format(more="", db=str(tmp_path / "out.db")))
    return str(tmp_path / "hot.py")


class TestTheLastLine:
    def test_counts_rewinds_apart_from_restarts(self) -> None:
        sinks = [SimpleNamespace(sink=SimpleNamespace(where="out.db"))]
        folder = SimpleNamespace(job=None, repository=SimpleNamespace(read_log=lambda: None))
        prepared: Any = SimpleNamespace(plan=SimpleNamespace(app="hot", sinks=sinks), folder=folder)
        for rewinds, said in ((0, "1 restart in 2.0 s"), (1, "1 restart, 1 rewind in 2.0 s")):
            restarts = [{"at": 1, "cause": "x", "generation": 2, "rewind": n > 0} for n in range(1 + rewinds)]
            line = summary(
                prepared, RunOutcome("stopped", None, status_with(epochs=3, restarts=restarts)), "7 records", 2.0
            )
            assert said in line


class TestRun:
    def test_a_finished_job_is_not_run_again(self, holdfast: Holdfast, history: Begin, file: str) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.finish()
        ended = holdfast("run", file)
        assert ended.status == 0
        assert "has already finished, at epoch 5" in ended.err

    def test_json_progress_ends_with_the_state(self, holdfast: Holdfast, history: Begin, file: str) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.finish()
        last = json.loads(holdfast("run", file, "--progress", "json").out.splitlines()[-1])
        assert (last["state"], last["records_in"]) == ("finished", 750)

    @pytest.mark.parametrize("command", ["run", "plan"])
    def test_a_misspelt_variable_is_reported(
        self, holdfast: Holdfast, history: Begin, file: str, command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = history("hot")
        job.checkpoint(5)
        job.finish()
        monkeypatch.setenv("HOLDFAST_PARALELLISM", "3")
        ended = holdfast(command, file)
        assert ended.status == 0
        assert "Warning: HOLDFAST_PARALELLISM is set" in ended.err
        assert ended.err.count("did you mean HOLDFAST_PARALLELISM?") == 1

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            (["--parallelism", "many"], "--parallelism is 'many'"),
            (["--parallelism", "0"], "--parallelism is '0'"),
            (["--checkpoint-every", "often"], "--checkpoint-every is 'often'"),
            (["--max-records-per-second", "-5"], "--max-records-per-second"),
            (["--progress", "loud"], "--progress"),
            (["--app", "cold"], "builds no app 'cold'"),
        ],
    )
    def test_a_wrong_flag_is_refused_before_anything_starts(
        self, holdfast: Holdfast, root: Path, file: str, flags: list[str], says: str
    ) -> None:
        ended = holdfast("run", file, *flags)
        assert ended.status == 2
        assert says in ended.err
        assert "\nNot done: " in ended.err
        assert "\nNext: " in ended.err
        assert not root.exists()

    def test_state_that_does_not_exist_cannot_be_dropped(self, holdfast: Holdfast, history: Begin, file: str) -> None:
        history("hot").checkpoint(5)
        ended = holdfast("run", file, "--drop-state", "nope", "--drop-state", "none")
        assert ended.status == 2
        assert ended.err.splitlines() == [
            "holdfast: no state is kept for none, nope.",
            "Not done: the job was not started; state and output are untouched.",
            "Next: operators with state: counts",
        ]

    def test_drop_state_without_any_state_is_refused_with_that_reason(
        self, holdfast: Holdfast, root: Path, file: str
    ) -> None:
        ended = holdfast("run", file, "--drop-state", "nope")
        assert ended.status == 2
        assert ended.err.splitlines()[-1] == "Next: no operator has state: leave out --drop-state"

    def test_state_without_an_operator_is_named_with_the_flag_that_drops_it(
        self, holdfast: Holdfast, history: Begin, file: str
    ) -> None:
        history("hot").checkpoint(5)
        Path(file).write_text(Path(file).read_text().replace('agg("counts"', 'agg("totals"'))
        ended = holdfast("run", file)
        assert ended.status == 2
        assert "state is kept for counts, which" in ended.err and "--drop-state counts" in ended.err

    def test_a_collect_sink_without_a_program_that_reads_it_is_refused(
        self, holdfast: Holdfast, root: Path, file: str
    ) -> None:
        code = Path(file).read_text()
        Path(file).write_text(code[: code.index("hf.SQLite(")] + "hf.Collect())\n")
        ended = holdfast("run", file)
        assert ended.status == 2
        assert "sink 'out' is hf.Collect()" in ended.err and "app.run(once=True)" in ended.err
        assert not root.exists()

    def test_a_missing_file_is_wrong_use(self, holdfast: Holdfast) -> None:
        assert holdfast("run", "no-such-job.py").status == 2


STATUS = status_with(checkpoint={"epoch": 117, "at": 0, "age_ms": 0, "duration_ms": 1, "bytes": 1})


class TestErrorOf:
    def test_a_failure_reports_the_first_cause_and_the_last_checkpoint(self) -> None:
        cause = ErrorReport(
            kind="config",
            epoch=118,
            what="no such column 'x'",
            not_done="epoch 118 was not written",
            next="correct the job",
        )
        error = error_of(RunOutcome("failed", cause, STATUS), "hot")
        assert isinstance(error, JobFailed)
        assert str(error) == (
            "job 'hot' failed: no such column 'x'.\n"
            "Not done: epoch 118 was not written; everything up to epoch 117 is kept.\n"
            "Next: correct the job"
        )
        assert (error.exit_status, error.where.epoch) == (7, 118)

    def test_a_failure_without_a_cause_still_has_three_parts(self) -> None:
        error = error_of(RunOutcome("failed", None, status_with()), "hot")
        assert error.not_done == "no epoch was completed"
        assert error.next_step

    def test_a_fenced_run_has_its_own_exit_status(self) -> None:
        theirs = joblog.Job(JobUuid("job"), "hot", 128, 0, 5, Generation(4))
        error = error_of(RunOutcome("fenced", taken_over(theirs), STATUS), "hot")
        assert isinstance(error, Fenced)
        assert "generation 4" in error.what


class TestPlan:
    def test_a_new_job_shows_graph_and_settings_and_creates_nothing(
        self, holdfast: Holdfast, root: Path, file: str
    ) -> None:
        ended = holdfast("plan", file)
        assert ended.status == 0
        assert "aggregate counts by word" in ended.out
        assert "none: the job is new" in ended.out
        assert not root.exists()

    def test_every_setting_has_its_origin(self, holdfast: Holdfast, root: Path, file: str) -> None:
        shown = holdfast("plan", file, "--parallelism", "4", "--json").json
        origins = {setting["name"]: (setting["value"], setting["origin"]) for setting in shown["settings"]}
        assert origins["parallelism"] == (4, "flag")
        assert origins["root"] == (str(root), "environment")
        assert origins["checkpoint_every"] == (2_000, "code")
        assert origins["heartbeat_ms"] == (500, "default")

    def test_only_settings_that_differ_from_their_default_are_shown_unless_asked_for(
        self, holdfast: Holdfast, file: str
    ) -> None:
        few, every = holdfast("plan", file).out, holdfast("plan", file, "--settings").out
        assert "checkpoint_every" in few and "heartbeat_ms" not in few
        assert " others have their default: --settings shows them" in few
        assert "heartbeat_ms" in every and "others have" not in every

    def test_changes_are_relative_to_the_last_checkpoint(self, holdfast: Holdfast, history: Begin, file: str) -> None:
        history("hot").checkpoint(5)
        code = Path(file).read_text()
        Path(file).write_text(code.replace('agg("counts"', 'agg("totals"'))
        changes = holdfast("plan", file, "--json").json["changes"]
        assert changes["epoch"] == 5
        assert changes["operators"] == {"added": ["totals"], "removed": ["counts"]}
        assert changes["sources"] == {"added": [], "removed": []}
        assert changes["parallelism"] == {"before": 1, "now": 2}
        text = holdfast("plan", file).out
        assert "operator 'totals' is added" in text
        assert "parallelism: 1 before, 2 now" in text

    def test_a_refusal_by_a_run_is_predicted(
        self, holdfast: Holdfast, history: Begin, file: str, tmp_path: Path
    ) -> None:
        history("hot").checkpoint(5)
        Path(file).write_text(CODE.format(more=", key_groups=64", db=str(tmp_path / "out.db")))
        ended = holdfast("plan", file)
        assert ended.status == 0
        assert "key groups: 128 before, 64 now" in ended.out
        assert "A run would refuse this" in ended.err

    def test_the_refusal_of_a_root_that_is_a_file_is_predicted(
        self, holdfast: Holdfast, tmp_path: Path, file: str
    ) -> None:
        (tmp_path / "text.txt").write_text("")
        ended = holdfast("plan", file, "--root", str(tmp_path / "text.txt"))
        assert ended.status == 0
        assert f"A run would refuse this: {tmp_path / 'text.txt'} is a file" in ended.err

    def test_the_refusal_of_a_missing_log_is_predicted_and_no_log_is_created(
        self, holdfast: Holdfast, root: Path, tmp_path: Path, file: str
    ) -> None:
        generator = "hf.Generator(Word, lambda i: Word(i % 10), count=100)"
        log = f"hf.Log({str(tmp_path / 'words')!r}, Word)"
        Path(file).write_text(Path(file).read_text().replace(generator, log))
        ended = holdfast("plan", file)
        assert ended.status == 0
        assert "A run would refuse this: no log exists" in ended.err
        assert not root.exists() and not (tmp_path / "words").exists()
        assert [each["next"] for each in holdfast("plan", file, "--json").json["changes"]["refused"]] != []

    @pytest.mark.parametrize("master", ["ftp://x", "locale", "local[two]"])
    def test_the_refusal_of_an_unknown_master_is_predicted(
        self, holdfast: Holdfast, root: Path, file: str, master: str
    ) -> None:
        ended = holdfast("plan", file, "--master", master)
        assert ended.status == 0
        assert f"A run would refuse this: {master!r} is not a Spark master URL" in ended.err

    @pytest.mark.parametrize("master", ["local", "local[4]", "local[*, 2]", "spark://host:7077", "yarn", "k8s://h:443"])
    def test_an_acceptable_master_gives_no_warning(
        self, holdfast: Holdfast, root: Path, file: str, master: str
    ) -> None:
        assert holdfast("plan", file, "--master", master).err == ""

    def test_a_file_without_a_plan_is_wrong_use(self, holdfast: Holdfast, tmp_path: Path) -> None:
        (tmp_path / "empty.py").write_text('import holdfast as hf\napp = hf.App("hot")')
        ended = holdfast("plan", str(tmp_path / "empty.py"))
        assert ended.status == 2
        assert "has no sink" in ended.err


class TestPasswords:
    @pytest.mark.parametrize("command", ["run", "plan", "status", "jobs", "events", "checkpoints", "doctor"])
    def test_in_the_root_are_in_no_output_of_any_command(
        self, holdfast: Holdfast, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", "/nowhere")  # the other checks of doctor do not matter here
        monkeypatch.setenv("HOLDFAST_ROOT", "s3://key:hunter2@bucket/streams")
        more = {"run": [file], "plan": [file], "checkpoints": ["list", "hot"], "jobs": [], "doctor": []}
        for flags in ([], ["--json"], ["--debug"]):
            ended = holdfast(command, *more.get(command, ["hot"]), *flags)
            assert ended.status == (5 if command == "doctor" else 2)
            assert "holds a password" in ended.out + ended.err
            assert "hunter2" not in ended.out + ended.err
        assert not any("hunter2" in path.name for path in tmp_path.rglob("*"))

    def test_in_the_path_of_a_log_are_refused_when_the_job_is_loaded(
        self, holdfast: Holdfast, root: Path, tmp_path: Path
    ) -> None:
        code = CODE.format(more="", db=str(tmp_path / "out.db"))
        generator = "hf.Generator(Word, lambda i: Word(i % 10), count=100)"
        bad = code.replace(generator, 'hf.Log("s3://k:hunter2@b/in", Word)')
        (tmp_path / "bad.py").write_text(bad)
        ended = holdfast("run", str(tmp_path / "bad.py"))
        assert ended.status == 2 and "hf.Log" in ended.err
        assert "hunter2" not in ended.out + ended.err and not root.exists()
