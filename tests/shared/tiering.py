"""A pytest plugin that runs tests in tiers, and keeps the table of costs.

    --tiers rotate|all|quick   as `make test`, `make test ALL=1` and `make quick` do; without it every test runs
    --update-costs             writes what was measured to tests/costs.txt

The process that the user started asks git for the change once; every worker of xdist chooses by the same answer, so all
collect the same tests. It also gets the reports, and prints the summary.

I/O: tests/costs.txt; git, by `changes`.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from changes import ROOT, TURNS, Change, find_change
from cost_table import SESSION, CostTable, Measured, file_of
from cpu_clock import slowness
from measuring import SHARED_S, TEST_S
from tiers import LIMIT_S, choose, choose_files

ROTATE, ALL, QUICK = "rotate", "all", "quick"
COSTS = ROOT / "tests/costs.txt"
ALWAYS = ("tests/unit/test_tidy.py", "tests/docs/test_links.py")
"""Files about all files; `make quick` always has them."""
SERVERS = {"kafka", "redis", "postgres", "logical_postgres", "s3"}
"""Fixtures that start a server; `make quick` leaves out the tests that use them."""
_SAID_MAX = 10
_INPUT, _OUTPUT = "holdfast_change", "holdfast_tiers"


@dataclass(eq=False)  # pytest keeps plugins in dicts
class Tiering:
    """Chooses tests, and reports.

    Args:
        tiers: `rotate`, `all`, `quick`, or None: every test runs.
        update: Whether to rewrite the table.
        with_spark: Beginnings of the node ids of tests that share one worker and start first.
        limit_s: What a test may use that is not in the table.
    """

    tiers: str | None
    update: bool
    with_spark: tuple[str, ...]
    limit_s: float = LIMIT_S
    table: CostTable = field(default_factory=lambda: CostTable.parse(COSTS.read_text() if COSTS.exists() else ""))
    change: Change = Change()
    chosen: dict[str, Any] = field(default_factory=dict)
    """What the choice was, as JSON: workers send it to the process that prints the summary."""
    measured: list[Measured] = field(default_factory=list)
    _quick: set[str] = field(default_factory=set)
    _cut_short: set[str] = field(default_factory=set)
    """Tests that failed, and dear ones that were skipped: their cost is not what they cost."""

    # In every process

    def pytest_configure(self, config: pytest.Config) -> None:
        if self.tiers is None:
            return
        if told := getattr(config, "workerinput", {}).get(_INPUT):
            self.change = Change(told["turn"], told["base"], frozenset(told["files"]))
            self._quick = set(told["quick"])
            return
        self.change = find_change()
        if self.tiers == QUICK:
            files = sorted(_test_files(config.args) - set(ALWAYS))
            self._quick, missed = choose_files(files, self.table, self.change.touches)
            self.chosen["left out"] = sorted(missed)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if self.tiers != QUICK or collection_path.is_dir() or collection_path.suffix != ".py":
            return None
        name = str(collection_path.relative_to(ROOT))
        return None if name in self._quick or name in ALWAYS or collection_path.name == "conftest.py" else True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        before = Counter(file_of(item.nodeid) for item in items if item.get_closest_marker("slow") is None)
        collected = {item.nodeid for item in items}
        yield
        after = Counter(file_of(item.nodeid) for item in items)
        whole = {} if any("::" in each for each in config.args) else {f: n for f, n in after.items() if n == before[f]}
        gone = [test for test in self.table.dear if file_of(test) in whole and test not in collected]
        if self.tiers is not None:
            self._choose(config, items)
        left = Counter(file_of(item.nodeid) for item in items)
        self.chosen |= {"whole": {file: left[file] for file in whole}, "gone": gone}

    def _choose(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests that do not run now, and start with the dearest files: short ones fill gaps at the end."""
        choice = choose([item.nodeid for item in items], self.table, self.change.turn, self.change.touches)
        if self.tiers == QUICK:
            absent = {item.nodeid for item in items if _has_server(item)} | set(self.table.dear)
        else:
            absent = set(choice.not_now) if self.tiers == ROTATE else set()
            self.chosen |= {"rotating": sorted(choice.rotating), "touched": sorted(choice.touched)}
            self.chosen |= {"left out": sorted(choice.left_out), "resting": sorted(choice.resting)}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in absent])
        items[:] = [item for item in items if item.nodeid not in absent]
        expected: dict[str, float] = {}
        for test in (item.nodeid for item in items):
            before_s = expected.setdefault(file_of(test), self.table.rest.get(file_of(test), 0.0))
            expected[file_of(test)] = before_s + self.table.dear.get(test, 0.0)
        items.sort(key=lambda i: (not i.nodeid.startswith(self.with_spark), -expected[file_of(i.nodeid)]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self.tiers is None:
            return report
        if report.failed and item.nodeid in self.table.dear:
            report.sections.append(("it does not run each time; alone", alone(item.nodeid)))
        properties: dict[str, Any] = dict(report.user_properties)
        cpu_s = properties.get(TEST_S, 0.0)
        ends_well = report.when == "teardown" and report.passed
        allowed = not ends_well or item.nodeid in self.table.dear or cpu_s <= self.limit_s
        # A test is judged by its work: what a busy or slower machine adds is taken off.
        if not allowed and cpu_s > self.limit_s * max(1.0, slowness()):
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} used {cpu_s:.1f} s of CPU; a test that is not in tests/costs.txt may use "
                f"{self.limit_s:.0f} s. The test itself passed.\n"
                f"Make it cheaper, or list it, so that it runs in turn: make costs TESTS='{item.nodeid}'"
            )
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT] = self.chosen
        elif self.update:
            self._write()

    # In the process that the user started

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        change = {"turn": self.change.turn, "base": self.change.base, "files": sorted(self.change.files)}
        node.workerinput[_INPUT] = {**change, "quick": sorted(self._quick)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.chosen |= getattr(node, "workeroutput", {}).get(_OUTPUT, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found: dict[str, Any] = dict(report.user_properties)
        if not report.passed and not (report.skipped and report.nodeid not in self.table.dear):
            self._cut_short.add(report.nodeid)
        if report.when == "teardown" and TEST_S in found:
            shared: dict[str, float] = {}
            for name, cpu_s in found[SHARED_S]:
                shared[name] = shared.get(name, 0.0) + cpu_s
            self.measured.append(Measured(report.nodeid, found[TEST_S], shared))

    def _write(self) -> None:
        measured = [each for each in self.measured if each.test not in self._cut_short]
        had = Counter(file_of(each.test) for each in measured)
        whole = [file for file, count in self.chosen.get("whole", {}).items() if count == had[file]]
        known = {file for file in (*self.table.rest, *map(file_of, self.table.dear)) if not file.startswith(SESSION)}
        gone = [*self.chosen.get("gone", []), *(file for file in known if not (ROOT / file).exists())]
        COSTS.write_text(self.table.merged(measured, whole, gone).text())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.tiers is not None and self.measured:
            terminalreporter.section("CPU seconds")
            for line in self.summary():
                terminalreporter.write_line(line)

    def summary(self) -> list[str]:
        """Return lines about tiers, rotation and the dearest tests."""
        cpu_s = {each.test: each.cpu_s for each in self.measured}
        shared_s = sum(sum(each.shared.values()) for each in self.measured)
        dear = [test for test in cpu_s if test in self.table.dear]
        lines = [
            f"tier A, each time: {_sum(cpu_s, cpu_s.keys() - set(dear))}; shared fixtures: {shared_s:.0f} s",
            f"tier B: {_sum(cpu_s, dear)}, of {sum(self.table.dear.values()):.0f} s in {len(self.table.dear)} tests",
        ]
        lines += self._about_turn(cpu_s)
        dearest = sorted(cpu_s, key=lambda test: -cpu_s[test])[:_SAID_MAX]
        lines += ["the dearest:", *(f"{cpu_s[test]:7.1f}  {test}" for test in dearest)]
        other = [test for test in dear if not 0.4 <= cpu_s[test] / self.table.dear[test] <= 2.5]
        if other:
            lines.append("not as in tests/costs.txt; to measure again: make costs TESTS='...'")
            lines += [f"{cpu_s[test]:7.1f}  was {self.table.dear[test]:.1f}: {test}" for test in other[:_SAID_MAX]]
        return lines

    def _about_turn(self, cpu_s: dict[str, float]) -> list[str]:
        since = f"since {self.change.base[:12]}" if self.change.base else "of an unknown change (no history)"
        lines = []
        if self.tiers == ROTATE:
            for name, why in (
                ("rotating", f"turn {self.change.turn % TURNS} of {TURNS}"),
                ("touched", f"touched {since}"),
            ):
                tests = self.chosen.get(name, [])
                files = Counter(map(file_of, tests))
                where = ", ".join(f"{file.removeprefix('tests/')} {count}" for file, count in sorted(files.items()))
                lines += _wrapped(f"{why}: {_sum(cpu_s, tests)}{where and ': '}{where}")
        missed = self.chosen.get("left out", [])
        if missed and self.tiers != ALL:
            names = "; ".join(missed[:_SAID_MAX]) + ("; ..." if len(missed) > _SAID_MAX else "")
            said = (
                f"touched {since}, but left out, as time is limited ({len(missed)}; make test ALL=1 has them): {names}"
            )
            lines += _wrapped(said)
        return lines


def alone(test: str) -> str:
    """Return the command that runs a test."""
    return f".venv/bin/python -m pytest '{test}'"


def _sum(cpu_s: dict[str, float], tests: Iterable[str]) -> str:
    found = [cpu_s[test] for test in tests if test in cpu_s]
    return f"{sum(found):.0f} s in {len(found)} tests"


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(line, 120, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)


def _has_server(item: pytest.Item) -> bool:
    return not SERVERS.isdisjoint(getattr(item, "fixturenames", ()))


def _test_files(arguments: Iterable[str]) -> set[str]:
    paths = (path for each in arguments for path in Path(each).resolve().rglob("test_*.py"))
    return {str(path.relative_to(ROOT)) for path in paths}
