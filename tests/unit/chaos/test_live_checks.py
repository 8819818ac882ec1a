"""What checks of a run may say: of an audit, of a command."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from holdfast.chaos.findings import Context, Finding
from holdfast.chaos.live_checks import audited, resolve
from holdfast.errors import Damaged, HoldfastError
from holdfast.runtime.audit_report import Line, Report


def shown(sources: tuple[str, ...] = ("proven",), **sinks: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON of an audit whose lines have these verdicts."""
    verdicts: list[tuple[Any, str, str]] = [("source", "bids", each) for each in sources]
    verdicts += [("sink", name, each) for name, found in sinks.items() for each in found]
    verdicts += [("epoch", "", "proven"), ("operator", "hot", "proven")]
    lines = tuple(Line(kind, name, 0, 7, each) for kind, name, each in verdicts)  # type: ignore[arg-type]
    return Report("j", (7,), lines).as_json()


class TestAudit:
    def test_a_source_and_every_sink_that_are_proven_are_a_proof(self) -> None:
        [finding] = audited(shown(out=("not provable", "proven"), copy=("proven",)), 0)
        assert finding.passed and finding.detail == "1 not provable, 5 proven"

    @pytest.mark.parametrize("compared", [
        shown(out=("not provable",)), shown(out=("proven",), copy=("not provable", "not provable")),
        shown(("not provable",), out=("proven",)), shown((), out=("proven",)), shown(),
    ])  # fmt: skip
    def test_without_a_proven_line_of_a_source_and_of_each_sink_nothing_was_compared(
        self, compared: dict[str, Any]
    ) -> None:
        assert audited(compared, 0) == []

    def test_a_line_that_differs_is_a_violation_whatever_else_is_not_provable(self) -> None:
        [finding] = audited(shown(out=("not provable", "differs")), Damaged.exit_status)
        assert not finding.passed and "'sink': 'out'" in finding.detail

    def test_checkpoints_that_cannot_be_read_are_a_violation(self) -> None:
        error = Damaged("object manifests/7 is not what was written", next_step="restore")
        [finding] = audited(error.as_json(), Damaged.exit_status)
        assert (finding.passed, finding.invariant) == (False, "I12")
        assert finding.detail == "object manifests/7 is not what was written"


def told(text: str, status: int = 0) -> list[Finding]:
    script = f"print({text!r}); raise SystemExit({status})"
    return list(resolve((sys.executable, "-c", script))(Context(".", ".", "job.py")))


class TestFinding:
    def test_whoever_counts_something_wrong_has_not_held(self) -> None:
        assert Finding("mine", True, lost=0).held and Finding("mine", True).held
        assert not Finding("mine", True, lost=3).held and not Finding("mine", False, lost=0).held

    @pytest.mark.parametrize("lost", ["3", 3.0, True, -1])
    def test_a_count_is_a_number_of_records(self, lost: Any) -> None:
        with pytest.raises(TypeError, match="a finding's lost"):
            Finding("mine", True, lost=lost)


    @pytest.mark.parametrize("passed", [np.False_, np.array([1, 2]) == np.array([1, 3])])
    def test_a_truth_value_of_an_array_library_is_taken_as_it_is_meant(self, passed: Any) -> None:
        finding = Finding("mine", passed.all(), lost=np.int64(3))
        assert (finding.passed, finding.lost) == (False, 3) and not finding.held
        assert msgspec.json.decode(json.dumps(msgspec.structs.asdict(finding)))["passed"] is False
        assert Finding("mine", np.True_).held  # type: ignore[arg-type]

    @pytest.mark.parametrize("passed", [0, 1, None, [], "x", np.int64(0)])
    def test_whether_it_held_is_true_or_false_and_nothing_else(self, passed: Any) -> None:
        with pytest.raises(TypeError, match="a finding's passed"):
            Finding("mine", passed)

    @pytest.mark.parametrize("name", [None, 7])
    def test_a_finding_has_a_name(self, name: Any) -> None:
        with pytest.raises(TypeError, match="a finding's name"):
            Finding(name, True)


class TestCommand:
    def test_one_that_counts_a_loss_and_ends_with_0_has_not_held(self) -> None:
        [finding] = told('{"lost": 3}')
        assert finding.lost == 3 and not finding.held

    @pytest.mark.parametrize("text", ['{"lost": "3"}', "{3 rows lost}"])
    def test_numbers_that_cannot_be_read_prove_nothing_and_excuse_nothing(self, text: str) -> None:
        with pytest.raises(HoldfastError, match="cannot be read"):
            told(text)
        [finding] = told(text, 4)
        assert not finding.held and finding.detail == text
