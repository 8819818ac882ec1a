"""The parts of a real run that need no Spark: processes to strike, a log to feed, targets to watch."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.chaos.evidence.page import read
from holdfast.chaos.evidence.report import replay_command
from holdfast.chaos.judge.findings import Context, Finding
from holdfast.chaos.judge.records import Begin
from holdfast.chaos.live.checks import resolve
from holdfast.chaos.live.faults.nemesis import Planned
from holdfast.chaos.live.faults.scenario import Observed, parse
from holdfast.chaos.live.faults.strikes import Full, ProcessKill, ProcessStop, of_processes, seen
from holdfast.chaos.live.feeding import HELD_BACK, Feeder, share_fed
from holdfast.chaos.live.job import LiveJob
from holdfast.chaos.live.journal import JournalWriter
from holdfast.chaos.live.loading import load, prepared
from holdfast.chaos.live.observer import Observer
from holdfast.chaos.live.owned import marks
from holdfast.chaos.live.running import _Run, run
from holdfast.errors import ConfigError
from holdfast.model import Epoch, Tag, Timeline
from holdfast.storage.log.log import LogReader, LogWriter, create_log, read_meta
from holdfast.storage.objects import open_objects

BEATING = [0.0, 1.0].copy
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture
def victim() -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield psutil.Process(child.pid)
    child.kill()
    child.communicate()


class TestStrikes:
    def test_a_kill_has_fired_when_the_process_has_ended(self, victim: psutil.Process) -> None:
        kill = ProcessKill(victim)
        assert kill.begin() and seen(lambda: kill.evidence() is not None)
        assert f"pid {victim.pid} gone" in (kill.evidence() or "")

    def test_a_process_without_a_supervisor_is_restarted_by_the_harness(self, victim: psutil.Process) -> None:
        kill = ProcessKill(victim, lambda: "started again")
        assert kill.begin() and kill.heal() == "started again"

    def test_a_stop_fires_when_the_process_is_stopped_and_heals_when_it_resumes(self, victim: psutil.Process) -> None:
        stop = ProcessStop(victim)
        assert stop.evidence() is None
        assert stop.begin() and seen(lambda: stop.evidence() is not None)
        stop.heal()
        assert seen(lambda: victim.status() != psutil.STATUS_STOPPED)

    def test_a_full_disk_is_a_file_size_limit_that_is_lifted(self, victim: psutil.Process) -> None:
        before = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)
        full = Full([victim], BEATING)
        assert full.begin() and resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)[0] == 0
        assert full.heal() == "1 of 1 processes may write again"
        assert resource.prlimit(victim.pid, resource.RLIMIT_FSIZE) == before

    def test_a_full_disk_fires_when_the_job_misses_beats_not_while_it_still_writes(
        self, victim: psutil.Process
    ) -> None:
        now = time.time()
        written = [now - 6, now - 4, now - 2]
        full = Full([victim], lambda: written)
        assert full.begin() and full.evidence() is None
        written.append(now + 60)
        assert full.evidence() is None
        silent = Full([victim], lambda: [now - 0.2, now - 0.1])
        assert silent.begin() and seen(lambda: silent.evidence() is not None)
        assert "nothing was written for" in (silent.evidence() or "")
        silent.heal()

    def test_a_full_disk_that_ends_a_process_has_fired(self, victim: psutil.Process) -> None:
        full = Full([victim], BEATING)
        assert full.begin()
        victim.kill()
        os.waitpid(victim.pid, 0)
        assert full.evidence() == f"pid {victim.pid} ended when no file of it could grow"

    def test_a_disk_is_not_filled_while_the_job_writes_nothing(self, victim: psutil.Process) -> None:
        before = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)
        assert not Full([victim], list).begin()
        assert resource.prlimit(victim.pid, resource.RLIMIT_FSIZE) == before

    def test_a_disk_is_not_filled_while_the_job_writes_too_rarely_to_detect_it(self, victim: psutil.Process) -> None:
        before = resource.prlimit(victim.pid, resource.RLIMIT_FSIZE)
        assert not Full([victim], [0.0, 80.0, 81.0, 125.0].copy).begin()
        assert resource.prlimit(victim.pid, resource.RLIMIT_FSIZE) == before

    def test_a_process_that_had_already_ended_is_not_struck(self, victim: psutil.Process) -> None:
        victim.kill()
        os.waitpid(victim.pid, 0)
        assert (
            not ProcessKill(victim).begin() and not ProcessStop(victim).begin() and not Full([victim], BEATING).begin()
        )

    def test_a_rank_selects_the_same_position_of_the_list(self, victim: psutil.Process) -> None:
        own = psutil.Process()
        struck = of_processes(Planned(1, 0, "worker-stop", 7, 0), "signal-stop", [own, victim], BEATING)
        assert struck is not None and struck.target == f"pid {victim.pid}"
        assert of_processes(Planned(1, 0, "worker-stop", 7, 0), "signal-stop", [], BEATING) is None


class TestLiveJob:
    def test_only_processes_with_the_runs_token_belong_to_it(self, tmp_path: Path) -> None:
        job = LiveJob(tmp_path / "job.py", tmp_path, (), {}, "token-1")
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=job.environment)
        other = {**job.environment, **marks("token-2")}
        stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=other)
        assert seen(lambda: job.ours(child.pid) is not None)
        assert job.ours(stranger.pid) is None and job.ours(os.getpid()) is None
        assert [process.pid for process in job.all()] == [child.pid]
        job.close()
        assert child.wait() == -signal.SIGKILL
        assert psutil.pid_exists(stranger.pid)
        stranger.kill()
        for each in (child, stranger):
            each.communicate()

    def test_the_last_output_of_a_driver_that_has_ended_is_read(self, tmp_path: Path) -> None:
        job = LiveJob(tmp_path / "job.py", tmp_path, (), {}, "token-1")
        last = 'print("{}\\n" * 50_000 + \'{"records_in": 400000}\')'
        job._command = [sys.executable, "-c", last]
        job.start()
        assert job.driver is not None
        os.waitid(os.P_PID, job.driver.pid, os.WEXITED | os.WNOWAIT)
        job.hear_out()
        assert job.progress == {"records_in": 400_000}
        job.close()


def log_of(path: Path, rows: int, partitions: int = 2) -> None:
    store = open_objects(str(path))
    create_log(store, SCHEMA, partitions)
    writer = LogWriter(store)
    for partition in range(partitions):
        writer.append({partition: pa.table({"n": list(range(rows))}, SCHEMA)})
    writer.seal()


class WithGap(Feeder):
    """Finds a violation in the log that it reads."""

    def _rows(self, partition: int, end: int) -> pa.Table | None:
        raise AssertionError("rows without a gap")


class TestFeeder:
    @given(st.floats(0, 1_000), st.floats(0, 1_000), st.booleans())
    def test_the_share_fed_never_decreases_and_some_rows_are_held_back(
        self, one: float, other: float, lingering: bool
    ) -> None:
        less, more = (share_fed(elapsed, lingering) for elapsed in sorted((one, other)))
        assert 0 <= less <= more <= 1 - HELD_BACK

    @pytest.mark.parametrize("late", [0.0, 1.0, 5.0, 20.0])
    def test_rows_still_arrive_when_faults_take_many_times_longer_than_planned(self, late: float) -> None:
        """With the number of rows of the short test runs, every tenth of the planned duration still gets some."""
        rows = [int(120_000 * share_fed(1 + late + tenth / 10, lingering=True)) for tenth in range(10)]
        assert len(set(rows)) == len(rows)

    def test_a_requested_rate_is_kept_to_the_end(self) -> None:
        assert [share_fed(elapsed, lingering=False) for elapsed in (0.5, 0.97, 2.0)] == [0.5, 0.97, 1 - HELD_BACK]

    def test_every_row_arrives_in_its_partition_and_order_and_the_log_is_sealed(self, tmp_path: Path) -> None:
        log_of(tmp_path / "whole", 1_000)
        feeder = Feeder(str(tmp_path / "whole"), str(tmp_path / "fed"), 1_000_000, 1.0)
        feeder.start()
        fed = LogReader(open_objects(str(tmp_path / "fed")))
        assert seen(lambda: fed.refresh() and set(fed.end_offsets().values()) == {980})
        assert not fed.sealed
        feeder.release()
        assert seen(lambda: feeder.done) and feeder.error is None
        assert LogReader(open_objects(str(tmp_path / "fed"))).sealed
        fed.refresh()
        for partition in (0, 1):
            rows, offset = [], 0
            while (found := fed.read(partition, offset, 1 << 20))[0] is not None:
                batch, offset = found
                assert batch is not None
                rows += batch.column("n").to_pylist()
            assert rows == list(range(1_000))
        feeder.close()

    def test_an_unexpected_error_is_reported(self, tmp_path: Path) -> None:
        log_of(tmp_path / "whole", 10)
        feeder = WithGap(str(tmp_path / "whole"), str(tmp_path / "fed"), 1_000_000, 1.0)
        feeder.start()
        assert seen(lambda: feeder.done)
        assert feeder.error is not None and feeder.error.what == "unexpected AssertionError: rows without a gap"

    def test_a_log_without_rows_is_refused(self, tmp_path: Path) -> None:
        log_of(tmp_path / "whole", 0)
        with pytest.raises(ConfigError, match="holds nothing"):
            Feeder(str(tmp_path / "whole"), str(tmp_path / "fed"), None, 1.0)

    def test_an_existing_log_is_refused(self, tmp_path: Path) -> None:
        log_of(tmp_path / "whole", 10)
        with pytest.raises(ConfigError, match="already holds a log"):
            Feeder(str(tmp_path / "whole"), str(tmp_path / "whole"), None, 1.0)

    def test_a_changelog_is_fed_as_a_changelog(self, tmp_path: Path) -> None:
        schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
        made = create_log(open_objects(str(tmp_path / "changes")), schema, 1, ["k"], changelog=True)
        records = pa.table({"holdfast_deleted": [False, True], "k": [1, 1], "v": [5, None]}, schema=made.schema)
        LogWriter(open_objects(str(tmp_path / "changes"))).append({0: records})
        Feeder(str(tmp_path / "changes"), str(tmp_path / "fed"), None, 1.0).close()
        meta = read_meta(open_objects(str(tmp_path / "fed")))
        assert meta is not None and (meta.changelog, meta.schema, meta.key) == (True, made.schema, ("k",))


class World:
    """A job log and targets, written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sequence = folder, 0
        (folder / "root" / "job" / "log").mkdir(parents=True)
        self.database = str(folder / "out.db")
        with sqlite3.connect(self.database) as database:
            database.execute("CREATE TABLE holdfast_progress(job, sink, writer, timeline, epoch)")
            database.execute("CREATE TABLE rows(n)")
            database.execute("INSERT INTO holdfast_progress VALUES ('j', 's', 0, 1, 0)")
        database.close()
        store = open_objects(str(folder / "log"))
        create_log(store, SCHEMA, 1)
        self.log = LogWriter(store)

    def record(self, kind: str, epoch: int = 0) -> None:
        self.sequence += 1
        path = self.folder / "root" / "job" / "log" / f"{self.sequence:020}.json"
        path.write_text(json.dumps({"seq": self.sequence, "body": {"kind": kind, "epoch": epoch}}))

    def deliver(self, epoch: int, timeline: int = 1, rows: int = 1) -> None:
        with sqlite3.connect(self.database) as database:
            database.execute("UPDATE holdfast_progress SET timeline = ?, epoch = ?", (timeline, epoch))
            database.execute("DELETE FROM rows")
            database.executemany("INSERT INTO rows VALUES (?)", [(n,) for n in range(rows)])
        database.close()

    def append(self, epoch: int) -> None:
        self.log.append_tagged({0: pa.table({"n": [1]}, SCHEMA)}, "j/s/0", Tag(Timeline(1), Epoch(epoch)))

    def observer(self) -> Observer:
        targets = [Observed("sqlite", self.database, ("rows",)), Observed("log", str(self.folder / "log"))]
        return Observer(self.folder / "root", targets)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class TestObserver:
    def test_completed_epochs_in_order_are_no_finding(self, world: World) -> None:
        observer = world.observer()
        for epoch in (1, 2, 5):
            world.record("CheckpointCompleted", epoch)
            world.deliver(epoch, rows=epoch)
            world.append(epoch)
            observer.look()
        assert [finding.passed for finding in observer.close()] == [True, True]

    def test_output_of_an_incomplete_epoch_is_found(self, world: World) -> None:
        observer = world.observer()
        world.deliver(3)
        world.append(3)
        observer.look()
        assert ["epoch 3, which is not completed" in finding.detail for finding in observer.close()] == [True, True]

    def test_a_tag_that_decreases_is_found(self, world: World) -> None:
        observer = world.observer()
        world.record("CheckpointCompleted", 1)
        world.record("CheckpointCompleted", 2)
        for epoch in (2, 1):
            world.deliver(epoch)
            observer.look()
        assert "went from (1, 2) to (1, 1)" in observer.close()[0].detail

    def test_rows_that_vanish_are_found_unless_the_job_was_rewound(self, world: World) -> None:
        observer = world.observer()
        world.record("CheckpointCompleted", 1)
        for rows in (5, 3):
            world.deliver(1, rows=rows)
            observer.look()
        assert observer.wrong == [f"{world.database}: rows shrank from 5 rows to 3"]
        world.record("Rewound")
        observer.look()
        world.deliver(1, timeline=2, rows=2)
        observer.look()
        assert len(observer.wrong) == 1

    def test_an_offset_that_is_used_twice_is_found(self, world: World) -> None:
        observer = world.observer()
        for epoch in (1, 2):
            world.record("CheckpointCompleted", epoch)
            world.append(epoch)
        second = world.folder / "log" / "commits" / f"{2:020}.json"
        second.write_text(second.read_text().replace('"base":1', '"base":0'))
        observer.look()
        assert any("has rows from offset 0" in text for text in observer.wrong)

    def test_a_target_that_never_existed_is_reported_but_no_finding(self, world: World) -> None:
        paths = [str(world.folder / name) for name in ("typo.db", "typo")]
        observer = Observer(world.folder / "root", [Observed("sqlite", paths[0]), Observed("log", paths[1])])
        observer.look()
        assert observer.close() == [] and observer.unseen() == paths

    def test_a_target_that_is_created_later_is_observed(self, world: World) -> None:
        observer = world.observer()
        assert len(observer.unseen()) == 3
        observer.look()
        assert [finding.passed for finding in observer.close()] == [True, True] and observer.unseen() == []

    def test_a_missing_table_does_not_hide_findings_of_its_target(self, world: World) -> None:
        observer = Observer(world.folder / "root", [Observed("sqlite", world.database, ("rosw",))])
        world.deliver(3)
        observer.look()
        assert observer.unseen() == [f"{world.database}: rosw"]
        assert "epoch 3, which is not completed" in observer.close()[0].detail

    def test_a_file_that_is_no_database_or_no_commit_is_found(self, world: World) -> None:
        Path(world.database).write_bytes(b"nonsense" * 200)
        world.append(1)
        (world.folder / "log" / "commits" / f"{1:020}.json").write_text("{")
        observer = world.observer()
        for _ in range(2):
            observer.look()
        database, log = observer.close()
        assert not database.passed and "file is not a database" in database.detail
        assert not log.passed and log.detail.count("could not be read: JSONDecodeError") == 1


def checked(context: Context) -> Iterator[Finding]:
    yield Finding("nothing", True)


class TestChecks:
    def test_a_command_with_a_nonzero_exit_status_reports_a_finding(self, tmp_path: Path) -> None:
        context = Context(str(tmp_path), str(tmp_path), "job.py")
        reported = 'print(\'{"lost": 2, "duplicated": 0}\'); raise SystemExit(4)'
        [finding] = resolve((sys.executable, "-c", reported))(context)
        assert (finding.passed, finding.lost, finding.duplicated, finding.reordered) == (False, 2, 0, None)
        [finding] = resolve((sys.executable, "-c", ""))(context)
        assert finding.passed and finding.lost is None

    def test_a_command_may_contain_variables_like_any_scenario_text(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EXPECTED", "7")
        words = ("{python}", "-c", "import sys; sys.exit(sys.argv[1:] != ['7', sys.argv[2]])", "$EXPECTED", "{out}")
        [finding] = resolve(words)(Context(str(tmp_path), str(tmp_path), "job.py"))
        assert finding.passed

    def test_a_command_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="there is no program"):
            resolve(("no-such-program-here",))

    @pytest.mark.parametrize(
        "check",
        [
            "no_such_module_here:check",
            "holdfast.chaos.live.running:no_such_function",
            "math:pi",
            "torn_check:check",
            "leaving_check:check",
        ],
    )
    def test_a_function_that_does_not_exist_is_refused(
        self, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "torn_check.py").write_text("def check(")
        (tmp_path / "leaving_check.py").write_text("raise SystemExit(0)")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ConfigError, match="the check .* cannot be loaded"):
            resolve(check)


def leaves(context: Context) -> Iterator[Finding]:
    yield Finding("rows", True)
    raise SystemExit(0)


FAILS_TO_PREPARE = """
duration = "60s"
platform = "local[3]"
faults = { worker-kill = 1 }
drive = { from = "a", to = "b", prepare = ["false"] }
"""


class TestRun:
    def test_nothing_is_started_in_a_folder_that_is_not_empty(self, tmp_path: Path) -> None:
        raw = {"duration": "60s", "platform": "local[3]", "faults": {"worker-kill": 1}}
        scenario = parse(raw, "name", toxiproxy=False, checked_elsewhere=True)
        job = tmp_path / "job.py"
        job.write_text("")
        with pytest.raises(ConfigError, match="exists and is not an empty folder") as caught:
            run(scenario, job, tmp_path, check=checked)
        assert f"--out {tmp_path}-2" in str(caught.value), "the folder that it names is free"
        with pytest.raises(ConfigError, match="there is no file"):
            run(scenario, tmp_path / "other.py", tmp_path / "out", check=checked)
        with pytest.raises(ConfigError, match="there is no file"):
            prepared(scenario, tmp_path / "other.py")

    def test_a_folder_that_cannot_be_created_is_refused(self, tmp_path: Path) -> None:
        scenario = parse(tomllib.loads(FAILS_TO_PREPARE), "flights", toxiproxy=False, checked_elsewhere=True)
        (tmp_path / "file").write_text("")
        with pytest.raises(ConfigError, match="cannot be made"):
            run(scenario, Path(__file__), tmp_path / "file" / "out", check=checked)

    def test_the_replay_command_names_the_file_by_an_absolute_path(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "flights.toml").write_text(FAILS_TO_PREPARE)
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError, match="prepares the source ended with status 1"):
            run(load(Path("flights.toml"), checked_elsewhere=True), Path(__file__), Path("out"), check=checked)
        begin = read(tmp_path / "out" / "journal.jsonl").of(Begin)[0]
        assert begin.scenario == str(tmp_path / "flights.toml")
        assert f"chaos run {begin.scenario} --job" in (replay_command(begin) or "")

    def test_there_is_no_replay_command_for_a_scenario_without_a_file(self, tmp_path: Path) -> None:
        scenario = parse(tomllib.loads(FAILS_TO_PREPARE), "flights", toxiproxy=False, checked_elsewhere=True)
        with pytest.raises(ConfigError):
            run(scenario, Path(__file__), tmp_path / "out", check=checked)
        assert replay_command(read(tmp_path / "out" / "journal.jsonl").of(Begin)[0]) is None

    @pytest.mark.toxiproxy
    def test_a_scenario_of_the_package_is_named_without_a_path(self) -> None:
        assert load(Path("flights-short")).path == "flights-short"

    def test_a_fault_without_a_visible_effect_is_missed_when_its_time_is_over(self, tmp_path: Path) -> None:
        scenario = parse(tomllib.loads(FAILS_TO_PREPARE), "name", toxiproxy=False, checked_elsewhere=True)
        journal, fault = JournalWriter(tmp_path / "journal.jsonl"), Planned(1, 0, "worker-disk-full", 0, 0)
        running = _Run(scenario, (), Path(__file__), tmp_path, journal, print)
        running._armed = (fault, time.monotonic() - 1)
        running._strike()
        assert [(line["phase"], line["target"]) for line in journal.lines] == [("missed", "worker")]
        journal.close()

    def test_a_job_under_a_fault_without_a_visible_effect_is_not_stuck(self, tmp_path: Path) -> None:
        scenario = parse(tomllib.loads(FAILS_TO_PREPARE), "name", toxiproxy=False, checked_elsewhere=True)
        journal, fault = JournalWriter(tmp_path / "journal.jsonl"), Planned(1, 0, "worker-disk-full", 0, 0)
        running = _Run(scenario, (), Path(__file__), tmp_path, journal, print)
        running._calm_since, undone = time.monotonic() - 3_600, list[str]()

        class Unseen:
            target, killed = "pid 1", frozenset[int]()

            def begin(self) -> bool:
                return True

            def evidence(self) -> str | None:
                return None

            def heal(self) -> str:
                undone.append("undone")
                return ""

        running._begun = (fault, Unseen(), time.monotonic() - 1)
        running._see_fired()
        assert undone == ["undone"] and time.monotonic() - running._calm_since < 60
        journal.close()

    def test_a_check_that_exits_the_process_proves_nothing(self, tmp_path: Path) -> None:
        scenario = parse(tomllib.loads(FAILS_TO_PREPARE), "name", toxiproxy=False, checked_elsewhere=True)
        journal = JournalWriter(tmp_path / "journal.jsonl")
        running = _Run(scenario, (), Path(__file__), tmp_path, journal, print)
        running._job = LiveJob(Path(__file__), tmp_path, (), {}, "token")
        running._check([leaves])
        assert running._who_failed == "harness" and "left by sys.exit(0)" in str(running._failed)
        assert [line["name"] for line in journal.lines] == ["rows"]
        journal.close()


class TestJournal:
    def test_lines_are_complete_and_in_order_as_soon_as_they_are_written(self, tmp_path: Path) -> None:
        journal = JournalWriter(tmp_path / "journal.jsonl")
        journal.write("begin", job="j")
        journal.write("sample", state="running")
        lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
        assert [line["kind"] for line in lines] == ["begin", "sample"]
        assert lines[0]["at_ms"] <= lines[1]["at_ms"]
        assert [line["kind"] for line in journal.lines] == ["begin", "sample"]
        journal.close()
