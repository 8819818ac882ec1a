"""What all tests share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

# A machine that others use too may be slow at any moment: what a test case takes says nothing about the code.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")

WITH_SPARK = ("tests/bench/", "tests/e2e/", "tests/soak/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one of several processes run all that starts Spark, one test after the other; other files stay whole."""
    from xdist.scheduler import LoadScopeScheduling

    class OneSpark(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::")[0]
            return "spark" if path.startswith(WITH_SPARK) else path

    return OneSpark(config, log)
