"""One page that shows a run under live faults: report.html, with report.json beside it.

The page is a single file: style, script and drawings are inside, it may load nothing (its own policy forbids that), and
without the script only the cross-hair is missing.

Invariants
    - Every text from the journal is escaped; in the data of the script, `<` too.
    - Each fault of the journal is one element of the class `fault`, with its id.
    - Both files are complete or absent: they are written to a temporary name and renamed.

Source: DESIGN section 10.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import msgspec

from holdfast.chaos.evidence import page_lanes
from holdfast.chaos.evidence.page_style import CSS, SCRIPT
from holdfast.chaos.evidence.report import (
    ChaosReport,
    Struck,
    as_json,
    scenario_path,
    shown,
    struck,
    summarise,
    verdict_words,
)
from holdfast.chaos.judge.records import CheckRecord, Journal, Recovery, Sample, parse
from holdfast.errors import ConfigError
from holdfast.runtime.cli.text import count, span

SAMPLES_MAX = 3_000
"""Samples that the cross-hair knows; a longer run is thinned to that number."""
FOLLOWS_WITHIN_MS = 60_000.0
"""A recovery that begins later than this after a fault is not shown as its consequence."""
CLOCKS_DIFFER_MS = 500.0
"""How much earlier than its cause a recovery may seem to begin, because both are seen by polling."""
JOURNAL, PAGE, SUMMARY = "journal.jsonl", "report.html", "report.json"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
SIGNS = {
    "held": '<path d="M4 13l6 6L20 6"/>',
    "violated": '<path d="M5 5l14 14M19 5L5 19"/>',
    "not_proven": '<path d="M8 9a4 4 0 1 1 5.5 3.7c-1 .5-1.5 1.1-1.5 2.3M12 19.5v.01"/>',
}
LEGEND = (
    ("var(--ok)", "running"),
    ("#f0a020", "recovering"),
    ("var(--accent)", "starting"),
    ("var(--bad)", "down or unknown"),
    ("var(--band)", "a recovery, behind every curve"),
    ("var(--ink)", "a driver begins or ends"),
)


@dataclass(frozen=True)
class ReportPaths:
    """The paths of the two files."""

    json: Path
    html: Path


def write(journal: Path, again: str | None = None) -> ReportPaths:
    """Write report.json and report.html beside a journal.

    Args:
        again: The command that repeats the run, if it is not the journal's.

    Raises:
        ConfigError: there is no such journal.
        Damaged: it cannot be read.
    """
    journal_records = read(journal)
    report = summarise(journal_records)
    if again is not None:
        report = msgspec.structs.replace(report, replay=again)
    paths = ReportPaths(journal.with_name(SUMMARY), journal.with_name(PAGE))
    _replace(paths.json, as_json(report))
    _replace(paths.html, page(journal_records, report).encode())
    return paths


def read(journal: Path) -> Journal:
    """Read a journal; raises as `write` does."""
    try:
        data = journal.read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise ConfigError(
            f"there is no journal {journal}",
            not_done="no report was made",
            next_step=f"give the folder that holdfast chaos run wrote; it holds {JOURNAL}",
        ) from error
    return parse(data, str(journal))


def page(journal: Journal, report: ChaosReport) -> str:
    """Return the page."""
    faults = struck(journal)
    title = escape(f"{report.job or 'a job'}: {report.verdict.replace('_', ' ')}")
    sections = [
        _header(report),
        _figures(report),
        _section("Timeline", _hint(journal) + page_lanes.timeline(journal, faults) + _legend()),
        _section("Faults", _fault_table(faults, journal.of(Recovery))),
        _section("Checks", _check_table(journal.of(CheckRecord))),
        _section("Repeat it", _again(report)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{title}</title><style>{CSS}</style></head><body><main>{''.join(sections)}</main>"
        f'<script type="application/json" id="samples">{_samples(journal)}</script>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _section(name: str, inside: str) -> str:
    return f'<h2>{name}</h2><section class="card">{inside}</section>'


def _header(report: ChaosReport) -> str:
    facts = [
        ("job", report.job),
        ("scenario", scenario_path(report.scenario)),
        ("seed", None if report.seed is None else str(report.seed)),
        ("took", span(report.duration_ms)),
        ("began", None if report.started_at is None else shown(report.started_at)),
        ("code", report.git),
    ]
    facts_html = " · ".join(f"{name} <b>{escape(value)}</b>" for name, value in facts if value)
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in report.reasons)
    reasons = f"<ul>{reasons}</ul>" if reasons else ""
    return (
        f'<header class="{report.verdict}"><svg viewBox="0 0 24 24" aria-hidden="true">{SIGNS[report.verdict]}</svg>'
        f"<div><h1>{escape(verdict_words(report))}</h1><p>{facts_html}</p>{reasons}</div></header>"
    )


def _figures(report: ChaosReport) -> str:
    armed_count = sum(each.armed for each in report.faults.values())
    fired = sum(each.fired for each in report.faults.values())
    checks = report.checks_passed + report.checks_failed
    tiles = [
        _tile("Faults fired", f"{fired:,}", f"of {armed_count:,} armed", "wrong" if fired < armed_count else ""),
        _tile("Recoveries", count(report.recoveries), f"{report.recovery_ms.known} timed"),
        _tile("Recovery", _time(report.recovery_ms.p50), f"median; p99 {_time(report.recovery_ms.p99)}"),
        *(
            _tile(name, "unknown" if number is None else f"{number:,}", "records", _kind(number))
            for name, number in (
                ("Lost", report.lost),
                ("Duplicated", report.duplicated),
                ("Reordered", report.reordered),
            )
        ),
        _tile(
            "Checks", f"{report.checks_passed} of {checks}", "passed", _kind(report.checks_failed if checks else None)
        ),
        _tile("Records read", _short(report.records_in), f"in {count(report.epochs)} epochs"),
    ]
    return f'<dl class="figures">{"".join(tiles)}</dl>'


def _kind(wrong: int | None) -> str:
    return "unknown" if wrong is None else "wrong" if wrong else "good"


def _tile(name: str, value: str, about: str, kind: str = "") -> str:
    unknown = " unknown" if value == "unknown" and kind != "unknown" else ""
    return f'<div class="{kind}{unknown}"><dt>{name}</dt><dd>{value}<small>{about}</small></dd></div>'


def _short(number: int | None) -> str:
    """Return a number that fits on a tile: "874", "38.3 M"."""
    if number is None:
        return "unknown"
    divisor, unit = next((each for each in ((1e9, " G"), (1e6, " M"), (1e4, " k")) if number >= each[0]), (1.0, ""))
    divisor = 1e3 if unit == " k" else divisor
    return f"{number / divisor:,.1f}{unit}" if unit else f"{number:,}"


def _time(milliseconds: float | None) -> str:
    return "unknown" if milliseconds is None else span(milliseconds)


def _hint(journal: Journal) -> str:
    torn = "; the journal ends in the middle of a line" if journal.torn else ""
    return f'<p class="now">All lanes share one axis of time: point anywhere, or at a mark{torn}.</p>'


def _legend() -> str:
    keys = "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for colour, name in LEGEND)
    return f'<div class="legend">{keys}</div>'


def _fault_table(faults: Sequence[Struck], recoveries: Sequence[Recovery]) -> str:
    colours = page_lanes.colours_of(faults)
    rows = []
    for number, fault in enumerate(faults):
        later = (each.at_ms for each in faults[number + 1 :])
        after = _recovery_after(fault, next(later, float("inf")), recoveries)
        cells = [
            _cell(page_lanes.clock(fault.at_ms), "n"),
            f'<td class="name"><i class="key"></i>{escape(fault.fault)}</td>',
            _cell(fault.target or "", "target"),
            _cell(fault.plane or ""),
            _chip(fault.outcome, fault.fired_ms is not None),
            _cell("" if fault.lasted_ms is None else span(fault.lasted_ms), "n"),
            _cell("" if after is None else span(after), "n"),
            _cell(fault.detail, "wide soft"),
        ]
        rows.append(f'<tr class="c{colours[fault.fault]}">{"".join(cells)}</tr>')
    heads = ("At", "Fault", "Target", "Plane", "Outcome", "Lasted", "Recovery after it", "Detail")
    return _table(heads, rows, {"At", "Lasted", "Recovery after it"}, "No fault was armed.")


def _recovery_after(fault: Struck, until: float, recoveries: Sequence[Recovery]) -> float | None:
    """Return the duration of the recovery that began after this fault and before the next one; None without one."""
    if fault.fired_ms is None:
        return None
    until = min(until, fault.fired_ms + FOLLOWS_WITHIN_MS)
    begun = [each for each in recoveries if fault.fired_ms - CLOCKS_DIFFER_MS <= (each.began_ms or 0.0) < until]
    return begun[0].recovery_ms if begun else None


def _check_table(checks: Sequence[CheckRecord]) -> str:
    rows = []
    for check in checks:
        counts = (check.lost, check.duplicated, check.reordered)
        cells = [
            _cell(check.name),
            _cell(check.invariant or "", "soft"),
            _chip("passed" if check.held else "failed", check.held),
            *(_cell("" if number is None else f"{number:,}", "n") for number in counts),
            _cell("" if check.detail is None else shown(check.detail), "wide soft"),
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = ("Check", "Invariant", "Result", "Lost", "Duplicated", "Reordered", "Detail")
    return _table(heads, rows, {"Lost", "Duplicated", "Reordered"}, "Nothing was checked.")


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(text)}</td>'


def _chip(text: str, good: bool) -> str:
    return f'<td><span class="chip {"good" if good else "wrong"}">{text}</span></td>'


def _table(heads: Iterable[str], rows: Sequence[str], numbers: set[str], empty: str) -> str:
    if not rows:
        return f'<p class="soft">{empty}</p>'
    head = "".join(f"<th{' class=n' if name in numbers else ''}>{name}</th>" for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _again(report: ChaosReport) -> str:
    command = report.replay or "the journal does not say which scenario and job were run"
    parts = [f"<pre>{escape(command)}</pre>"]
    if report.scenario is not None and not isinstance(report.scenario, str):
        parts.append(f'<p class="soft">Scenario</p><pre>{escape(_pretty(report.scenario))}</pre>')
    if report.platform is not None:
        parts.append(f'<p class="soft">It ran on {escape(shown(report.platform))}</p>')
    return "".join(parts)


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _samples(journal: Journal) -> str:
    """Return the data of the cross-hair; no `<` in it can end the script."""
    samples = journal.of(Sample)
    step = -(-len(samples) // SAMPLES_MAX) or 1
    rows = [(s.at_ms, s.state, s.rate, s.lag, s.epoch_age_ms, s.epoch) for s in samples[::step]]
    return msgspec.json.encode(rows).decode().replace("<", "\\u003c")


def _replace(path: Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(data)
    os.replace(aside, path)
