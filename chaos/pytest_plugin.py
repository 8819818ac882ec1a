"""The pytest plugin behind `chaos_case`: a seed per test, the outcome as a fixture, the command to repeat a failure.

pytest loads this in every environment with Holdfast installed, also for suites that never use it, and before coverage
measurement starts. So it holds only the hooks and imports nothing; chaos/cases/cases.py does the work.

    @chaos_case("job.py", driver="test", rows={"bids": ROWS}, seeds=20)
    def test_totals_survive(outcome):
        assert outcome.held
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MARKER = "chaos_case"
ABOUT = f"{MARKER}(case): runs a job under faults and hands the test its outcome (holdfast.testing.chaos_case)"
OPTION = "--chaos-seed"
SAID: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --chaos-seed."""
    group = parser.getgroup("holdfast")
    group.addoption(
        OPTION, type=int, action="append", metavar="S", help="play only this seed in every chaos_case; may be repeated"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", ABOUT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test per seed."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None:
        return
    if "outcome" not in metafunc.fixturenames:
        pytest.fail(f"{metafunc.definition.name} has @chaos_case but no argument `outcome`", pytrace=False)
    seeds = metafunc.config.getoption(OPTION) or list(marker.args[0].seeds)
    metafunc.parametrize("outcome", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


@pytest.fixture
def outcome(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The outcome of a chaos_case's job."""
    marker = request.node.get_closest_marker(MARKER)
    if marker is None:
        pytest.fail("the fixture `outcome` is made by @chaos_case, which this test does not have", pytrace=False)
    from holdfast.chaos.cases import cases  # loads the runtime, in suites that use it

    seed = request.param
    # A node's own id starts at pytest's root, which may differ from the folder in which pytest was started.
    file = os.path.relpath(request.node.path, request.config.invocation_params.dir)
    test = request.node.nodeid.partition("::")[2].partition("[")[0]
    again = f"pytest '{file}::{test}' {OPTION} {seed}"
    request.node.stash[SAID] = [f"again: {again}"]
    found = cases.play(marker.args[0], seed, Path(request.node.path).parent, tmp_path / "chaos", again)
    request.node.stash[SAID] = found.lines()
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the faults, and the command to repeat the test, below a failure."""
    report = yield
    said = item.stash.get(SAID, None)
    if report.failed and said is not None:
        report.sections.append(("chaos", "\n".join(said)))
    return report
