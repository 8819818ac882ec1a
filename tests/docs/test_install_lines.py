"""Pages and messages name the packages of extras, in lines that work wherever Holdfast was installed from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.extras import install, packages

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *(each for each in DOCS if each.parent.name != "decisions")]
LINE = re.compile(r"pip install ((?:'[^'\n]+' ?)+)")
FOLDERS = ("chaos", "checkpoint", "runtime", "sinks", "src", "storage")


def lines_of(text: str) -> list[list[str]]:
    """Return the packages of each line that installs some, without those of a checkout or a wheel."""
    found = [re.findall(r"'([^']+)'", each) for each in LINE.findall(text)]
    return [each for each in found if not each[0].startswith("/")]


class TestPages:
    @pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
    def test_name_the_packages_of_whole_extras(self, page: Path) -> None:
        extras = [set(each) for each in packages().values()]
        for line in lines_of(page.read_text()):
            whole = set().union(*(each for each in extras if each <= set(line)))
            assert whole == set(line), f"{page.name}: {line}"

    def test_name_each_extra_for_users(self) -> None:
        named = {each for line in lines_of((ROOT / "docs/install.md").read_text()) for each in line}
        assert named == {each for name, of in packages().items() if name not in ("dev", "docs") for each in of}


class TestMessages:
    def test_name_no_package_that_is_on_no_index(self) -> None:
        modules = [each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")]
        wrong = [each.name for each in modules if "pip install" in (text := each.read_text()) and "'holdfast[" in text]
        assert wrong == [], "they say what to install by holdfast.extras.install"

    def test_install_messages_for_an_unknown_installation_name_the_extra(self) -> None:
        assert install("kafka", of="a-package-that-is-missing") == "pip install 'a-package-that-is-missing[kafka]'"

    def test_put_the_least_version_first(self) -> None:
        assert install("delta", "kafka", "delta") == "pip install 'deltalake>=1.6,<2' 'confluent-kafka>=2.6,<3'"
