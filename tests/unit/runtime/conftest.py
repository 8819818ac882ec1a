"""Modules with `IN_BOTH_MODES = True` play every test of theirs in microbatch mode too, with a Spark that breaks.

A test that is about workers, or about records that are late within an epoch, is marked `continuous`.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime.config.settings import CONTINUOUS, MICROBATCH
from holdfast.runtime.testing.driver import TestDriver


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if getattr(metafunc.module, "IN_BOTH_MODES", False):
        only_one = metafunc.definition.get_closest_marker("continuous") is not None
        modes = [CONTINUOUS] if only_one else [CONTINUOUS, MICROBATCH]
        metafunc.fixturenames.append("mode")
        metafunc.parametrize("mode", modes, indirect=True)


@pytest.fixture
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every TestDriver of the test runs in this mode."""
    wanted: str = request.param
    begin = TestDriver.__init__

    def in_mode(self: TestDriver, *args: Any, **named: Any) -> None:
        begin(self, *args, **{"mode": wanted, **named})
        if self.cluster.batches is not None:
            faults = self.cluster.batches.jobs.faults
            faults.losses, faults.twice, faults.fails = 0.05, 0.05, 0.02

    monkeypatch.setattr(TestDriver, "__init__", in_mode)
    return wanted
