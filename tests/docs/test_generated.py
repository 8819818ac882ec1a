"""The generated parts of the pages match the current code."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
from documents import ROOT

ADVICE = "run .venv/bin/python tools/docs.py, which writes these parts, and commit what it wrote"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_docs", ROOT / "tools/docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestGeneratedParts:
    def test_they_are_up_to_date(self, tool: ModuleType) -> None:
        stale = [str(path.relative_to(ROOT)) for path in tool.stale()]
        assert not stale, ADVICE

    def test_each_is_on_a_page(self, tool: ModuleType) -> None:
        pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
        assert sorted(re.findall(r"<!-- generated: (\w+) -->", pages)) == sorted(tool.PARTS)


class TestSite:
    @pytest.mark.thorough
    def test_the_site_builds_without_a_warning(self, tool: ModuleType) -> None:
        assert (ROOT / ".venv/docs/bin/zensical").exists(), (
            "the generator of the site is missing: make docs installs it"
        )
        assert tool.build() == 0
