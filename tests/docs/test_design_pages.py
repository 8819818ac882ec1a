"""The design as built is short, drawn and found; each decision says whether it still holds.

A page of docs/design describes the code as it is, for people who read it for the first time. A page of docs/decisions
stays as it was decided, but for its status.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from documents import ROOT

DESIGN, DECISIONS = ROOT / "docs/design", ROOT / "docs/decisions"
AS_BUILT = sorted(path for path in DESIGN.glob("*.md") if path.stem != "index")
DECIDED = sorted(path for path in DECISIONS.glob("[0-9]*.md") if not path.name.startswith("0000"))
WORDS_MAX = 1_200
PHONE_PX, READABLE_PX = 400, 9
SVG = "{http://www.w3.org/2000/svg}"
LINK = r"\[[^\]]+\]\(([^)]+\.md)\)"
STATUS = re.compile(
    r"Status: (?:proposed|accepted"
    rf"|accepted, in part superseded by (?P<partly>{LINK}): [^.]+"
    rf"|superseded by (?P<by>{LINK})|replaced by (?P<page>{LINK}))\.(?: |$)"
)


def picture_of(page: Path) -> Path:
    """Return the drawing of a page."""
    found = re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", page.read_text())
    assert found, f"{page.name} has no drawing, with a text that says what it shows"
    return page.parent / str(found[0])


@pytest.mark.parametrize("page", AS_BUILT, ids=lambda page: str(page.stem))
class TestAsBuilt:
    def test_a_page_is_read_in_ten_minutes(self, page: Path) -> None:
        assert len(page.read_text().split()) <= WORDS_MAX

    def test_a_page_has_a_drawing_that_a_phone_shows(self, page: Path) -> None:
        drawing = ET.parse(picture_of(page)).getroot()  # our own file
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        sizes = [float(text.attrib["font-size"]) for text in drawing.iter(f"{SVG}text")]
        assert sizes and min(sizes) * PHONE_PX / width >= READABLE_PX
        ground = next(drawing.iter(f"{SVG}rect")).attrib
        covers = (float(ground["width"]), float(ground["height"]), ground["fill"])
        assert covers == (width, height, "#fff"), "without a ground of its own it cannot be read in the dark"

    def test_a_page_is_linked_from_the_map_and_from_the_index(self, page: Path) -> None:
        assert f"](design/{page.name})" in (ROOT / "docs/architecture.md").read_text()
        assert f"]({page.name})" in (DESIGN / "index.md").read_text()

    def test_a_page_says_what_holds_what_fails_and_where_to_start(self, page: Path) -> None:
        headings = re.findall(r"^## (.+)", page.read_text(), re.MULTILINE)
        wanted = ["The problem", "Parts", "Flow", "Invariants", "Faults considered", "Rejected"]
        assert headings == [*wanted, "Where to start reading"]

    def test_what_was_rejected_links_the_decision(self, page: Path) -> None:
        rejected = page.read_text().partition("## Rejected\n")[2].partition("\n## ")[0]
        entries = re.findall(r"^- .*(?:\n  .*)*", rejected, re.MULTILINE)
        assert entries and not [each for each in entries if "](../decisions/" not in each]


class TestDecisions:
    @pytest.mark.parametrize("page", DECIDED, ids=lambda page: str(page.stem))
    def test_each_has_a_status_behind_its_title(self, page: Path) -> None:
        title, _, line = page.read_text().splitlines()[:3]
        assert title.startswith(f"# {page.name[:4]}")
        status = STATUS.match(line)
        assert status is not None, f"{line!r}: see 0000-template.md"
        for target in filter(None, status.groups()[1::2]):
            assert (page.parent / target).exists(), target
            assert target != page.name

    def test_what_replaces_a_decision_is_a_later_one_or_a_page_as_built(self) -> None:
        for page in DECIDED:
            status = STATUS.match(page.read_text().splitlines()[2])
            assert status is not None
            for _, target in _targets(status):
                later = DECISIONS.joinpath(target).parent == DECISIONS and target > page.name
                assert later or DECISIONS.joinpath(target).resolve() in AS_BUILT, f"{page.name}: {target}"

    def test_search_does_not_find_them(self) -> None:
        assert (DECISIONS / ".meta.yml").read_text() == "search:\n  exclude: true\n"
        assert not (DESIGN / ".meta.yml").exists()

    def test_none_is_in_their_former_folder(self) -> None:
        assert not list(DESIGN.glob("[0-9]*.md")), "decisions are written in docs/decisions"

    def test_no_reference_to_their_former_folder_is_left(self) -> None:
        former = re.compile(r"(?<!\w)design/\d{4}")
        kept = [ROOT / "CHANGELOG.md", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        folders = ("chaos", "checkpoint", "runtime", "sinks", "src", "state", "storage", "tests", "tools")
        kept += [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
        assert not [str(path.relative_to(ROOT)) for path in kept if former.search(path.read_text())]


def _targets(status: re.Match[str]) -> list[tuple[str, str]]:
    return [(kind, re.findall(LINK, text)[0]) for kind, text in status.groupdict().items() if text is not None]
