"""A soak: what its log keeps through kills, and what may be stated from it."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import WALL_S
from synthetic_journal import quarter_of_an_hour

from holdfast.chaos.evidence import odds
from holdfast.chaos.evidence.soak import LOG, LiveRuns, Soak, code_of_package, read
from holdfast.chaos.evidence.soak_log import (
    FIRST_SEED,
    Batch,
    CodeVersion,
    Failure,
    Lived,
    Simulated,
    SoakLog,
    recoveries_of,
    state,
    statement_json,
    statement_lines,
)
from holdfast.chaos.explore.playing import play_all
from holdfast.chaos.explore.report import Summary
from holdfast.chaos.judge.records import Verdict, encode
from holdfast.chaos.mutants import mutation
from holdfast.chaos.mutants.mutants import MUTANTS
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.simulator import simulate
from holdfast.errors import ConfigError, Damaged, Fenced, Unavailable
from holdfast.runtime.cli.main import main

pytestmark = pytest.mark.thorough

CODE = CodeVersion("0123456789ab", "0.1.0", "abc")
HOUR = 3_600.0


def batch(recoveries: int, failures: int = 0, code: CodeVersion = CODE, first: int = FIRST_SEED) -> Simulated:
    failed = [Failure("I1 lost", f"holdfast chaos replay --seed {n}", n) for n in range(failures)]
    return Simulated("2026-11-21T00:00:00+00:00", 60.0, code, first, 100, recoveries, failed, {}, {})


def lived(verdict: Verdict, recoveries: int = 7) -> Lived:
    failures = [Failure("I2 twice", None)] if verdict == "violated" else []
    return Lived("2026-11-21T00:00:00+00:00", 30.0, CODE, "live-0001", 0, verdict, recoveries, 9, failures, [])


def log_of(*batches: Batch) -> SoakLog:
    return SoakLog(batches, 0)


def ticking(step: float) -> itertools.count[float]:
    return itertools.count(0.0, step)


def soak_of(folder: Path, hours: float = 3.0, live: LiveRuns | None = None) -> Soak:
    """Return a soak of real seeds in which every batch seems to take an hour."""
    clock = ticking(HOUR)
    return Soak(folder, hours, lambda seeds: play_all(seeds, 1), live, batch_seeds=3, clock=lambda: next(clock))


def live_runs(verdict: Verdict) -> LiveRuns:
    def play(job: Path, out: Path, seed: int) -> Path:
        (out / "root").mkdir(parents=True)
        (out / "driver-1.log").write_text("it ran")
        journal = out / "journal.jsonl"
        journal.write_bytes(encode(quarter_of_an_hour(seed, end=verdict)))
        return journal

    return LiveRuns(play, Path("job.py"))


class TestOdds:
    def test_no_violations_give_a_bound_of_three_divided_by_trials(self) -> None:
        assert odds.upper_bound(0, 3_000) == 0.001

    def test_the_bound_is_unknown_without_trials_and_at_most_one_with_few(self) -> None:
        assert odds.upper_bound(0, 0) is None
        assert odds.upper_bound(0, 2) == 1.0

    @pytest.mark.parametrize(("seen", "limit"), [(1, 4.744), (2, 6.296), (3, 7.754), (10, 16.962), (100, 118.08)])
    def test_the_limits_match_published_tables(self, seen: int, limit: float) -> None:
        """Garwood 1936, one-sided 95 %; the last one from the chi-squared quantile at 202 degrees of freedom."""
        assert math.isclose(odds.upper_count(seen), limit, rel_tol=1e-3)

    @given(st.integers(0, 50), st.integers(1, 10**9))
    def test_the_bound_grows_with_violations_and_falls_with_trials(self, seen: int, trials: int) -> None:
        here, more = odds.upper_bound(seen, trials), odds.upper_bound(seen + 1, trials)
        longer = odds.upper_bound(seen, 2 * trials)
        assert here is not None and more is not None and longer is not None
        assert longer <= here <= more


class TestStatement:
    def test_the_statement_applies_the_rule_of_three(self) -> None:
        lines = statement_lines(state(log_of(batch(60_000), batch(39_993), lived("held"))))
        assert lines[0] == "100,000 fault-injected recoveries, 0 violations, upper bound 3/100,000 = 3e-05 per recovery"
        assert lines[1].startswith("  simulated 99,993 in 200 runs, live 7 in 1 run; ")
        assert "95%" in lines[2] and "rule of three" in lines[2]

    def test_violations_are_counted_and_their_commands_shown(self) -> None:
        lines = statement_lines(state(log_of(batch(1_000, failures=2))))
        assert lines[0] == "1,000 fault-injected recoveries, 2 violations, upper bound 6.3/1,000 = 0.0063 per recovery"
        assert "again: holdfast chaos replay --seed 1" in "\n".join(lines)

    def test_versions_are_stated_separately_and_a_mixture_has_no_bound(self) -> None:
        newer = CodeVersion("ffff", "0.2.0")
        stated = state(log_of(batch(10, 1), batch(20, code=newer)))
        assert [(each.code, each.recoveries, each.violations) for each in stated] == [(newer, 20, 0), (CODE, 10, 1)]
        last = statement_lines(stated)[-1]
        assert last == (
            "together 30 recoveries, 1 violation, of 2 versions of the code: a mixture, for which no bound is given"
        )
        assert statement_json(stated)["mixed"] is True

    def test_a_live_run_that_proved_nothing_adds_nothing(self) -> None:
        [stated] = state(log_of(batch(10), lived("not_proven"), lived("violated", 4)))
        assert (stated.recoveries, stated.violations, stated.live_runs, stated.live_not_proven) == (14, 1, 1, 1)

    def test_a_fault_that_never_struck_is_named(self) -> None:
        often = Simulated("", 1.0, CODE, 0, 50, 9, [], {"driver killed": 12, "clock": 30}, {"clock": 1})
        [stated] = state(log_of(often, often))
        assert stated.never_struck == ["driver killed"]

    def test_a_soak_without_a_finished_batch_states_nothing(self) -> None:
        assert statement_lines(state(log_of())) == ["no batch is finished: no statement can be made"]

    def test_recoveries_of_a_batch_are_generations_minus_starts_and_rewinds(self) -> None:
        summary = Summary()
        runs = [simulate(seed) for seed in range(FIRST_SEED, FIRST_SEED + 6)]
        for run in runs:
            summary.add(run)
        total: Counter[str] = Counter()
        for run in runs:
            total.update(run.counts)
        assert recoveries_of(summary) == total["generations_that_completed"] - 6 - 2 * total["rewinds"]
        assert total["generations_that_completed"] < total["generations"]
        assert recoveries_of(summary) > 0


class TestSoak:
    def test_batches_follow_each_other_until_the_hours_are_spent(self, tmp_path: Path) -> None:
        log = soak_of(tmp_path, hours=2.5).run()
        firsts = [each.first for each in log.batches if isinstance(each, Simulated)]
        assert firsts == [FIRST_SEED, FIRST_SEED + 3, FIRST_SEED + 6]
        [stated] = state(log)
        assert stated.simulated_runs == 9
        assert stated.recoveries > 0 and not stated.violations

    def test_a_restarted_soak_continues_and_does_nothing_after_its_hours(self, tmp_path: Path) -> None:
        soak_of(tmp_path, hours=1).run()
        soak_of(tmp_path, hours=2).run()
        before = (tmp_path / LOG).read_bytes()
        log = soak_of(tmp_path, hours=2).run()
        assert [each.first for each in log.batches if isinstance(each, Simulated)] == [FIRST_SEED, FIRST_SEED + 3]
        assert (tmp_path / LOG).read_bytes() == before

    @pytest.mark.parametrize("torn", [b"{", b'{"kind":"simulated","first":1', b"\xc3"])
    def test_a_torn_line_is_not_counted_and_is_removed(self, tmp_path: Path, torn: bytes) -> None:
        soak_of(tmp_path, hours=1).run()
        whole = (tmp_path / LOG).read_bytes()
        (tmp_path / LOG).write_bytes(whole + torn)
        assert len(read(tmp_path).batches) == 1
        log = soak_of(tmp_path, hours=2).run()
        assert [each.first for each in log.batches if isinstance(each, Simulated)] == [FIRST_SEED, FIRST_SEED + 3]
        assert (tmp_path / LOG).read_bytes().startswith(whole + b'{"kind":')

    def test_damage_in_the_middle_is_refused(self, tmp_path: Path) -> None:
        soak_of(tmp_path, hours=1).run()
        whole = (tmp_path / LOG).read_bytes()
        (tmp_path / LOG).write_bytes(b"nonsense\n" + whole)
        with pytest.raises(Damaged, match="line 1"):
            soak_of(tmp_path, hours=2).run()
        assert (tmp_path / LOG).read_bytes() == b"nonsense\n" + whole

    def test_two_soaks_do_not_share_a_folder(self, tmp_path: Path) -> None:
        soak_of(tmp_path, hours=1).run()
        with (tmp_path / LOG).open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(Fenced):
                soak_of(tmp_path, hours=2).run()

    def test_a_violation_is_kept_with_its_replay_command(self, tmp_path: Path) -> None:
        [mutant] = [each for each in MUTANTS if each.name == "commit-before-manifest"]
        with mutation.applied(mutant):
            log = soak_of(tmp_path, hours=4).run()
        [stated] = state(log)
        assert stated.violations
        for failure in stated.failures:
            assert failure.replay == f"holdfast chaos replay --seed {failure.seed}"
            assert failure.what

    def test_live_runs_alternate_with_batches_and_leave_their_pages(self, tmp_path: Path) -> None:
        log = soak_of(tmp_path, hours=4, live=live_runs("held")).run()
        assert [type(each) for each in log.batches] == [Simulated, Lived, Simulated, Lived]
        runs = [each for each in log.batches if isinstance(each, Lived)]
        assert [(each.folder, each.seed, each.verdict) for each in runs] == [
            ("live-0001", 0, "held"),
            ("live-0002", 1, "held"),
        ]
        assert (tmp_path / "live-0002" / "report.html").exists()
        [stated] = state(log)
        assert stated.live_recoveries == sum(each.recoveries for each in runs) > 0

    @pytest.mark.parametrize(("verdict", "kept"), [("held", False), ("violated", True)])
    def test_only_a_run_that_did_not_hold_keeps_its_root(self, tmp_path: Path, verdict: Verdict, kept: bool) -> None:
        soak_of(tmp_path, hours=2, live=live_runs(verdict)).run()
        assert (tmp_path / "live-0001" / "root").exists() == kept
        assert (tmp_path / "live-0001" / "driver-1.log").exists() == kept
        assert {"journal.jsonl", "report.json"} <= {path.name for path in (tmp_path / "live-0001").iterdir()}

    def test_a_live_run_that_could_not_start_proves_nothing_and_uses_up_its_seed(self, tmp_path: Path) -> None:
        seeds: list[int] = []

        def play(job: Path, out: Path, seed: int) -> Path:
            seeds.append(seed)
            raise Unavailable("the cluster did not come up", not_done="the job was not started", next_step="wait")

        log = soak_of(tmp_path, 4.0, LiveRuns(play, Path("job.py"))).run()
        tried = [batch for batch in log.batches if isinstance(batch, Lived)]
        assert [(batch.verdict, batch.reasons) for batch in tried] == [
            ("not_proven", ["the cluster did not come up"])
        ] * 2
        assert len(set(seeds)) == 2

    def test_an_interrupted_live_run_is_kept_and_the_next_uses_another_folder(self, tmp_path: Path) -> None:
        (tmp_path / "live-0001").mkdir()
        log = soak_of(tmp_path, hours=2, live=live_runs("violated")).run()
        assert isinstance(log.batches[1], Lived)
        assert log.batches[1].folder == "live-0002"
        [stated] = state(log)
        assert stated.violations == 1

    def test_armed_and_fired_counts_are_kept_per_fault(self, tmp_path: Path) -> None:
        log = soak_of(tmp_path, hours=1).run()
        [only] = log.batches
        assert isinstance(only, Simulated)
        names = {fault.value for fault in Fault}
        assert set(only.armed) <= names and set(only.fired) <= names
        assert only.fired and max(only.armed.values()) <= 3

    def test_the_version_is_that_of_the_source_files(self) -> None:
        assert code_of_package() == code_of_package()
        assert len(code_of_package().source) == 12


class TestKilled:
    def test_a_killed_soak_continues_after_its_last_batch(self, tmp_path: Path) -> None:
        with soaking(tmp_path, "--batch", "1") as process:
            assert process.stderr is not None
            seen = [process.stderr.readline() for _ in range(2)]
            process.send_signal(signal.SIGKILL)
        assert all("simulated" in line for line in seen)
        done = len(read(tmp_path).batches)
        assert done >= 2
        log = soak_of(tmp_path, hours=0.5).run()
        firsts = [each.first for each in log.batches if isinstance(each, Simulated)]
        assert firsts == list(range(FIRST_SEED, FIRST_SEED + done + 1))

    def test_players_of_a_killed_soak_end(self, tmp_path: Path) -> None:
        pause = threading.Event()
        with soaking(tmp_path, "--batch", "10000", "--workers", "2") as process:
            players: list[psutil.Process] = []
            while len(players) < 3:  # two that play, and Python's own that cleans up after them
                assert process.poll() is None
                pause.wait(0.05)
                players = psutil.Process(process.pid).children()
            process.send_signal(signal.SIGKILL)
        left = psutil.wait_procs(players, timeout=WALL_S)[1]
        for player in left:
            player.kill()
        assert left == []


@contextmanager
def soaking(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Soak in a separate process, for two minutes at most."""
    command = [sys.executable, "-m", "holdfast.runtime.cli.main", "chaos", "soak", "--hours", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    given = [*command, "--folder", str(folder), *arguments]
    with subprocess.Popen(given, env=environment, stderr=subprocess.PIPE, text=True) as process:
        guard = threading.Timer(120, process.kill)
        guard.start()
        try:
            yield process
        finally:
            process.kill()
            guard.cancel()


class TestCommands:
    def test_a_soak_states_what_it_proved(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["--hours", "0.00001", "--batch", "4", "--folder", str(tmp_path / "s")]
        assert main(["chaos", "soak", *arguments]) == 0
        assert "0 violations, upper bound 3/" in capsys.readouterr().out
        assert main(["chaos", "statement", str(tmp_path / "s"), "--json"]) == 0
        reported = json.loads(capsys.readouterr().out)
        assert (reported["mixed"], reported["versions"][0]["simulated_runs"]) == (False, 4)

    def test_a_statement_needs_a_log(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["chaos", "statement", str(tmp_path)]) == ConfigError.exit_status
        assert "there is no log" in capsys.readouterr().err

    @pytest.mark.parametrize(("verdict", "status"), [("held", 0), ("not_proven", 1), ("violated", 4)])
    def test_a_live_run_that_proved_nothing_does_not_exit_with_0(
        self, tmp_path: Path, verdict: Verdict, status: int, capsys: pytest.CaptureFixture[str]
    ) -> None:
        soak_of(tmp_path, hours=2, live=live_runs(verdict)).run()
        assert main(["chaos", "statement", str(tmp_path)]) == status
        assert ("not counted: 1 live run" in capsys.readouterr().out) == (verdict == "not_proven")

    def test_incomplete_arguments_for_live_runs_are_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["chaos", "soak", "--hours", "1", "--folder", str(tmp_path), "--job", "j.py"]) == 2
        assert "both --scenario and --job" in capsys.readouterr().err
        assert not (tmp_path / LOG).exists()
