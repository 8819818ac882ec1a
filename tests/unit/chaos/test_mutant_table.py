"""The table of wrong versions in docs/guarantees.md is that of the code."""

from __future__ import annotations

from pathlib import Path

from holdfast.chaos.mutants import MUTANTS

PAGE = Path(__file__).parents[3] / "docs" / "guarantees.md"


class TestTableOfWrongVersions:
    def test_it_names_each_with_its_rules_and_what_it_does(self) -> None:
        told = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
        rows = {cells[0].removeprefix("| ").strip("`"): cells[1:3] for cells in told}
        assert {name: rows.get(name) for name in rows if name in {m.name for m in MUTANTS}} == {
            mutant.name: [mutant.rules, mutant.does] for mutant in MUTANTS
        }
