"""What all tests share."""

import pytest
from hypothesis import settings

# A machine that others use too may be slow at any moment: what a test case takes says nothing about the code.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one of several processes run all that starts Spark, one test after the other; other files stay whole."""
    for item in items:
        group = "spark" if item.get_closest_marker("e2e") else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
