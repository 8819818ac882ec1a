"""The findings of a run's checks: of an audit, of a command."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from holdfast.chaos.judge.findings import Context, Finding
from holdfast.chaos.live.checks import audited, resolve
from holdfast.errors import Damaged, HoldfastError
from holdfast.runtime.audit.report import Line, Report, Verdict

PROVEN: Verdict = "proven"
UNPROVEN: Verdict = "not provable"


def source(verdict: Verdict = PROVEN, epoch: int = 7, rows: int = 9) -> Line:
    return Line("source", "bids", 0, epoch, verdict, "compacted" if verdict == UNPROVEN else None, rows)


def sink(verdict: Verdict = PROVEN, epoch: int | None = 7, rows: int = 9, name: str = "out") -> Line:
    return Line("sink", name, 0, epoch, verdict, "not delivered yet" if verdict == UNPROVEN else None, rows)


def chain(epoch: int = 7, follows: int = 0, verdict: Verdict = PROVEN) -> Line:
    return Line("epoch", "", None, epoch, verdict, None, more=(("follows", follows),))


def shown(*lines: Line, first: Line | None = None) -> dict[str, Any]:
    """Return the JSON of an audit of two epochs, with a line for a filter, which cannot be proven."""
    chained = (first or chain(6), chain(7, 6))
    return Report("j", (6, 7), (*chained, Line("operator", "filter", None, 7, UNPROVEN), *lines)).as_json()


CUT = chain(6, 5, UNPROVEN)
"""The reason for the oldest kept checkpoint, whose predecessor is not kept."""


class TestAudit:
    def test_sources_and_sinks_that_are_proven_in_every_epoch_are_a_proof(self) -> None:
        [finding] = audited(shown(source(), sink(), sink(name="copy")), 0)
        assert finding.passed and finding.detail == "1 not provable, 5 proven"

    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            ((source(), sink(), sink(UNPROVEN)), "sink 'out', epoch 7: not delivered yet"),
            ((source(), source(UNPROVEN, 6), sink()), "source 'bids', epoch 6: compacted"),
            ((source(), sink(), chain(8, 7, UNPROVEN)), "epoch 8"),
            ((source(), sink(), sink(UNPROVEN, None, name="copy")), "sink 'copy': no epoch of it is proven"),
            ((source(rows=0), sink()), "no record of a source"),
            ((source(), sink(rows=0)), "no row of a sink"),
            ((source(),), "no row of a sink"),
            ((), "no record of a source"),
        ],
    )
    def test_an_unproven_kept_epoch_makes_the_audit_no_proof_and_is_reported(
        self, lines: tuple[Line, ...], said: str
    ) -> None:
        with pytest.raises(HoldfastError, match=said):
            audited(shown(*lines), 0)

    def test_epochs_before_the_oldest_kept_checkpoint_are_reported_but_do_not_count(self) -> None:
        old = (sink(UNPROVEN, 6), sink(UNPROVEN, None))
        [finding] = audited(shown(source(), sink(), *old, first=CUT), 0)
        assert finding.passed
        assert finding.detail == (
            "4 not provable, 3 proven; proven only after epoch 6, earlier checkpoints are not kept; "
            "sink 'out': not delivered yet"
        )
        with pytest.raises(HoldfastError, match="sink 'out', epoch 6"):
            audited(shown(source(), sink(), *old), 0)

    def test_a_difference_is_a_violation_even_if_other_lines_are_not_provable(self) -> None:
        [finding] = audited(shown(source(), sink(UNPROVEN), sink("differs")), Damaged.exit_status)
        assert not finding.passed and "'sink': 'out'" in finding.detail

    def test_checkpoints_that_cannot_be_read_are_a_violation(self) -> None:
        error = Damaged("object manifests/7 differs from what was written", next_step="restore")
        [finding] = audited(error.as_json(), Damaged.exit_status)
        assert (finding.passed, finding.invariant) == (False, "I12")
        assert finding.detail == "object manifests/7 differs from what was written"


def reported(text: str, status: int = 0) -> list[Finding]:
    script = f"print({text!r}); raise SystemExit({status})"
    return list(resolve((sys.executable, "-c", script))(Context(".", ".", "job.py")))


class TestFinding:
    def test_a_finding_that_counts_errors_has_not_held(self) -> None:
        assert Finding("mine", True, lost=0).held and Finding("mine", True).held
        assert not Finding("mine", True, lost=3).held and not Finding("mine", False, lost=0).held

    @pytest.mark.parametrize("lost", ["3", 3.0, True, -1])
    def test_a_count_is_a_number_of_records(self, lost: Any) -> None:
        with pytest.raises(TypeError, match="a finding's lost"):
            Finding("mine", True, lost=lost)

    @pytest.mark.parametrize("passed", [np.False_, np.array([1, 2]) == np.array([1, 3])])
    def test_a_truth_value_of_an_array_library_is_converted(self, passed: Any) -> None:
        finding = Finding("mine", passed.all(), lost=np.int64(3))  # type: ignore[arg-type]
        assert (finding.passed, finding.lost) == (False, 3) and not finding.held
        assert msgspec.json.decode(json.dumps(msgspec.structs.asdict(finding)))["passed"] is False
        assert Finding("mine", np.True_).held  # type: ignore[arg-type]

    @pytest.mark.parametrize("passed", [0, 1, None, [], "x", np.int64(0)])
    def test_passed_is_true_or_false_and_nothing_else(self, passed: Any) -> None:
        with pytest.raises(TypeError, match="a finding's passed"):
            Finding("mine", passed)

    @pytest.mark.parametrize("name", [None, 7])
    def test_a_finding_has_a_name(self, name: Any) -> None:
        with pytest.raises(TypeError, match="a finding's name"):
            Finding(name, True)


class TestCommand:
    def test_a_command_that_counts_a_loss_and_exits_with_0_has_not_held(self) -> None:
        [finding] = reported('{"lost": 3}')
        assert finding.lost == 3 and not finding.held

    @pytest.mark.parametrize("text", ['{"lost": "3"}', "{3 rows lost}"])
    def test_unreadable_numbers_prove_nothing_and_excuse_nothing(self, text: str) -> None:
        with pytest.raises(HoldfastError, match="cannot be read"):
            reported(text)
        [finding] = reported(text, 4)
        assert not finding.held and finding.detail == text
