"""What the journal of a run amounts to: held, violated, or not proven.

Pure: takes the journal's lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Line = Mapping[str, Any]
OWN_CHECKS = frozenset({"processes", "raised", "damage", "epochs", "progress", "observer"})
"""They look at how the job ran; by themselves they do not compare its results."""


@dataclass(frozen=True)
class Verdict:
    """How a run ended."""

    verdict: Literal["held", "violated", "not_proven"]
    reason: str


def of(lines: Sequence[Line], kinds: Iterable[str], failed: str | None) -> Verdict:
    """Judge a run.

    Args:
        lines: The journal, in order.
        kinds: Faults that the scenario has; each has to have fired.
        failed: Why the run did not come to its end, None if it did.
    """
    checks = [line for line in lines if line["kind"] == "check"]
    wrong = [f"{check['name']}: {check['detail']}" for check in checks if not check["passed"]]
    if wrong:
        return Verdict("violated", "; ".join(wrong))
    if failed is not None:
        return Verdict("not_proven", failed)
    faults = [line for line in lines if line["kind"] == "fault"]
    fired = {line["id"] for line in faults if line["phase"] == "fired"}
    armed = [line for line in faults if line["phase"] == "armed"]
    missed = [f"{line['fault']} ({line['id']})" for line in armed if line["id"] not in fired]
    if missed:
        return Verdict("not_proven", f"armed and never fired: {', '.join(missed)}")
    never = sorted(set(kinds) - {line["fault"] for line in faults if line["phase"] == "fired"})
    if never:
        return Verdict("not_proven", f"too short for every fault; never fired: {', '.join(never)}")
    last = max(place for place, line in enumerate(lines) if line["kind"] == "fault" and line["phase"] == "fired")
    if not any(line["kind"] == "epoch" for line in lines[last:]):
        return Verdict("not_proven", "no epoch was completed after the last fault")
    compared = [check for check in checks if check["name"] not in OWN_CHECKS]
    if not compared:
        return Verdict("not_proven", "the check compared nothing")
    return Verdict("held", f"{len(fired)} faults fired, {len(checks)} checks passed")
