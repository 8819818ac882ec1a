"""chaos_case, a user's test of a job under faults: its pytest tests and its outcomes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from synthetic_journal import quarter_of_an_hour

import holdfast as hf
from holdfast.chaos.cases import cases
from holdfast.chaos.cases import in_memory as case_in_memory
from holdfast.chaos.cases.cases import chaos_case
from holdfast.chaos.cases.outcome import Case, Outcome
from holdfast.chaos.judge.records import Verdict, encode
from holdfast.chaos.mutants import mutation
from holdfast.chaos.mutants.mutants import MUTANTS
from holdfast.errors import ConfigError

PLUGIN = "holdfast.chaos.pytest_plugin"
JOB = """
from dataclasses import dataclass
import holdfast as hf

@dataclass
class Bid:
    auction: int
    price: float

app = hf.App("hot", key_groups=16)
bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i, 1.0), count=1))
bids.key_by("auction").agg("hot", bids=hf.count()).sink("out", hf.SQLite("unused.db", table="hot", key=["auction"]))
"""
HEAD = """
from holdfast.testing import chaos_case
ROWS = {"bids": [{"auction": i % 7, "price": 1.0} for i in range(60)]}
"""


@dataclass
class Bid:
    auction: int
    price: float


def hot() -> hf.App:
    app = hf.App("hot", key_groups=16)
    bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i, 1.0), count=1))
    hottest = bids.key_by("auction").agg("hot", bids=hf.count(), turnover=hf.sum("price"))
    hottest.sink("out", hf.SQLite("unused.db", table="hot", key=["auction"]))
    bids.sink("copy", hf.SQLite("unused.db", table="copy"))
    return app


ROWS = {"bids": {0: [Bid(i % 7, i / 3) for i in range(60)], 2: [Bid(i % 5, 1.0) for i in range(20)]}}


def case_of(test: object) -> Case:
    [mark] = test.pytestmark  # type: ignore[attr-defined]
    case: Case = mark.args[0]
    return case


def played(seed: int, faults: tuple[str, ...] = cases.IN_MEMORY, rows: object = ROWS, job: object = hot) -> Outcome:
    @chaos_case(job, driver="test", rows=rows, faults=faults)  # type: ignore[arg-type]
    def test(outcome: Outcome) -> None: ...

    return cases.play(case_of(test), seed, Path(), Path(), "pytest again")


def suite(folder: Path, test: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a user's suite, with a job beside it."""
    (folder / "job.py").write_text(JOB)
    (folder / "test_it.py").write_text(HEAD + test)
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--strict-markers", "-v"]
    path = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    given = {**os.environ, **path, **environment}
    return subprocess.run(
        [*command, *arguments, "test_it.py"], cwd=folder, env=given, capture_output=True, text=True, check=False
    )


class TestInMemory:
    @pytest.mark.parametrize("seed", range(4))
    def test_kills_do_not_change_the_result(self, seed: int) -> None:
        outcome = played(seed)
        assert outcome.held, outcome
        assert (outcome.lost, outcome.duplicated) == (0, 0)
        assert sum(row["bids"] for row in outcome.rows("out")) == 80
        assert len(outcome.rows("copy")) == 80

    def test_every_requested_kind_of_fault_fires(self) -> None:
        assert set(played(5).faults) == {"worker-kill", "driver-kill"}
        only = played(5, ("worker-kill",))
        assert set(only.faults) == {"worker-kill"}
        assert only.recoveries >= only.faults["worker-kill"] >= 1

    def test_a_seed_repeats_its_run_and_other_seeds_give_other_runs(self) -> None:
        outcomes = [played(seed) for seed in (1, 1, 2, 3, 4)]
        seen = [(dict(each.faults), each.recoveries, each.delivered["copy"]) for each in outcomes]
        assert seen[0] == seen[1]
        assert any(each != seen[0] for each in seen[2:])

    def test_a_wrong_protocol_is_detected(self) -> None:
        [mutant] = [each for each in MUTANTS if each.name == "finished-early"]
        with mutation.applied(mutant):
            wrong = [each for seed in range(4) if not (each := played(seed)).held]
        assert wrong
        assert all(each.verdict == "violated" and each.reasons for each in wrong)

    def test_a_function_that_keeps_state_between_calls_is_detected(self) -> None:
        seen: list[int] = []

        def numbered(bid: Bid) -> Bid:
            seen.append(bid.auction)
            return Bid(len(seen), bid.price)

        def forgetful() -> hf.App:
            seen.clear()
            app = hf.App("numbered", key_groups=16)
            bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i, 1.0), count=1))
            bids.map(numbered, to=Bid).sink("out", hf.SQLite("unused.db", table="out"))
            return app

        outcomes = [played(seed, job=forgetful) for seed in range(4)]
        wrong = [each for each in outcomes if each.verdict == "violated"]
        assert wrong
        assert all(each.lost and each.duplicated for each in wrong)

    @pytest.mark.parametrize("seed", range(12))
    def test_every_seed_processes_some_rows_again(self, seed: int) -> None:
        seen: list[int] = []

        def noted(bid: Bid) -> Bid:
            seen.append(bid.auction)
            return bid

        def build() -> hf.App:
            app = hf.App("noted", key_groups=16)
            bids = app.source("bids", hf.Generator(Bid, lambda i: Bid(i, 1.0), count=1))
            bids.map(noted, to=Bid).sink("out", hf.SQLite("unused.db", table="out"))
            return app

        outcome = played(seed, job=build, rows={"bids": [Bid(i, 1.0) for i in range(200)]})
        assert outcome.held, outcome
        assert len(seen) > 400, "once in the calm run, once under faults, and some again"

    def test_faults_after_everything_was_committed_prove_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(case_in_memory, "_after_a_push", lambda *_: None)
        outcomes = [played(seed) for seed in range(12)]
        idle = [each for each in outcomes if each.verdict == "not_proven"]
        assert idle, "where no fault comes right after a push, everything may be committed by then"
        assert all(each.reasons == ("no record was read again, so no fault put any record at risk",) for each in idle)

    def test_a_job_that_delivers_nothing_proves_nothing(self) -> None:
        outcome = played(0, rows={"bids": []})
        assert (outcome.verdict, outcome.lost) == ("not_proven", None)

    def test_rows_of_an_unknown_sink_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="'ou'"):
            played(0).rows("ou")


class TestArguments:
    def test_arguments_that_the_test_driver_does_not_support_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="data-cut"):
            chaos_case(hot, driver="test", rows=ROWS, faults=["data-cut"])
        with pytest.raises(ConfigError, match="check"):
            chaos_case(hot, driver="test", rows=ROWS, check="audit")
        with pytest.raises(ConfigError, match="no rows"):
            chaos_case(hot, driver="test")

    def test_arguments_that_spark_does_not_support_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="cannot run on Spark"):
            chaos_case(hot)
        with pytest.raises(ConfigError, match="rows are for"):
            chaos_case("job.py", rows=ROWS)

    def test_a_scenario_is_built_from_the_arguments(self) -> None:
        @chaos_case("job.py", duration="20s", faults=["worker-kill"], check="checks:totals", every="1s..2s")
        def test(outcome: Outcome) -> None: ...

        assert cases.scenario_of(case_of(test)) == (
            {
                "duration": "20s",
                "parallelism": 2,
                "faults": {"worker-kill": 1.0},
                "platform": "local[3]",
                "every": "1s..2s",
                "check": "checks:totals",
            },
            None,
        )

    @pytest.mark.parametrize("verdict", ["held", "violated"])
    def test_the_outcome_of_a_real_run_is_read_from_its_journal(self, tmp_path: Path, verdict: Verdict) -> None:
        def run(job: Path, out: Path, seed: int) -> Path:
            out.mkdir()
            (out / "journal.jsonl").write_bytes(encode(quarter_of_an_hour(seed, end=verdict)))
            return out / "journal.jsonl"

        outcome = cases.play_live(run, Path("job.py"), tmp_path / "run", 3, "pytest again")
        assert (outcome.verdict, outcome.seed, outcome.held) == (verdict, 3, verdict == "held")
        assert outcome.lost == 0 and outcome.recoveries > 10
        assert outcome.faults["worker-kill"] > 0
        assert f"page: {tmp_path / 'run' / 'report.html'}" in outcome.lines()
        assert "pytest again" in (tmp_path / "run" / "report.html").read_text()


class TestPytest:
    def test_every_seed_is_a_test_and_can_be_selected(self, tmp_path: Path) -> None:
        code = (
            '@chaos_case("job.py", driver="test", rows=ROWS, seed=3, seeds=2)\n'
            "def test_totals(outcome, tmp_path):\n"
            "    assert outcome.held\n"
            '    assert sum(row["bids"] for row in outcome.rows("out")) == 60\n'
        )
        both = suite(tmp_path, code)
        assert "test_totals[seed3] PASSED" in both.stdout and "test_totals[seed4] PASSED" in both.stdout, both.stdout
        assert "2 passed" in both.stdout
        chosen = suite(tmp_path, code, "--chaos-seed", "9", "--collect-only").stdout
        assert "test_totals[seed9]" in chosen and "1 test collected" in chosen

    def test_a_failure_shows_the_faults_and_the_replay_command(self, tmp_path: Path) -> None:
        code = (
            '@chaos_case("job.py", driver="test", rows=ROWS)\n'
            "def test_totals(outcome):\n"
            '    assert outcome.rows("out") == []\n'
            "def test_without(outcome): ...\n"
        )
        shown = suite(tmp_path, code).stdout
        assert "held, seed 0; faults: " in shown
        assert "again: pytest 'test_it.py::test_totals' --chaos-seed 0" in shown
        assert "made by @chaos_case, which this test does not have" in shown

    def test_the_replay_command_works_from_the_folder_where_pytest_was_started(self, tmp_path: Path) -> None:
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
        (tmp_path / "unit").mkdir()
        code = '@chaos_case("job.py", driver="test", rows=ROWS)\ndef test_totals(outcome):\n    assert False\n'
        assert "again: pytest 'test_it.py::test_totals' --chaos-seed 0" in suite(tmp_path / "unit", code).stdout

    def test_a_case_without_the_argument_is_refused(self, tmp_path: Path) -> None:
        code = '@chaos_case("job.py", driver="test", rows=ROWS)\ndef test_totals(): ...\n'
        assert "no argument `outcome`" in suite(tmp_path, code).stdout

    def test_a_real_run_without_java_fails_with_that_reason(self, tmp_path: Path) -> None:
        code = '@chaos_case("job.py", check="audit")\ndef test_totals(outcome):\n    assert outcome.held\n'
        shown = suite(tmp_path, code, JAVA_HOME=str(tmp_path / "nothing")).stdout
        assert "skipped" not in shown and "passed" not in shown
        assert "no live run: no java was found" in shown

    def test_the_plugin_costs_nothing_in_a_suite_that_does_not_use_it(self) -> None:
        code = (
            f"import sys, {PLUGIN}; from holdfast.testing import chaos_case; "
            "print(sorted(name for name in sys.modules if name.partition('.')[0] in "
            "('pyspark', 'pyarrow', 'polars', 'numpy', 'rocksdict')))"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
        command = [sys.executable, "-c", code]
        loaded = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert loaded.strip() == "[]"

    def test_an_installed_plugin_that_is_named_again_is_loaded_once(self, tmp_path: Path) -> None:
        metadata = tmp_path / "site" / "other-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[pytest11]\n{PLUGIN} = {PLUGIN}\n")
        (tmp_path / "suite").mkdir()
        path = os.pathsep.join([str(tmp_path / "site"), *(each for each in sys.path if each)])
        code = "def test_nothing():\n    assert chaos_case\n"
        assert "1 passed" in suite(tmp_path / "suite", code, PYTHONPATH=path).stdout
