"""The report of a run under live faults: its counts, the claims it rejects, and its page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from synthetic_journal import quarter_of_an_hour

from holdfast.chaos.evidence import page_lanes
from holdfast.chaos.evidence.page import page, write
from holdfast.chaos.evidence.report import percentile, struck, summarise, text_lines
from holdfast.chaos.judge.records import (
    Begin,
    CheckRecord,
    EndRecord,
    EpochDone,
    FaultNews,
    Journal,
    Phase,
    Record,
    Recovery,
    Sample,
    encode,
    parse,
)
from holdfast.chaos.judge.verdict import judge
from holdfast.errors import ConfigError, Damaged
from holdfast.runtime.cli.main import main

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BEGIN = Begin(at_ms=0, job="job dir/job.py", seed=3, scenario="s.toml")
HELD = EndRecord(at_ms=9_000, verdict="held")
PASSED = CheckRecord(at_ms=8_000, name="totals", passed=True, lost=0)


def news(name: str, phase: Phase, at_ms: float = 1_000, fault: str = "worker-kill") -> FaultNews:
    return FaultNews(at_ms=at_ms, id=name, fault=fault, phase=phase)


FIRED = (
    news("f0", "armed", 10),
    Sample(at_ms=900, records_in=7),
    news("f0", "fired"),
    EpochDone(at_ms=1_500, epoch=7),
    Sample(at_ms=1_900, records_in=9),
)


def journal_of(*records: Record) -> Journal:
    return Journal((BEGIN, *records))


class TestVerdict:
    def test_a_run_with_faults_and_checks_that_claims_to_have_held_has_held(self) -> None:
        assert judge(journal_of(*FIRED, PASSED, HELD)) == ("held", [])

    def test_a_failed_check_is_a_violation_whatever_the_end_record_contains(self) -> None:
        wrong = CheckRecord(at_ms=8_000, name="hours", passed=False, duplicated=3, detail="tail N1")
        assert judge(journal_of(*FIRED, wrong, HELD)) == ("violated", ["hours: 3 duplicated; tail N1"])

    def test_a_passed_check_that_counts_a_loss_is_a_violation(self) -> None:
        wrong = CheckRecord(at_ms=8_000, name="mine", passed=True, lost=3)
        assert judge(journal_of(*FIRED, wrong, HELD)) == ("violated", ["mine: 3 lost"])

    def test_a_violation_that_only_the_end_record_reports_counts(self) -> None:
        end = EndRecord(at_ms=9_000, verdict="violated", reason="the oracle disagrees")
        assert judge(journal_of(*FIRED, PASSED, end)) == ("violated", ["the oracle disagrees"])

    def test_an_armed_fault_that_never_fired_proves_nothing(self) -> None:
        for silence in ((), (news("f1", "missed"),)):
            verdict = judge(journal_of(*FIRED, news("f1", "armed"), *silence, PASSED, HELD))
            assert verdict == ("not_proven", ["worker-kill (f1) was armed and never fired"])

    def test_a_run_without_its_end_proves_nothing(self) -> None:
        verdict = judge(journal_of(*FIRED, PASSED))
        assert verdict == ("not_proven", ["the journal has no last record: the run was cut off"])

    def test_a_run_in_which_nothing_was_checked_or_nothing_fired_proves_nothing(self) -> None:
        assert judge(journal_of(*FIRED, HELD)) == ("not_proven", ["nothing was checked"])
        assert judge(journal_of(PASSED, HELD)) == ("not_proven", ["no fault fired"])


class TestSummary:
    def test_faults_are_counted_by_kind_and_phase(self) -> None:
        faults = summarise(
            journal_of(*FIRED, news("a", "armed"), news("a", "missed"), news("b", "fired"), news("b", "healed"))
        ).faults
        assert (faults["worker-kill"].armed, faults["worker-kill"].fired) == (3, 2)
        assert (faults["worker-kill"].healed, faults["worker-kill"].missed) == (1, 1)

    def test_a_quantity_that_no_check_counted_is_unknown_and_not_zero(self) -> None:
        report = summarise(journal_of(PASSED, CheckRecord(at_ms=1, name="order", passed=True)))
        assert (report.lost, report.duplicated, report.reordered) == (0, None, None)
        assert (report.recovery_ms.known, report.recovery_ms.p50, report.records_in) == (0, None, None)

    def test_recoveries_of_unknown_length_count_but_are_not_in_the_times(self) -> None:
        report = summarise(journal_of(Recovery(at_ms=1), Recovery(at_ms=2_000, recovery_ms=700)))
        assert (report.recoveries, report.recovery_ms.known, report.recovery_ms.p99) == (2, 1, 700)
        assert "recovery     p50 700 ms, p99 700 ms, at most 700 ms (1 of 2 known)" in text_lines(report)

    def test_a_recovery_begins_at_the_time_in_its_line(self) -> None:
        assert Recovery(at_ms=9_000, next_epoch_ms=700, since_ms=5_000).began_ms == 5_000
        assert Recovery(at_ms=9_000, next_epoch_ms=700).began_ms == 8_300

    def test_planned_faults_that_did_not_strike_are_counted_and_reported(self) -> None:
        begin = Begin(at_ms=0, faults=("worker-kill",), planned=3)
        report = summarise(Journal((begin, *FIRED, PASSED, HELD)))
        assert (report.verdict, report.not_come, summarise(journal_of()).not_come) == ("held", 2, None)
        assert "  the job ended before 2 planned faults" in text_lines(report)

    def test_percentiles_are_by_nearest_rank(self) -> None:
        assert [percentile(range(1, 101), p) for p in (50, 99)] == [50, 99]
        assert (percentile([7.0], 99), percentile([], 50)) == (7.0, None)

    def test_the_replay_command_is_quoted(self) -> None:
        assert summarise(journal_of()).replay == "holdfast chaos run s.toml --job 'job dir/job.py' --seed 3"

    def test_a_fault_that_is_healed_immediately_has_no_duration(self) -> None:
        kill, cut = struck(
            journal_of(
                news("k", "fired", 100), news("k", "healed", 150), news("c", "fired", 200), news("c", "healed", 900)
            )
        )
        assert (kill.outcome, kill.lasted_ms, cut.outcome, cut.lasted_ms) == ("fired", None, "healed", 700)

    def test_the_text_contains_verdict_reasons_and_unknowns(self) -> None:
        lines = text_lines(summarise(journal_of(*FIRED, HELD)))
        assert lines[:2] == ["Not proven: 1 fault, 0 recoveries, and 1 doubt", "  nothing was checked"]
        assert "lost         -" in lines
        assert any(re.fullmatch(r"worker-kill +1 +1 +0 +0", line) for line in lines[-2].splitlines())


class TestJournal:
    def test_every_record_is_read_as_it_was_written(self) -> None:
        records = tuple(quarter_of_an_hour())
        assert parse(encode(records), "j") == Journal(records)

    def test_a_truncated_line_is_left_out_and_reported(self) -> None:
        data = encode([BEGIN, PASSED]) + encode([HELD])[:-9]
        assert parse(data, "j") == Journal((BEGIN, PASSED), torn=True)

    def test_a_bad_line_in_the_middle_is_damage_with_its_number(self) -> None:
        with pytest.raises(Damaged, match="line 2 of j"):
            parse(encode([BEGIN]) + b'{"kind": "check"}\n' + encode([HELD]), "j")

    def test_kinds_of_later_versions_are_counted_and_left_out(self) -> None:
        assert parse(b'{"kind":"weather","at_ms":1}\n' + encode([HELD]), "j") == Journal((HELD,), unknown=1)


class Marks(HTMLParser):
    """Collects the faults that a browser would draw, the resources it would load, and the unclosed tags."""

    VOID = frozenset(("meta", "link", "br", "img", "path", "rect"))

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "fault" in (given.get("class") or "").split():
            self.faults.append(given["data-id"] or "")
        self.loads += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.loads += ["event handler " + name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    @classmethod
    def of(cls, html: str) -> Marks:
        marks = cls()
        marks.feed(html)
        assert marks.open == []
        return marks


def page_of(*records: Record) -> str:
    journal = Journal(records)
    return page(journal, summarise(journal))


class TestPage:
    def test_each_fault_is_one_mark_with_its_id(self) -> None:
        records = quarter_of_an_hour(faults=40)
        ids = {str(record.id) for record in records if isinstance(record, FaultNews)}
        marks = Marks.of(page_of(*records)).faults
        assert len(marks) == len(ids) > 20
        assert set(marks) == ids

    def test_the_page_loads_no_external_resource(self) -> None:
        html = page_of(*quarter_of_an_hour())
        assert Marks.of(html).loads == []
        assert "default-src 'none'" in html
        assert not re.search(r"url\(|@import|https?://", html)

    def test_any_text_of_the_journal_stays_text(self) -> None:
        nasty = """</script><script>alert('x')</script><img src=x onerror="alert(1)">"""
        html = page_of(
            Begin(at_ms=0, job=nasty, scenario={"name": nasty}, platform=nasty, git=nasty, started_at=nasty),
            FaultNews(at_ms=1, id=nasty, fault=nasty, phase="fired", target=nasty, plane=nasty, detail=nasty),
            Sample(at_ms=2, state=nasty),
            Recovery(at_ms=3, recovery_ms=1, cause=nasty),
            CheckRecord(at_ms=4, name=nasty, invariant=nasty, passed=False, detail={"why": nasty}),
            EndRecord(at_ms=5, verdict="violated", reason=nasty),
        )
        marks = Marks.of(html)
        assert (marks.faults, marks.loads) == ([nasty], [])
        assert html.count("<script") == 2

    def test_an_empty_journal_makes_a_page_without_a_proof(self) -> None:
        html = page_of()
        assert Marks.of(html).faults == []
        assert "Not proven" in html
        assert "No fault was armed." in html

    def test_a_fault_that_never_fired_has_a_different_mark(self) -> None:
        html = page_of(BEGIN, news("a", "armed"), news("b", "fired"))
        assert re.search(r'class="fault missed" data-id="a"', html)
        assert re.search(r'class="fault fired" data-id="b"', html)

    def test_files_are_written_beside_the_journal(self, tmp_path: Path) -> None:
        journal = tmp_path / "journal.jsonl"
        journal.write_bytes(encode(quarter_of_an_hour()))
        paths = write(journal)
        assert json.loads(paths.json.read_bytes())["verdict"] == "held"
        assert paths.html.read_text().startswith("<!doctype html>")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "report.html", "report.json"]

    def test_without_a_journal_the_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no journal"):
            write(tmp_path / "journal.jsonl")


class TestInABrowser:
    """The tests above count the marks even without a browser."""

    def test_every_mark_is_drawn_on_a_phone(self, tmp_path: Path) -> None:
        records = quarter_of_an_hour()
        (tmp_path / "journal.jsonl").write_bytes(encode(records))
        html = write(tmp_path / "journal.jsonl").html
        ids = {str(record.id) for record in records if isinstance(record, FaultNews)}
        assert set(Marks.of(browsed(tmp_path, html, "--dump-dom").decode()).faults) == ids
        shot = tmp_path / "page.png"
        browsed(tmp_path, html, f"--screenshot={shot}")
        assert shot.stat().st_size > 20_000

    def test_pointing_at_a_moment_shows_the_values_of_that_moment(self, tmp_path: Path) -> None:
        records = [Sample(at_ms=at, state="running", rate=at / 10, epoch=7) for at in range(0, 100_001, 1_000)]
        pointing = """<script>
            const box = document.querySelector('.axis .plot').getBoundingClientRect();
            const at = {clientX: box.left + box.width * 0.498, bubbles: true};
            document.querySelector('.lanes').dispatchEvent(new PointerEvent('pointermove', at));
        </script></body>"""
        (tmp_path / "page.html").write_text(page_of(*records).replace("</body>", pointing))
        drawn = browsed(tmp_path, tmp_path / "page.html", "--dump-dom").decode()
        said = re.sub("<[^>]+>", " ", drawn[drawn.index('<p class="now">') :].partition("</p>")[0]).split()
        reported = "at 0:50 job running records/s 5,000 lag unknown epoch 7 checkpoint age unknown"
        assert " ".join(said) == reported


def browsed(folder: Path, html: Path, asked: str) -> bytes:
    """Open a page in a narrow window; skip the test where there is no browser."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"missing: a browser, none of {', '.join(BROWSERS)} is installed (Debian: apt install chromium)")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=390,900"]
    command = [browser, *flags, f"--user-data-dir={folder / 'profile'}", asked, html.as_uri()]
    return subprocess.run(command, capture_output=True, check=True).stdout


class TestLanes:
    def test_a_curve_has_a_gap_where_values_are_unknown(self) -> None:
        points = [(1.0, 5.0), (2.0, None), (3.0, 6.0), (4.0, 7.0), (40.0, 8.0)]
        assert page_lanes.pieces(points) == [[(1.0, 5.0)], [(3.0, 6.0), (4.0, 7.0)], [(40.0, 8.0)]]

    def test_thinning_keeps_every_spike(self) -> None:
        points = [(float(at), 1_000.0 if at == 7_777 else float(at % 3)) for at in range(10_000)]
        kept = page_lanes.thinned(points, 10_000.0, columns=100)
        assert len(kept) <= 200
        assert (7_777.0, 1_000.0) in kept
        assert kept == sorted(kept)

    def test_ticks_are_round_and_few(self) -> None:
        for minutes in (0.05, 1, 15, 60, 8 * 60):
            ticks = page_lanes.ticks(minutes * 60_000)
            assert 2 <= len(ticks) <= page_lanes.TICKS_MAX + 1
            assert ticks[0] == 0
        assert [page_lanes.clock(at) for at in (5_000, 760_000, 3_720_000)] == ["0:05", "12:40", "1:02:00"]

    def test_the_scale_is_round_and_holds_every_value(self) -> None:
        tops = [page_lanes.top_of([value]) for value in (0, 0.3, 7, 43_012, 99_999)]
        assert tops == [1.0, 1.0, 8.0, 50_000.0, 100_000.0]


class TestCommand:
    def test_the_report_shows_the_summary_and_fails_unless_everything_held(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "journal.jsonl").write_bytes(encode(quarter_of_an_hour()))
        assert main(["chaos", "report", str(tmp_path)]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("Held: ")
        assert f"page: {tmp_path / 'report.html'}" in err
        (tmp_path / "journal.jsonl").write_bytes(encode(quarter_of_an_hour(end=None)))
        assert main(["chaos", "report", str(tmp_path / "journal.jsonl"), "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["verdict"] == "not_proven"

    @pytest.mark.parametrize("data", [b"", b'{"x": 1}\n', encode(quarter_of_an_hour()[1:])])
    def test_a_file_without_the_start_of_a_journal_is_refused_and_no_page_is_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
    ) -> None:
        (tmp_path / "journal.jsonl").write_bytes(data)
        assert main(["chaos", "report", str(tmp_path)]) == 2
        reported = capsys.readouterr().err
        assert "is not the journal of a run" in reported and "Not done: no report was made." in reported
        assert [each.name for each in tmp_path.iterdir()] == ["journal.jsonl"]

    def test_the_report_says_that_it_replaced_an_older_page(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "journal.jsonl").write_bytes(encode(quarter_of_an_hour()))
        main(["chaos", "report", str(tmp_path)])
        assert "older" not in capsys.readouterr().err
        main(["chaos", "report", str(tmp_path)])
        assert "the older one was replaced" in capsys.readouterr().err
