"""Each wrong version of the state is caught by a test that plays the state against plain Python.

The machines run without shrinking and from a fixed seed, so a version is caught after the same number of examples every
time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from test_collections_model import Collections
from test_expiry_model import ExpiringWorker
from test_records_model import Tables
from test_state_model import OneWorker
from test_swap import TestRoom as Room

from holdfast.chaos.mutants.mutation import Mutant, applied
from holdfast.chaos.mutants.state_mutants import STATE_MUTANTS

pytestmark = pytest.mark.thorough

EXAMPLES_MAX = 200
EXAMPLES_RIGHT = 80
"""For what is not mutated: some three times as many as most wrong versions need."""
MACHINES: dict[str, type[RuleBasedStateMachine]] = {
    "rows-left-in-order-of-records": Tables,
    "inputs-left-in-order-of-arrival": Tables,
    "timer-fires-outside-of-epochs": Collections,
    "order-outlives-rollback": Collections,
    "suffix-left-by-prefix-delete": Collections,
    "freeze-sees-later-write": Collections,
    "range-restored-twice": ExpiringWorker,
    "restore-resets-ttl": Collections,
    "text-of-abandoned-epoch": OneWorker,
}
"""The machine that catches each of them; memory that leaves the process has a test of its own."""


def examples_until_caught(machine: type[RuleBasedStateMachine], at_most: int = EXAMPLES_MAX) -> int | None:
    """Play examples until one fails; return how many, None if none did."""
    played = 0

    class Counted(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            nonlocal played
            played += 1
            super().__init__()

    how = settings(
        max_examples=at_most,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(Counted, settings=how)
    except AssertionError:  # an error of another kind is one of the mutant itself, which has outlived what it changes
        return played
    return None


class TestStateMutants:
    @pytest.mark.parametrize("machine", (Collections, ExpiringWorker, OneWorker, Tables))
    def test_what_is_not_mutated_passes_the_same_examples(self, machine: type[RuleBasedStateMachine]) -> None:
        assert examples_until_caught(machine, EXAMPLES_RIGHT) is None

    @pytest.mark.parametrize("mutant", STATE_MUTANTS, ids=lambda mutant: mutant.name)
    def test_a_wrong_version_of_the_state_is_caught(
        self, mutant: Mutant, record_property: Callable[[str, object], None], tmp_path: Path
    ) -> None:
        with applied(mutant):
            if mutant.name in MACHINES:
                examples = examples_until_caught(MACHINES[mutant.name])
            else:
                with pytest.raises(AssertionError):
                    Room().test_keeps_address_and_content_when_it_is_swapped_out(tmp_path)
                examples = 1
        assert examples is not None, f"{mutant.name} ({mutant.rules}) survived"
        record_property("wrong version", f"{mutant.name} {examples}")
