"""The fixture `bench`, and the option that chooses the size."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import Bench


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bench", choices=("smoke", "full"), default="smoke", help="size of the benchmarks")


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A benchmark that must report; the line is printed with -s."""
    full = request.config.getoption("--bench", "smoke") == "full"
    bench = Bench(request.node.name, full)
    yield bench
    assert bench.line is not None, "a benchmark reports what it did"
    if full:
        print("\n" + "\n    ".join([bench.line, *bench.notes]))
