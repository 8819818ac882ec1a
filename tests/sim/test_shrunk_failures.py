from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from holdfast.chaos.explore import replays
from holdfast.chaos.explore.replays import Original
from holdfast.chaos.explore.report import replay_command, shrunk_lines
from holdfast.chaos.explore.shrink import Reduction, Shrunk, rule_of
from holdfast.chaos.mutants import mutation
from holdfast.chaos.mutants.mutants import MUTANTS
from holdfast.chaos.sim.faults.faults import Fault
from holdfast.chaos.sim.simulator import Run, simulate
from holdfast.frozen import replace
from holdfast.runtime.cli.main import main

SEEDS = 400
CAUGHT = (
    pytest.param("unfinished-epoch-drops-its-delta", marks=pytest.mark.slow),
    pytest.param("pending-not-carried", marks=pytest.mark.slow),
    pytest.param("check-then-write", marks=pytest.mark.slow),
)
"""Each is played some fifty times."""


@cache
def shrunk(name: str) -> tuple[Run, Original, Shrunk]:
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    caught = mutation.hunt(mutant, mutant.first, SEEDS).caught
    assert caught is not None
    with mutation.applied(mutant):
        return caught, *replays.smallest(caught.seed)


@cache
def noted(seed: int) -> Original:
    """Play a seed and note its decisions; no test changes them."""
    return replays.noted(seed)


def played(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main([*command.split()[1:], "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.thorough
class TestShrunkFailure:
    @pytest.mark.parametrize("name", CAUGHT)
    def test_a_small_schedule_breaks_the_same_rule_and_has_a_replay_command(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        caught, original, small = shrunk(name)
        left = small.reduction.strikes
        assert left is not None and len(left) < len(caught.strikes)
        [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
        with mutation.applied(mutant):
            again = replays.replay(original, small.reduction)
            without_one = [
                replays.replay(original, replace(small.reduction, strikes=tuple(n for n in left if n != number)))
                for number in left
            ]
        assert rule_of(again) == rule_of(caught)
        assert all(rule_of(run) != rule_of(caught) for run in without_one), "a strike could be left out"
        there = played(replay_command(caught.seed, name, small.reduction), capsys)
        assert (there["trace"], there["violations"]) == (again.trace, list(again.violations))

    def test_a_failure_shows_the_strikes_that_are_left(self) -> None:
        _, original, small = shrunk("check-then-write")
        lines = shrunk_lines(original, small, "check-then-write")
        assert lines[0].endswith("to 1:")
        assert "delivery lands late" in lines[1]
        assert lines[2].startswith(f"play that: holdfast chaos replay --seed {original.run.seed} --schedule strikes=")


class TestReplay:
    @pytest.mark.parametrize("seed", [3, 17])
    def test_recording_the_decisions_of_a_run_does_not_change_it(self, seed: int) -> None:
        assert noted(seed).run.trace == simulate(seed).trace

    def test_a_replay_with_every_strike_is_the_run_of_the_seed(self) -> None:
        original = noted(17)
        everything = Reduction(strikes=tuple(range(len(original.run.strikes))))
        assert replays.replay(original, everything).trace == original.run.trace

    def test_a_strike_that_is_left_out_does_not_happen(self, capsys: pytest.CaptureFixture[str]) -> None:
        original = noted(18)
        kinds = {strike.fault for strike in original.run.strikes}
        assert len(kinds) > 1
        kind = min(kinds)
        there = played("holdfast chaos replay --seed 18 --only " + kind.name.lower().replace("_", "-"), capsys)
        assert list(there["fired"]) == [kind.value]

    def test_an_unknown_strike_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["chaos", "replay", "--seed", "3", "--without", "weather"]) == 2
        assert "is neither a number nor a kind of strike" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("flag", "given", "why"),
        [
            ("--only", "99999", "no strike 99999"),
            ("--only", "restarted", "is neither a number nor a kind of strike"),
            ("--schedule", "strikes=99999", "no strike 99999"),
            ("--schedule", "workers=0", "leaves nothing to play"),
        ],
    )
    def test_arguments_that_leave_nothing_to_replay_are_refused(
        self, flag: str, given: str, why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["chaos", "replay", "--seed", "3", flag, given]) == 2
        assert why in capsys.readouterr().err

    def test_a_kind_that_does_not_occur_in_the_seed_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        there = {strike.fault for strike in noted(3).run.strikes}
        absent = next(fault.name.lower().replace("_", "-") for fault in Fault if fault not in there)
        assert main(["chaos", "replay", "--seed", "3", "--only", absent]) == 2
        assert f"no strike of '{absent}'" in capsys.readouterr().err
