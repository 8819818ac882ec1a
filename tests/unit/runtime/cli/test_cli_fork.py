"""`holdfast fork` on a job with real targets, whose runs are those of a cluster in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import words_job

import holdfast as hf
from holdfast.checkpoint.repository import Repository
from holdfast.errors import ConfigError, Unavailable
from holdfast.runtime.cli.main import main
from holdfast.runtime.cli.start.jobfile import load
from holdfast.runtime.config.settings import resolve
from holdfast.runtime.execution.prepare import Prepared, prepare
from holdfast.runtime.plan.immediate import is_immediate
from holdfast.runtime.testing.cluster import Cluster
from holdfast.sinks.sqlite.sink import SQLite
from holdfast.storage.hashed import with_hash
from holdfast.storage.log.log import LogWriter, create_log
from holdfast.storage.objects import LocalObjects

TRIAL = """
import holdfast as hf
from dataclasses import dataclass

@dataclass
class Said:
    word: str
    n: int

app = hf.App("trial", root={folder!r} + "/root", checkpoint_every="1s")
rows = app.source("rows", hf.Log({folder!r} + "/rows", Said))
totals = rows.key_by("word").agg("totals", rows=hf.count(), total=hf.sum("n"))
totals.sink("out", hf.SQLite({folder!r} + "/{targets}/out.db", table="totals", key=["word"]))
tagged = hf.SQLite({folder!r} + "/{targets}/tagged.db", table="totals", key=["word"], delivery="idempotent")
totals.sink("tagged", tagged)
rows.sink("said", hf.SQLite({folder!r} + "/{targets}/said.db", table="said"))
rows.sink("log", hf.Log({folder!r} + "/{targets}/log"))
"""


class Words(words_job.Words):
    """The job, and commands on its root."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.root = folder / "root"

    def command(self, *arguments: str) -> int:
        return main([*arguments, "--root", str(self.root)])

    def trial(self, targets: str) -> str:
        """Write the file of the fork; return its path."""
        (self.folder / targets).mkdir(exist_ok=True)
        file = self.folder / "trial.py"
        file.write_text(TRIAL.format(folder=str(self.folder), targets=targets))
        return str(file)

    def prepared(self, file: str) -> Prepared:
        app = load(file)
        return prepare(app.plan(), resolve(app, {"root": str(self.root)}))

    def start(self, started: Prepared) -> Cluster:
        """Start the fork as a run does, and let it read and deliver what there is."""
        cluster = Cluster(started.plan, 2, 7, started.folder.store, 1.0, started.inputs.partitions)
        cluster.begin()
        cluster.pass_time(4.0)
        assert cluster.driver.outcome is None
        return cluster


@pytest.fixture
def words(tmp_path: Path) -> Words:
    job = Words(tmp_path)
    job.say(a=1, b=2)
    job.say(a=10, c=3)
    return job


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class TestFork:
    def test_shows_what_the_new_job_begins_with(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        before = files(words.root / "words")
        epoch = words.epochs[0]
        assert words.command("fork", "words", "trial", "--from-epoch", str(epoch), "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["job"], shown["from"]["job"]) == ("trial", "words")
        assert (shown["from"]["timeline"], shown["from"]["epoch"]) == (1, epoch)
        assert sum(at["offset"] for at in shown["sources"]) == 2 and {at["name"] for at in shown["sources"]} == {"rows"}
        (totals,) = shown["state"]
        assert totals["operator"] == "totals" and 0 < totals["bytes"] < shown["copied"]["bytes"]
        assert {each["name"]: each["kind"] for each in shown["sinks"]} == {
            "out": "SQLite",
            "tagged": "SQLite",
            "said": "SQLite",
            "log": "Log",
        }
        assert shown["sinks"][0]["place"] == {"path": str(words.folder / "out.db"), "table": "totals"}
        job = Repository(LocalObjects(words.root / "trial")).read_log()
        assert job is not None and (job.uuid, job.base_epoch) == (shown["uuid"], epoch)
        assert files(words.root / "words") == before

    def test_says_in_text_what_to_do_next(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        assert words.command("fork", "words", "trial", "--from-epoch", "latest") == 0
        reported = capsys.readouterr()
        assert f"trial begins with epoch {words.job.base_epoch} of words" in reported.out
        assert "targets that stay those of words" in reported.out and "out.db" in reported.out
        assert f"start it: holdfast run JOB.py --root {words.root}" in reported.err
        assert "name the app: hf.App('trial')" in reported.err

    def test_takes_a_savepoint_by_its_name(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        words.stop()
        assert words.command("savepoint", "words", "good") == 0
        assert words.command("fork", "words", "trial", "--from-epoch", "good") == 0
        assert f"begins with epoch {words.job.base_epoch}" in capsys.readouterr().out

    def test_is_listed_and_stopped_until_it_runs(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        words.command("fork", "words", "trial", "--from-epoch", "latest")
        capsys.readouterr()
        assert words.command("jobs", "--json") == 0
        assert [each["job"] for each in json.loads(capsys.readouterr().out)] == ["trial", "words"]
        assert words.command("status", "trial", "--json") == 0
        status = json.loads(capsys.readouterr().out)
        assert (status["state"], status["generation"]) == ("stopped", 0)
        assert status["checkpoint"]["epoch"] == words.job.base_epoch
        assert words.command("events", "trial", "--json") == 0
        (event,) = json.loads(capsys.readouterr().out)
        assert (event["event"], event["cause"]) == ("forked", f"forked from epoch {words.job.base_epoch} of words")
        for action in (("list", "trial"), ("show", "trial", "latest"), ("verify", "trial")):
            assert words.command("checkpoints", *action) == 0
        assert words.command("state", "scan", "trial", "totals", "--json") == 0


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "what", "following"),
        [
            (("nope", "trial", "--from-epoch", "1"), "there is no job 'nope'", "jobs here: words"),
            (("words", "words", "--from-epoch", "latest"), "job 'words' exists already", "choose another name"),
            (("words", "Trial", "--from-epoch", "latest"), "'Trial' cannot be the name of a job", "small letters"),
            (("words", "trial.py", "--from-epoch", "latest"), "'trial.py' cannot be", "not a file"),
            (("words", "trial", "--from-epoch", "1000"), "has no checkpoint of epoch 1000", "the nearest: "),
        ],
    )
    def test_change_nothing(
        self, words: Words, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], what: str, following: str
    ) -> None:
        before = files(words.root)
        assert words.command("fork", *arguments) == 2
        reported = capsys.readouterr().err
        assert what in reported and following in reported
        assert files(words.root) == before and [each.name for each in words.root.iterdir()] == ["words"]

    def test_without_an_epoch_show_the_usage(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        assert words.command("fork", "words", "trial") == 2
        assert "--from-epoch" in capsys.readouterr().err

    def test_fork_refuses_a_damaged_checkpoint_with_status_4(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words.stop()
        manifest = Repository(words.store).load_manifest(words.job.completed[-1].body.manifest)
        ref = next(each.object for handle in manifest.state for each in handle.segments)
        words.store.put(ref.path, words.store.get(ref.path)[:-1] + b"!")
        assert words.command("fork", "words", "trial", "--from-epoch", "latest") == 4
        reported = capsys.readouterr().err
        assert ref.path in reported and "holdfast checkpoints verify words" in reported
        assert words.command("jobs") == 0 and "trial" not in capsys.readouterr().out

    def test_fork_refuses_another_format_with_status_2(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        words.stop()
        record = Repository(words.store).records()[0]
        newer = words.store.get(record.path).replace(b'"v":4', b'"v":9')
        (words.root / "words" / record.path).write_bytes(_with_hash_of(newer))
        assert words.command("fork", "words", "trial", "--from-epoch", "latest") == 2
        assert "has format 9" in capsys.readouterr().err

    def test_fork_refuses_an_unreachable_store_with_status_5(
        self, words: Words, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> bytes:
            raise Unavailable("the store is unreachable", next_step="check the network")

        monkeypatch.setattr(LocalObjects, "opened", refuse)
        monkeypatch.setattr(LocalObjects, "get", _failing_below(LocalObjects.get, "segments/"))
        assert words.command("fork", "words", "trial", "--from-epoch", "latest", "--json") == 5
        error = json.loads(capsys.readouterr().out)
        assert (error["kind"], error["not_done"]) == (
            "unavailable",
            "job 'trial' was not created; job 'words' was only read",
        )


class TestTargets:
    """Two jobs that write into one target would double its rows, or overwrite each other's."""

    def test_a_fork_with_targets_of_the_first_job_is_refused_before_any_write(self, words: Words) -> None:
        words.command("fork", "words", "trial", "--from-epoch", str(words.epochs[0]))
        before = words_job.visible(words.folder)
        with pytest.raises(
            ConfigError, match=r"sink 'out' writes to SQLite .*out\.db, table 'totals', to which job 'wo"
        ):
            words.prepared(words.trial("."))
        assert words_job.visible(words.folder) == before
        job = Repository(LocalObjects(words.root / "trial")).read_log()
        assert job is not None and job.generation == 0

    def test_a_started_fork_that_switches_to_targets_of_the_first_job_is_refused(self, words: Words) -> None:
        words.command("fork", "words", "trial", "--from-epoch", str(words.epochs[0]))
        cluster = words.start(words.prepared(words.trial("trial")))
        cluster.driver.stop()
        cluster.pass_time(5.0)
        with pytest.raises(ConfigError, match="rows of both would mix there"):
            words.prepared(words.trial("."))

    def test_the_forks_own_targets_receive_rows_after_the_checkpoint_once(self, words: Words) -> None:
        words.command("fork", "words", "trial", "--from-epoch", str(words.epochs[0]))
        started = words.prepared(words.trial("trial"))
        words.start(started)
        shown = words_job.visible(words.folder / "trial")
        assert shown == {
            "out": [["a", 2, 11], ["c", 1, 3]],
            "tagged": [["a", 2, 11], ["c", 1, 3]],
            "said": [["a", 10], ["c", 3]],
            "log": [["a", 10], ["c", 3]],
        }
        words.say(b=5)
        assert words_job.visible(words.folder)["out"] == [["a", 2, 11], ["b", 2, 7], ["c", 1, 3]]

    def test_an_audit_proves_the_forks_own_targets(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        """Nothing that the first job delivered counts."""
        words.command("fork", "words", "trial", "--from-epoch", str(words.epochs[0]))
        file = words.trial("trial")
        words.start(words.prepared(file))
        capsys.readouterr()
        assert main(["audit", file, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert {each["sink"] for each in shown["sinks"]} == {"out", "tagged", "said", "log"}
        assert {each["verdict"] for each in shown["sinks"]} == {"proven"}, shown["sinks"]

    def test_a_rewind_to_the_forks_start_reverts_its_own_targets(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        epoch = words.epochs[0]
        words.command("fork", "words", "trial", "--from-epoch", str(epoch))
        file = words.trial("trial")
        cluster = words.start(words.prepared(file))
        cluster.driver.stop()
        cluster.pass_time(5.0)
        assert main(["rewind", file, "--to-epoch", str(epoch), "--apply"]) == 0, capsys.readouterr().err
        shown = words_job.visible(words.folder / "trial")
        assert shown == {"out": [], "tagged": [], "said": [], "log": []}
        words.start(words.prepared(file))
        assert words_job.visible(words.folder / "trial")["said"] == [["a", 10], ["c", 3]]

    def test_may_be_rewound_before_the_first_run(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        epoch = words.epochs[0]
        words.command("fork", "words", "trial", "--from-epoch", str(epoch))
        file = words.trial("trial")
        words.prepared(file)  # creates the targets
        assert main(["rewind", file, "--to-epoch", str(epoch), "--apply"]) == 0, capsys.readouterr().err
        words.start(words.prepared(file))
        assert words_job.visible(words.folder / "trial")["said"] == [["a", 10], ["c", 3]]

    def test_a_fork_does_not_start_with_unreachable_targets(
        self, words: Words, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The job has not used them before, although it has a checkpoint."""
        words.command("fork", "words", "trial", "--from-epoch", "latest")

        def away(*_: object) -> None:
            raise Unavailable("the database is locked", next_step="wait")

        file = words.trial("trial")
        monkeypatch.setattr(SQLite, "prepare", away)
        with pytest.raises(Unavailable, match="the database is locked"):
            words.prepared(file)


class TestPlan:
    def test_compares_the_code_with_the_forked_checkpoint(
        self, words: Words, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words.command("fork", "words", "trial", "--from-epoch", str(words.epochs[0]))
        capsys.readouterr()
        assert main(["plan", words.trial("trial"), "--json"]) == 0
        changes = json.loads(capsys.readouterr().out)["changes"]
        assert (changes["job_exists"], changes["epoch"], changes["refused"]) == (True, words.epochs[0], [])
        assert {(each["kind"], each["name"]) for each in changes["changed"]} == {
            ("sink", name) for name in ("out", "tagged", "said", "log")
        }
        assert all("and now writes to" in each["what"] for each in changes["changed"])

    def test_names_the_targets_that_a_run_refuses(self, words: Words, capsys: pytest.CaptureFixture[str]) -> None:
        words.command("fork", "words", "trial", "--from-epoch", "latest")
        capsys.readouterr()
        assert main(["plan", words.trial("."), "--json"]) == 0
        refused = json.loads(capsys.readouterr().out)["changes"]["refused"]
        assert [each["next"] for each in refused] == [
            f"give the sink '{name}' another target" for name in ("out", "tagged", "said", "log")
        ]


FILES = """
import holdfast as hf
from dataclasses import dataclass

@dataclass
class Said:
    word: str
    n: int

app = hf.App({name!r}, root={folder!r} + "/root", checkpoint_every="1s", dlq=hf.Log({folder!r} + "/{targets}/dead"))
rows = app.source("rows", hf.Files({folder!r} + "/inbox", Said, "jsonl", partitions=2))
rows.sink("said", hf.Log({folder!r} + "/{targets}/said"))
"""


IMMEDIATE = """
import holdfast as hf
from dataclasses import dataclass

@dataclass
class Said:
    word: str
    n: int

app = hf.App({name!r}, root={folder!r} + "/root", checkpoint_every="1s")
rows = app.source("rows", hf.Log({folder!r} + "/rows", Said), partitioned_by=["word"])
rows.sink("last", hf.SQLite({folder!r} + "/{targets}/last.db", table="last", key=["word"], delivery="DELIVERY"))
"""


class FileJobs:
    """Jobs that read files, and send lines that are no records to a log."""

    text = FILES

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        (folder / "inbox").mkdir()

    def add(self, name: str, *numbers: int) -> None:
        lines = [json.dumps({"word": "a", "n": n}) for n in numbers]
        beside = self.folder / name
        beside.write_text("\n".join([*lines, f"damaged {name}"]) + "\n")
        beside.rename(self.folder / "inbox" / name)

    def prepared(self, name: str, targets: str) -> Prepared:
        (self.folder / targets).mkdir(exist_ok=True)
        file = self.folder / f"{name}.py"
        file.write_text(self.text.format(name=name, folder=str(self.folder), targets=targets))
        app = load(str(file))
        return prepare(app.plan(), resolve(app, {"root": str(self.root)}))

    def run(self, name: str, targets: str) -> None:
        """Read and deliver what there is, and stop."""
        started = self.prepared(name, targets)
        cluster = Cluster(started.plan, 2, len(name), started.folder.store, 1.0, started.inputs.partitions)
        cluster.begin()
        cluster.pass_time(15.0)
        cluster.driver.stop()
        cluster.pass_time(5.0)
        assert cluster.driver.outcome == ("stopped", None)

    def shown(self, targets: str) -> tuple[list[int], list[bytes]]:
        said = hf.log(self.folder / targets / "said").collect()["n"].to_list()
        return sorted(said), sorted(hf.log(self.folder / targets / "dead").collect()["raw"].to_list())


class TestSources:
    """The list of files that a job reads is in its own folder."""

    def test_a_forked_file_source_continues_after_the_files_already_read(self, tmp_path: Path) -> None:
        jobs = FileJobs(tmp_path)
        jobs.add("1.jsonl", 1, 2, 3)
        jobs.run("files", "first")
        assert jobs.shown("first") == ([1, 2, 3], [b"damaged 1.jsonl"])
        assert main(["fork", "files", "trial", "--from-epoch", "latest", "--root", str(jobs.root)]) == 0
        jobs.add("2.jsonl", 4, 5)
        jobs.run("trial", "second")
        jobs.run("files", "first")
        assert jobs.shown("second") == ([4, 5], [b"damaged 2.jsonl"])
        assert jobs.shown("first") == ([1, 2, 3, 4, 5], [b"damaged 1.jsonl", b"damaged 2.jsonl"])
        shutil.rmtree(jobs.root / "files")
        jobs.add("3.jsonl", 6)
        jobs.run("trial", "second")
        assert jobs.shown("second")[0] == [4, 5, 6]

    def test_send_dead_letters_to_a_place_of_their_own(self, tmp_path: Path) -> None:
        jobs = FileJobs(tmp_path)
        jobs.add("1.jsonl", 1)
        jobs.run("files", "first")
        assert main(["fork", "files", "trial", "--from-epoch", "latest", "--root", str(jobs.root)]) == 0
        with pytest.raises(ConfigError) as refused:
            jobs.prepared("trial", "first")
        assert "to which job 'files' delivers" in refused.value.what
        (tmp_path / "mixed").mkdir()
        (tmp_path / "mixed" / "dead").symlink_to(tmp_path / "first" / "dead")
        with pytest.raises(ConfigError, match="of another job"):
            jobs.prepared("trial", "mixed")


class ImmediateJobs(FileJobs):
    """Jobs that write a table before the commit, or at the commit."""

    text = IMMEDIATE.replace("DELIVERY", "idempotent")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        create_log(LocalObjects(folder / "rows"), schema := pa.schema([("word", pa.string()), ("n", pa.int64())]), 1)
        LogWriter(LocalObjects(folder / "rows")).append({0: pa.table({"word": ["a"], "n": [1]}, schema=schema)})


class TestImmediateTargets:
    """Rows of both jobs would replace each other there: their tags do not compare."""

    @pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
    def test_immediate_targets_of_the_first_job_are_refused(self, tmp_path: Path, delivery: str) -> None:
        jobs = ImmediateJobs(tmp_path)
        jobs.run("first", "one")
        [spec] = jobs.prepared("first", "one").plan.sinks
        assert is_immediate(spec) and spec.sink.traits.place == {"path": str(tmp_path / "one/last.db"), "table": "last"}
        assert main(["fork", "first", "trial", "--from-epoch", "latest", "--root", str(jobs.root)]) == 0
        jobs.text = IMMEDIATE.replace("DELIVERY", delivery)
        with pytest.raises(ConfigError, match="to which job 'first' delivers its sink 'last'"):
            jobs.prepared("trial", "one")
        jobs.prepared("trial", "two")


def _failing_below(get: Callable[[LocalObjects, str], bytes], folder: str) -> Any:
    def read(self: LocalObjects, path: str) -> bytes:
        if path.startswith(folder):
            raise Unavailable("the store is unreachable", next_step="check the network")
        return get(self, path)

    return read


def _with_hash_of(data: bytes) -> bytes:
    return with_hash(data[: data.rindex(b',"xxh3":')] + b"}")
