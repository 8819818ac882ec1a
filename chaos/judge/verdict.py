"""Judges the journal of a run: held, violated, or not proven. The only judge, for the run and its report.

The run states its own verdict; here its journal is counted again, and "held" is confirmed only if every armed fault has
fired, and every kind of the scenario; records were read after the first fault and an epoch was completed after the
last; something was compared, and every comparison held; the journal has its last record.

Invariants
    - A finding that did not hold is a violation, whatever verdict the journal's last record gives.
    - No verdict improves here: "held" also needs the run's own verdict to be "held".

Pure.
Source: DESIGN section 10 (every armed fault must have fired); docs/decisions/0016-live-chaos.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.chaos.judge.findings import COUNTS
from holdfast.chaos.judge.records import (
    Begin,
    CheckRecord,
    EndRecord,
    EpochDone,
    FaultNews,
    Journal,
    Sample,
    Verdict,
    of_lines,
)
from holdfast.runtime.cli.text import plural

OWN_CHECKS = frozenset({"processes", "raised", "damage", "epochs", "progress", "observer"})
"""Checks of how the job ran; by themselves they do not compare its results."""


@dataclass(frozen=True)
class Judged:
    """How a run ended."""

    verdict: Verdict
    reason: str


def of(lines: Sequence[Mapping[str, Any]], failed: str | None) -> Judged:
    """Judge a run before it writes its own verdict.

    Args:
        lines: The journal so far, in order.
        failed: Why the run was not completed, None if it was.
    """
    journal = of_lines(lines)
    if wrong := violations(journal):
        return Judged("violated", "; ".join(wrong))
    if reasons := [failed] if failed is not None else doubts(journal):
        return Judged("not_proven", "; ".join(reasons))
    fired = {news.id for news in journal.of(FaultNews) if news.phase == "fired"}
    short = f"; the job ended before {plural(left, 'planned fault')}" if (left := not_come(journal)) else ""
    return Judged("held", f"{len(fired)} faults fired, {len(journal.of(CheckRecord))} checks passed{short}")


def judge(journal: Journal) -> tuple[Verdict, list[str]]:
    """Return the verdict on a complete journal and, unless everything held, every reason for it."""
    ends = journal.of(EndRecord)
    wrong = violations(journal)
    wrong += [_said(end) for end in ends if end.verdict == "violated" and not wrong]
    if wrong:
        return "violated", wrong
    reasons = doubts(journal)
    if not ends:
        reasons.append("the journal has no last record: the run was cut off")
    own = [_said(end) for end in ends if end.verdict == "not_proven"]
    reasons += [said for said in own if said != "; ".join(reasons)]
    return ("not_proven", list(dict.fromkeys(reasons))) if reasons else ("held", [])


def violations(journal: Journal) -> list[str]:
    """Return every finding that did not hold."""
    return [_failed(check) for check in journal.of(CheckRecord) if not check.held]


def doubts(journal: Journal) -> list[str]:
    """Return why nothing is proven although no violation was seen."""
    news, checks = journal.of(FaultNews), journal.of(CheckRecord)
    fired_ids = {each.id for each in news if each.phase == "fired"}
    silent = {each.id: each.fault for each in news if each.id not in fired_ids}
    reasons = [f"{fault} ({name}) was armed and never fired" for name, fault in silent.items()]
    begin = next(iter(journal.of(Begin)), None)
    never = set(begin.faults if begin is not None else ()) - {each.fault for each in news if each.id in fired_ids}
    if never - set(silent.values()):
        reasons.append(f"the run was too short for every fault; never fired: {', '.join(sorted(never))}")
    if not fired_ids:
        reasons.append("no fault fired")
    elif not _completed_after_the_last(journal):
        reasons.append("no epoch was completed after the last fault")
    elif (grew := _read_after_the_first(journal)) is not True:
        idle = "no record was read under faults: the whole source was read before the first fault"
        reasons.append("whether a record was read under faults is unknown" if grew is None else idle)
    if not checks:
        reasons.append("nothing was checked")
    elif all(check.name in OWN_CHECKS for check in checks):
        reasons.append("the check compared nothing")
    return reasons


def not_come(journal: Journal) -> int | None:
    """Return how many planned faults never came, because the job ended first; None if unknown."""
    planned = [begin.planned for begin in journal.of(Begin)]
    armed = {news.id for news in journal.of(FaultNews)}
    return None if not planned or planned[0] is None else planned[0] - len(armed)


def _completed_after_the_last(journal: Journal) -> bool:
    """Return whether an epoch follows the last fault that fired."""
    epoch_follows = False
    for record in journal.records:
        if isinstance(record, FaultNews) and record.phase == "fired":
            epoch_follows = False
        epoch_follows = epoch_follows or isinstance(record, EpochDone)
    return epoch_follows


def _read_after_the_first(journal: Journal) -> bool | None:
    """Return whether the job read further after the first fault than before it; None if unknown."""
    before: list[int] = []
    after: list[int] = []
    under_faults = False
    for record in journal.records:
        under_faults = under_faults or (isinstance(record, FaultNews) and record.phase == "fired")
        if isinstance(record, Sample) and record.records_in is not None:
            (after if under_faults else before).append(record.records_in)
    begun = before or after[:1]  # no earlier sample: the records in the first one may have been read before the fault
    return max(after) > max(begun) if after else None


def _said(end: EndRecord) -> str:
    return end.reason or "the run itself reported this verdict"


def _failed(check: CheckRecord) -> str:
    counted = [f"{n:,} {what}" for what in COUNTS if (n := getattr(check, what))]
    detail = check.detail
    said = "" if detail is None else detail if isinstance(detail, str) else msgspec.json.encode(detail).decode()
    return f"{check.name}: " + ("; ".join([*counted, *([said] if said else [])]) or "failed")
