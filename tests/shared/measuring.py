"""A pytest plugin that measures the CPU seconds of every test, with all processes that the test starts.

A test has its set-up, its call and its tear-down. Fixtures that several tests share are measured apart, as what the
first test pays depends on the order. Under xdist every worker measures its own tests, and reports carry the results.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from cpu_clock import CpuClock

TEST_S, SHARED_S = "CPU seconds", "CPU seconds of shared fixtures"
"""Properties of a test's last report; the second one holds pairs of fixture and seconds."""


@dataclass(eq=False)  # pytest keeps plugins in dicts
class Measuring:
    """Measures in the process that runs tests."""

    clock: CpuClock = field(default_factory=CpuClock)
    _start_s: float = 0.0
    _inner_s: float = 0.0
    """Seconds, since the start of the innermost running part, of parts that were measured apart."""
    _shared: list[tuple[str, float]] = field(default_factory=list)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._start_s, self._inner_s, self._shared = self.clock.seconds(), 0.0, []
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        start_s, outer_s, self._inner_s = self.clock.seconds(), self._inner_s, 0.0
        try:
            return (yield)
        finally:
            took_s = self.clock.seconds() - start_s
            where = "session" if fixturedef.scope == "session" else fixturedef.baseid.partition("::")[0]
            self._shared.append((f"{where} {fixturedef.argname}", took_s - self._inner_s))
            self._inner_s = outer_s + took_s

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report: pytest.TestReport = yield
        if call.when == "teardown":
            took_s = self.clock.seconds() - self._start_s - self._inner_s
            report.user_properties += [(TEST_S, took_s), (SHARED_S, self._shared)]
        return report

    def pytest_unconfigure(self) -> None:
        self.clock.close()
