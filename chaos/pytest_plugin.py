"""The pytest plugin behind `chaos_case`: a seed per test, the outcome as a fixture, the way to see a failure again.

pytest loads this in every run of an environment that Holdfast is installed in, also for suites that never use it, and
before anything measures coverage. So it holds the hooks and imports nothing; what they do is in chaos/cases.py.

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
    """Make the marker known."""
    config.addinivalue_line("markers", ABOUT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of every seed."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None:
        return
    if "outcome" not in metafunc.fixturenames:
        pytest.fail(f"{metafunc.definition.name} has @chaos_case and no argument `outcome`", pytrace=False)
    seeds = metafunc.config.getoption(OPTION) or list(marker.args[0].seeds)
    metafunc.parametrize("outcome", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


@pytest.fixture
def outcome(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """What came of the job of a chaos_case."""
    marker = request.node.get_closest_marker(MARKER)
    if marker is None:
        pytest.fail("the fixture `outcome` is made by @chaos_case, which this test does not have", pytrace=False)
    from holdfast.chaos import cases  # loads the runtime, in suites that use it

    seed = request.param
    # A node's own id begins at pytest's root, which need not be where it was started and will be again.
    file = os.path.relpath(request.node.path, request.config.invocation_params.dir)
    test = request.node.nodeid.partition("::")[2].partition("[")[0]
    again = f"pytest '{file}::{test}' {OPTION} {seed}"
    request.node.stash[SAID] = [f"again: {again}"]
    found = cases.play(marker.args[0], seed, Path(request.node.path).parent, tmp_path / "chaos", again)
    request.node.stash[SAID] = found.lines()
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say below a failure what the faults were and how to see it again."""
    report = yield
    said = item.stash.get(SAID, None)
    if report.failed and said is not None:
        report.sections.append(("chaos", "\n".join(said)))
    return report
