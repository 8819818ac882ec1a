"""The summary of a run under live faults: faults, recoveries, lost and duplicated records, and the verdict.

verdict.py decides whether the claim of the run is justified; this module counts and describes.

Invariants
    - An unknown value is None, never zero.

Pure.
Source: DESIGN section 10.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.chaos.judge.records import (
    Begin,
    CheckRecord,
    DriverNews,
    EpochDone,
    FaultNews,
    Journal,
    Phase,
    Recovery,
    Sample,
    Verdict,
)
from holdfast.chaos.judge.verdict import judge, not_come
from holdfast.runtime.cli.text import UNKNOWN, count, plural, span, table

SCHEMA = 1
INSTANT_MS = 250.0
"""A fault healed within this time counts as instantaneous: a kill is recorded as healed as soon as it was seen."""


@dataclass(frozen=True)
class Struck:
    """One fault of a run, from arming to its end; times in milliseconds since the run began."""

    id: str
    fault: str
    target: str | None = None
    plane: str | None = None
    armed_ms: float | None = None
    fired_ms: float | None = None
    healed_ms: float | None = None
    missed_ms: float | None = None
    said: Mapping[str, str] = field(default_factory=dict)
    """Further details from the journal, by phase."""

    @property
    def at_ms(self) -> float:
        """Return its place on the time axis."""
        known = [at for at in (self.fired_ms, self.missed_ms, self.armed_ms, self.healed_ms) if at is not None]
        return known[0]

    @property
    def outcome(self) -> str:
        """Return its outcome in a word."""
        if self.fired_ms is None:
            return "missed" if self.missed_ms is not None else "never fired"
        return "healed" if self.lasted_ms is not None else "fired"

    @property
    def lasted_ms(self) -> float | None:
        """Return how long it lasted; None for instantaneous faults, such as a kill, and for faults never healed."""
        if self.fired_ms is None or self.healed_ms is None or self.healed_ms - self.fired_ms < INSTANT_MS:
            return None
        return self.healed_ms - self.fired_ms

    @property
    def detail(self) -> str:
        """Return the evidence of it; if there is none, the plan."""
        seen = [self.said[phase] for phase in ("fired", "missed", "healed") if self.said.get(phase)]
        return "; ".join(seen) or self.said.get("armed", "")


class FaultCounts(msgspec.Struct, frozen=True):
    """How many faults of a kind were armed, fired and missed."""

    armed: int
    fired: int
    healed: int
    missed: int
    """Armed and not fired, whether or not the run recorded that."""


class Spread(msgspec.Struct, frozen=True):
    """Times in milliseconds, by nearest rank over the known ones; None if none is known."""

    known: int
    p50: float | None
    p99: float | None
    most: float | None


class ChaosReport(msgspec.Struct, frozen=True):
    """The summary, as in report.json."""

    schema: int
    verdict: Verdict
    reasons: list[str]
    job: str | None
    scenario: Any
    seed: int | None
    git: str | None
    platform: Any
    started_at: Any
    replay: str | None
    duration_ms: float | None
    records_in: int | None
    epochs: int
    drivers: int
    faults: dict[str, FaultCounts]
    not_come: int | None
    """Planned faults that never came, because the job ended first; None: unknown."""
    recoveries: int
    recovery_ms: Spread
    first_record_ms: Spread
    next_epoch_ms: Spread
    lost: int | None
    duplicated: int | None
    reordered: int | None
    checks_passed: int
    checks_failed: int
    invariants: list[str]
    journal_torn: bool
    records_unknown: int


def summarise(journal: Journal) -> ChaosReport:
    """Return the summary of a journal."""
    begin, checks, recoveries = _begin(journal), journal.of(CheckRecord), journal.of(Recovery)
    verdict, reasons = judge(journal)
    return ChaosReport(
        schema=SCHEMA,
        verdict=verdict,
        reasons=reasons,
        job=begin.job,
        scenario=begin.scenario,
        seed=begin.seed,
        git=begin.git,
        platform=begin.platform,
        started_at=begin.started_at,
        replay=replay_command(begin),
        duration_ms=max((record.at_ms for record in journal.records), default=None),
        records_in=max(_known(sample.records_in for sample in journal.of(Sample)), default=None),
        epochs=len(journal.of(EpochDone)),
        drivers=sum(news.phase == "started" for news in journal.of(DriverNews)),
        faults=by_kind(struck(journal)),
        not_come=not_come(journal),
        recoveries=len(recoveries),
        recovery_ms=spread(each.recovery_ms for each in recoveries),
        first_record_ms=spread(each.first_record_ms for each in recoveries),
        next_epoch_ms=spread(each.next_epoch_ms for each in recoveries),
        lost=_total(check.lost for check in checks),
        duplicated=_total(check.duplicated for check in checks),
        reordered=_total(check.reordered for check in checks),
        checks_passed=sum(check.held for check in checks),
        checks_failed=sum(not check.held for check in checks),
        invariants=sorted({check.invariant or check.name for check in checks}),
        journal_torn=journal.torn,
        records_unknown=journal.unknown,
    )


def struck(journal: Journal) -> list[Struck]:
    """Return every fault once, in order of time."""
    faults: dict[str, Struck] = {}
    for news in journal.of(FaultNews):
        name = str(news.id)
        fault = faults.get(name, Struck(name, news.fault))
        faults[name] = replace(
            fault,
            target=fault.target if news.target is None else shown(news.target),
            plane=fault.plane or news.plane,
            said=fault.said if news.detail is None else {**fault.said, news.phase: shown(news.detail)},
            **_when(fault, news.phase, news.at_ms),
        )
    return sorted(faults.values(), key=lambda fault: fault.at_ms)


def by_kind(faults: Sequence[Struck]) -> dict[str, FaultCounts]:
    """Count faults by kind."""
    armed_counts = Counter(fault.fault for fault in faults)
    fired = Counter(fault.fault for fault in faults if fault.fired_ms is not None)
    healed = Counter(fault.fault for fault in faults if fault.healed_ms is not None)
    return {
        kind: FaultCounts(armed_counts[kind], fired[kind], healed[kind], armed_counts[kind] - fired[kind])
        for kind in sorted(armed_counts)
    }


def spread(values: Iterable[float | None]) -> Spread:
    """Return median, 99th percentile and maximum of the known values."""
    known = sorted(_known(values))
    return Spread(len(known), percentile(known, 50), percentile(known, 99), known[-1] if known else None)


def percentile(ascending: Sequence[float], percent: int) -> float | None:
    """Return the value of nearest rank; None without values."""
    return ascending[math.ceil(len(ascending) * percent / 100) - 1] if ascending else None


def replay_command(begin: Begin) -> str | None:
    """Return the command that repeats the run; None if the journal does not name scenario and job."""
    path = scenario_path(begin.scenario)
    if path is None or begin.job is None:
        return None
    seed = [] if begin.seed is None else ["--seed", str(begin.seed)]
    return shlex.join(["holdfast", "chaos", "run", path, "--job", begin.job, *seed])


def scenario_path(scenario: Any) -> str | None:
    """Return the path of the scenario's file or its name, if the journal gives it."""
    if isinstance(scenario, dict):
        scenario = scenario.get("path") or scenario.get("name")
    return scenario if isinstance(scenario, str) and scenario else None


def verdict_words(report: ChaosReport) -> str:
    """Return the verdict as a sentence."""
    fired = sum(counts.fired for counts in report.faults.values())
    recoveries = "1 recovery" if report.recoveries == 1 else f"{count(report.recoveries)} recoveries"
    what = f"{plural(fired, 'fault')}, {recoveries}"
    match report.verdict:
        case "held":
            return f"Held: {what}, every check passed"
        case "violated":
            return f"Violated: {plural(report.checks_failed, 'check')} failed after {what}"
        case _:
            return f"Not proven: {what}, and {plural(len(report.reasons), 'doubt')}"


def text_lines(report: ChaosReport) -> list[str]:
    """Return the report for a terminal."""
    facts = [
        ("job", report.job),
        ("scenario", scenario_path(report.scenario)),
        ("seed", None if report.seed is None else str(report.seed)),
        ("code", report.git),
        ("took", span(report.duration_ms)),
        ("records in", count(report.records_in)),
        ("epochs", count(report.epochs)),
        ("recoveries", count(report.recoveries)),
        *(
            (name, _times(times, report.recoveries))
            for name, times in (
                ("recovery", report.recovery_ms),
                ("first record", report.first_record_ms),
                ("next epoch", report.next_epoch_ms),
            )
        ),
        ("lost", count(report.lost)),
        ("duplicated", count(report.duplicated)),
        ("reordered", count(report.reordered)),
        ("checks", f"{report.checks_passed} passed, {report.checks_failed} failed"),
        ("invariants", ", ".join(report.invariants)),
    ]
    rows = [(kind, each.armed, each.fired, each.healed, each.missed) for kind, each in report.faults.items()]
    lines = [verdict_words(report), *(f"  {reason}" for reason in report.reasons)]
    lines += [f"  the job ended before {plural(report.not_come, 'planned fault')}"] if report.not_come else []
    lines.append("")
    lines += [f"{name:<13}{value or UNKNOWN}" for name, value in facts]
    lines += ["", table(("fault", "armed", "fired", "healed", "missed"), rows)]
    return lines + ([f"\nagain: {report.replay}"] if report.replay else [])


def as_json(report: ChaosReport) -> bytes:
    """Return the bytes of report.json."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def shown(value: Any) -> str:
    """Return any value of a record as readable text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _begin(journal: Journal) -> Begin:
    begins = journal.of(Begin)
    return begins[0] if begins else Begin(at_ms=0.0)


def _when(fault: Struck, phase: Phase, at_ms: float) -> dict[str, Any]:
    """Return the field that a record fills in; the first record counts."""
    name = f"{phase}_ms"
    return {name: at_ms} if getattr(fault, name) is None else {}


def _times(times: Spread, recoveries: int) -> str:
    """Return the times, with the number of recoveries they cover if that is not all."""
    if not times.known:
        return UNKNOWN
    of = "" if times.known == recoveries else f" ({times.known} of {recoveries} known)"
    return f"p50 {span(times.p50)}, p99 {span(times.p99)}, at most {span(times.most)}{of}"


def _total(values: Iterable[int | None]) -> int | None:
    known = _known(values)
    return sum(known) if known else None


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]
