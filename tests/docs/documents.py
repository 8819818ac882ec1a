"""Extracts the examples from the pages of the documentation as blocks that can be run.

A page is Markdown. Fenced blocks in `python` and `sh` are run, in the order of the page, in one folder and one Python
namespace per page:

    ```python               is executed; every function test_* that it defines is called
    ```python title="f.py"  is written to the file f.py; the apps in it are planned, nothing is run
    ```sh                   is run by bash -e; `holdfast`, `python` and `pytest` are those of this environment

`make quick` runs the Python of every page and parses its commands; `make test` runs the commands too. Blocks in other
languages are only shown. An HTML comment above a block changes how it is treated:

    <!-- e2e -->                starts Spark, or needs what Spark has left: runs with the end-to-end tests
    <!-- exits 3 -->            the exit status that the commands end with
    <!-- output -->             a `text` block: the stdout of the preceding block; `...` matches anything
    <!-- not run: reason -->    is not run; its `holdfast` commands are still parsed
    <!-- new session -->        begins with an empty folder and an empty namespace
    <!-- continues page.md -->  the session begins with the files and the quick commands of another page
    <!-- needs kafka, postgres -->  the session's commands find these servers; see servers.py
    <!-- background -->         another terminal: the commands go on while later blocks run, and end by the page's end
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = ("python", "sh")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`]*)$")
_TITLE = re.compile(r'title="([^"]+)"')
_MARK = re.compile(
    r"^<!-- (e2e|output|background|new session|exits \d+|continues \S+|needs \w+(?:, \w+)*|not run: .+?) -->$"
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page, with the marks from the comments above it."""

    page: Path
    line: int
    """The number of the first line of its text."""
    language: str
    title: str | None
    text: str
    marks: frozenset[str]

    @property
    def e2e(self) -> bool:
        """Whether it needs Spark."""
        return "e2e" in self.marks

    @property
    def not_run(self) -> str | None:
        """Why it is only shown; None if it is run."""
        return next((mark.removeprefix("not run: ") for mark in self.marks if mark.startswith("not run: ")), None)

    @property
    def exits(self) -> int:
        """The exit status that its commands end with."""
        return next((int(mark.split()[1]) for mark in self.marks if mark.startswith("exits ")), 0)

    @property
    def background(self) -> bool:
        """Whether its commands go on while later blocks run."""
        return "background" in self.marks

    @property
    def needs(self) -> frozenset[str]:
        """The servers that its commands find."""
        named = [mark.removeprefix("needs ") for mark in self.marks if mark.startswith("needs ")]
        return frozenset(name for each in named for name in each.split(", "))

    @property
    def continues(self) -> Path | None:
        """The page whose files and quick commands come before."""
        named = next((mark.removeprefix("continues ") for mark in self.marks if mark.startswith("continues ")), None)
        return None if named is None else (self.page.parent / named).resolve()

    @property
    def runs(self) -> bool:
        """Whether the tests execute it."""
        return self.language in RUN and self.not_run is None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every page that users read: README, CHANGELOG and docs/, without the decisions in docs/decisions/."""
    docs = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "decisions" not in path.parts]
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *docs]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return list(_blocks(page, page.read_text().splitlines()))


def sessions(page: Path) -> list[list[Block]]:
    """Return the blocks of a page that share a folder and a namespace."""
    found: list[list[Block]] = [[]]
    for block in blocks(page):
        if "new session" in block.marks:
            found.append([])
        found[-1].append(block)
    return [session for session in found if any(block.runs for block in session)]


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that are in no fenced block, with their numbers."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def _blocks(page: Path, lines: Sequence[str]) -> Iterator[Block]:
    marks: set[str] = set()
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        if mark := _MARK.match(line.strip()):
            marks.add(mark[1])
        elif fence := _FENCE.match(line):
            end = next(n for n in range(at, len(lines)) if lines[n].strip() == "```")
            indent, (language, _, rest) = len(fence["indent"]), fence["info"].partition(" ")
            title = _TITLE.search(rest)
            text = "\n".join(each[indent:] for each in lines[at:end]) + "\n"
            yield Block(page, at + 1, language, title and title[1], text, frozenset(marks))
            at, marks = end + 1, set()
        elif line.strip():
            marks = set()
