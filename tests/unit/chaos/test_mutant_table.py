"""The tables of wrong versions in docs/guarantees.md match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.chaos.mutants.keyed_mutants import KEYED_MUTANTS
from holdfast.chaos.mutants.killing_mutants import KILLING_MUTANTS
from holdfast.chaos.mutants.mutants import MUTANTS
from holdfast.chaos.mutants.mutation import applied
from holdfast.chaos.mutants.operator_mutants import OPERATOR_MUTANTS
from holdfast.chaos.mutants.state_mutants import STATE_MUTANTS
from holdfast.chaos.sim import driver_process
from holdfast.runtime.driver.invariants import validate

PAGE = Path(__file__).parents[3] / "docs" / "guarantees.md"
HEADING = "Wrong versions that are caught"
OTHERS = {
    "Wrong versions of the state that are caught": STATE_MUTANTS,
    "Wrong versions of keyed functions that are caught": KEYED_MUTANTS,
    "Wrong versions of the search for functions that end their process that are caught": KILLING_MUTANTS,
    "Wrong versions of windows, patterns and tables that are caught": OPERATOR_MUTANTS,
}


@pytest.fixture(scope="module")
def reported() -> str:
    """Return the page's text about mutants that the simulator catches."""
    return below(HEADING)


class TestTableOfWrongVersions:
    def test_the_table_lists_each_mutant_once_with_its_rules_and_effect(self, reported: str) -> None:
        assert sorted(row[:3] for row in rows(reported)) == sorted([m.name, m.rules, m.does] for m in MUTANTS)

    def test_the_table_gives_the_first_seed_of_each_mutant(self, reported: str) -> None:
        begins = {m.name: f"from {m.first}" if m.first else "" for m in MUTANTS}
        assert {name: re.sub(r"^[1-9]\d* seeds? ?", "", after) for name, _, _, after in rows(reported)} == begins

    def test_the_text_before_it_counts_them(self, reported: str) -> None:
        assert f"Each of these {len(MUTANTS)} versions" in reported


class TestOtherTables:
    @pytest.mark.parametrize("heading", OTHERS)
    def test_list_each_once_with_its_rules_and_effect_and_count_them(self, heading: str) -> None:
        reported, mutants = below(heading), OTHERS[heading]
        assert [row[:3] for row in rows(reported)] == [[m.name, m.rules, m.does] for m in mutants]
        assert f"these {len(mutants)} versions" in reported

    @pytest.mark.parametrize("heading", OTHERS)
    def test_give_the_first_seed_of_those_that_the_simulator_catches_too(self, heading: str) -> None:
        seeds = {name: after.partition("; ")[2] for name, _, _, after in rows(below(heading))}
        assert seeds == {m.name: f"simulator seed {m.first}" if m.needs else "" for m in OTHERS[heading]}


def below(heading: str) -> str:
    """Return the page's text below a heading."""
    return PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(reported: str) -> list[list[str]]:
    """Return the cells of every row below the table's header."""
    table = [line for line in reported.splitlines() if line.startswith("|")]
    assert table[1] == "|---|---|---|---|"
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[2:]]
    return [[name.strip("`"), *others] for name, *others in cells]


class TestAnAppliedMutant:
    def test_is_left_to_the_checkers_and_not_to_the_invariants_of_the_master(self) -> None:
        with applied(MUTANTS[0]):
            assert vars(driver_process)["validate"] is not validate
        assert vars(driver_process)["validate"] is validate
