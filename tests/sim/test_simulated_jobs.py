from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest
from soaking import SHARE

from holdfast.chaos.explore.coverage import ROWS, built
from holdfast.chaos.explore.playing import play_all
from holdfast.chaos.explore.report import Summary, failure_lines, replay_command, summary_lines
from holdfast.chaos.mutants import mutation
from holdfast.chaos.mutants.mutants import MUTANTS
from holdfast.chaos.mutants.mutation import Mutant
from holdfast.chaos.mutants.simulated import SIMULATED
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.faults.points import Point
from holdfast.chaos.sim.jobs.branches.registry import BRANCHES
from holdfast.chaos.sim.jobs.workload import scenario
from holdfast.chaos.sim.simulator import Run, simulate
from holdfast.runtime.cli.main import main

SEEDS_SMOKE, SEEDS_QUICK = 30, 400
SEEDS_PER_MUTANT = 400
RECORDS_LEAST = 20
"""In the seed that is played for a branch."""


@cache
def played(seed: int) -> Run:
    """Play a seed; tests that compare a run with another one share it."""
    return simulate(seed)


def explained(summary: Summary) -> str:
    return "\n\n".join("\n".join(failure_lines(run)) for run in summary.failed[:3])


@pytest.fixture(scope="module")
def summary() -> Summary:
    return play_all(range(SEEDS_QUICK), workers=2)


class TestSmoke:
    def test_every_result_is_correct_in_the_first_seeds(self) -> None:
        few = play_all(range(SEEDS_SMOKE), workers=1)
        assert not few.failed, explained(few)

    @pytest.mark.parametrize("branch", BRANCHES)
    def test_every_result_is_correct_in_a_small_seed_with_a_branch(self, branch: str) -> None:
        made = [each for each in map(scenario, range(SEEDS_QUICK)) if branch in each.branches and not each.budgeted]
        run = simulate(
            min((each for each in made if each.records >= RECORDS_LEAST), key=lambda each: each.records).seed
        )
        assert run.violations == (), f"seed {run.seed}"
        assert run.counts[branch] == 1


@pytest.mark.thorough
@pytest.mark.timeout(900)
class TestSimulatedJobs:
    def test_every_result_is_correct_under_every_fault(self, summary: Summary) -> None:
        assert not summary.failed, explained(summary)

    def test_every_kind_of_fault_has_struck(self, summary: Summary) -> None:
        assert [fault for fault in Fault if not summary.fired[fault]] == []

    def test_faults_have_struck_at_every_required_point(self, summary: Summary) -> None:
        assert summary.empty == [], "\n".join(summary_lines(summary))

    def test_epochs_complete_and_drivers_are_fenced(self, summary: Summary) -> None:
        counts = summary.counts
        assert counts["epochs_completed"] > SEEDS_QUICK
        assert counts["epochs_triggered"] > counts["epochs_completed"]
        assert counts["generations"] > SEEDS_QUICK
        assert counts["drivers_fenced"] > 0
        assert counts["checkpoints_restored"] >= SEEDS_QUICK
        assert counts["savepoints"] > SEEDS_QUICK / 4
        assert counts["rewinds"] > SEEDS_QUICK / 10
        assert counts["targets_repaired"] > counts["rewinds"]
        assert counts["sources_waited_for_memory"] > 0 and counts["barriers_wanted_early"] > 0
        assert counts["texts"] > 0 and all(counts[name] > 0 for name in BRANCHES)
        assert counts["tasks"] > counts["tasks_accepted"] > SEEDS_QUICK
        assert counts["finishes_in_batches"] > 0 and counts["rewinds_in_batches"] > 0
        assert counts["sources_waited_for_others"] > 0
        assert counts["images_current"] > 0 and counts["images_brought_up"] > 0

    @pytest.mark.parametrize(
        "seed",
        [
            # A checker compared the rows of all writers with the epoch of one; visibility is atomic per writer (P25).
            2427,
            # A delivery gave up over one damaged read, its report was lost, and no later generation retried.
            11_069,
            # Sources waited for memory that only the changes of an abandoned epoch took, and no barrier was asked for.
            295,
        ],
    )
    def test_a_seed_that_failed_before_now_holds(self, seed: int) -> None:
        assert simulate(seed).violations == ()


class TestDeterminism:
    @pytest.mark.parametrize("seed", [3, 17, 26])
    def test_a_seed_repeats_its_run(self, seed: int) -> None:
        first, second = played(seed), simulate(seed)
        assert (first.trace, first.events, first.fired) == (second.trace, second.events, second.fired)

    def test_another_process_with_other_string_hashes_gives_the_same_run(self) -> None:
        code = "from holdfast.chaos.sim.simulator import simulate; print(simulate(26).trace)"
        environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
        run = [sys.executable, "-c", code]
        there = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout
        assert there.strip() == played(26).trace

    def test_other_seeds_give_other_runs(self) -> None:
        assert len({played(seed).trace for seed in range(10)}) == 10


@pytest.mark.thorough
class TestMutants:
    @pytest.mark.parametrize("mutant", SIMULATED, ids=lambda mutant: mutant.name)
    def test_a_wrong_version_of_the_protocol_is_caught(
        self, mutant: Mutant, record_property: Callable[[str, object], None]
    ) -> None:
        hunt = mutation.hunt(mutant, mutant.first, SEEDS_PER_MUTANT)
        assert hunt.caught is not None, f"{mutant.name} ({mutant.rules}) survived"
        record_property("wrong version", f"{mutant.name} {hunt.seeds}")

    @pytest.mark.slow
    @pytest.mark.parametrize("first", [20_000, 30_000] if SHARE == 1.0 else [20_000])
    @pytest.mark.parametrize("mutant", SIMULATED, ids=lambda mutant: mutant.name)
    def test_a_mutant_is_caught_from_any_first_seed(self, mutant: Mutant, first: int) -> None:
        assert mutation.hunt(mutant, first, 5 * SEEDS_PER_MUTANT).caught is not None, f"{mutant.name} survived"

    def test_a_failure_names_its_seed_and_its_replay_command(self) -> None:
        [mutant] = [m for m in MUTANTS if m.name == "commit-before-manifest"]
        caught = mutation.hunt(mutant, 0, SEEDS_PER_MUTANT).caught
        assert caught is not None
        lines = failure_lines(caught)
        assert lines[0].startswith(f"seed {caught.seed} failed")
        assert lines[-1] == f"play it again: {replay_command(caught.seed)}"
        assert any("I8 objects" in line for line in lines)

    def test_a_mutant_leaves_no_trace_behind(self) -> None:
        for mutant in SIMULATED:
            before = [getattr(swap.owner, swap.name) for swap in mutant.swaps]
            with mutation.applied(mutant):
                during = [getattr(swap.owner, swap.name) for swap in mutant.swaps]
            assert [getattr(swap.owner, swap.name) for swap in mutant.swaps] == before != during


class TestCommand:
    def test_the_command_shows_which_faults_struck_where(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["chaos", "simulate", "--seeds", "3"]) == 0
        shown = capsys.readouterr().out
        assert "strikes by fault and protocol point" in shown
        assert "F17 Kafka transaction times out     not built" in shown or built("F17")

    def test_the_command_shows_faults_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["chaos", "simulate", "--seeds", "3", "--json"]) == 0
        coverage = json.loads(capsys.readouterr().out)["coverage"]
        assert set(coverage) >= set(ROWS)
        assert set(coverage["F1"]) == {point.value for point in Point}
