"""What checks of a run may say: of an audit, of a command."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.chaos.live_checks import audited
from holdfast.errors import Damaged
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
