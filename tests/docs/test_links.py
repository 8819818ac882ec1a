"""Every link of the documentation leads somewhere, and every command it names exists."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from documents import ROOT, blocks, pages, prose

from holdfast.errors import ConfigError
from holdfast.runtime.cli.arguments import Parser
from holdfast.runtime.cli.main import COMMANDS, module_of

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`(holdfast [^`]+)`")
MODULE = re.compile(r"`([a-z_]+(?:/[a-z_]+)+)/?`")
ABOVE = [ROOT, ROOT / "runtime", ROOT / "chaos"]
EVERY = [*pages(), *sorted((ROOT / "docs/decisions").glob("*.md"))]


def links(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in prose(page):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            yield number, target


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page: its headings, and the names that the reference takes from the code."""
    found = set()
    for _, line in prose(page):
        if heading := re.match(r"#+ (.*)", line):
            text = re.sub(r"[^\w\- ]", "", heading[1].strip().lower())
            found |= {text.replace(" ", "-"), re.sub(r"[-\s]+", "-", text)}
        elif name := re.match(r"::: (\S+)", line):
            found.add(name[1])
    return frozenset(found)


def is_room(name: str) -> bool:
    return any((above / name).is_dir() for above in ABOVE)


def found(name: str) -> bool:
    return any((above / name).exists() or (above / f"{name}.py").exists() for above in ABOVE)


class TestLinks:
    @pytest.mark.parametrize("page", EVERY, ids=lambda page: str(page.relative_to(ROOT)))
    def test_each_has_a_target(self, page: Path) -> None:
        dead = []
        for line, target in links(page):
            path, _, anchor = target.partition("#")
            if "://" in path:
                continue
            to = (page.parent / path).resolve() if path else page
            if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
                dead.append(f"{page.relative_to(ROOT)}:{line}: {target}")
        assert not dead, "\n".join(dead)

    @pytest.mark.parametrize(
        "page", [page for page in pages() if page.parent.name != "reference"], ids=lambda page: page.stem
    )
    def test_each_module_that_a_page_names_exists(self, page: Path) -> None:
        """Names such as `driver/repair`, in backticks, of which the first part is a room."""
        named = {name for _, line in prose(page) for name in MODULE.findall(line) if is_room(name.split("/")[0])}
        assert not sorted(name for name in named if not found(name))

    def test_the_first_page_has_only_links_that_work_on_a_package_index(self) -> None:
        relative = [target for _, target in links(ROOT / "README.md") if "://" not in target and target[0] != "#"]
        assert not relative

    def test_every_page_is_in_the_navigation_once(self) -> None:
        site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
        listed = sorted(_paths(site["nav"]))
        docs = ROOT / "docs"
        decisions = {path.relative_to(docs).as_posix() for path in (docs / "decisions").glob("[0-9]*.md")}
        written = {"changelog.md"}  # by tools/docs.py, when it builds the site
        pages_here = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
        assert listed == sorted(pages_here - decisions | written)

    def test_the_first_page_is_short(self) -> None:
        assert len((ROOT / "README.md").read_text().splitlines()) < 100


def _paths(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for each in nav.values():
            yield from _paths(each)
    elif isinstance(nav, list):
        for each in nav:
            yield from _paths(each)


COMMAND = re.compile(r"""(?:^|[|;&(] ?)(holdfast (?:[^|;&)<>'"]|'[^']*'|"[^"]*")+)""")
"""A call up to a pipe or a redirection; quoted arguments may hold any sign."""


def shown_commands() -> Iterator[tuple[str, str]]:
    """Yield every command line of a block in `sh` or `text` that calls holdfast, with its place."""
    for page in pages():
        for block in blocks(page):
            if block.language in ("sh", "text"):
                for line in block.text.replace("\\\n", " ").splitlines():
                    for command in COMMAND.findall(line.split(" #")[0].strip()):
                        if block.language == "sh" or page.name == "commands.md":
                            yield f"{block}", command.strip()


@cache
def parser() -> Parser:
    top = Parser(prog="holdfast")
    top.add_argument("--version", action="store_true")
    subparsers = top.add_subparsers(dest="command")
    for command in COMMANDS:
        module_of(command).add_parser(subparsers)
    return top


class TestCommands:
    def test_each_command_shown_is_accepted_by_the_command_line(self) -> None:
        refused = []
        for place, command in shown_commands():
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    parser().parse_args(shlex.split(command)[1:])
            except ConfigError as error:
                refused.append(f"{place}: {command}: {error.what}")
            except SystemExit:
                pass  # --help
        assert not refused, "\n".join(refused)

    def test_each_command_named_in_a_sentence_exists(self) -> None:
        unknown = []
        for page in pages():
            for line, text in prose(page):
                for command in SPAN.findall(text):
                    if not _exists(command.split()[1:]):
                        unknown.append(f"{page.relative_to(ROOT)}:{line}: {command}")
        assert not unknown, "\n".join(unknown)

    def test_each_command_is_shown_on_an_operation_page(self) -> None:
        text = "".join(page.read_text() for page in pages() if page.parent.name == "operate")
        assert not [command for command in COMMANDS if not re.search(rf"\bholdfast {command}\b", text)]


def _exists(words: list[str]) -> bool:
    """Return whether a command of this name has these actions and flags."""
    level: object = parser()
    for word in words:
        if not isinstance(level, Parser):
            return False
        if word.startswith("--"):
            name = word.split("=")[0].strip("[]").split("|")[0]
            if name not in level._option_string_actions:
                return False
            continue
        groups = level._subparsers._group_actions if level._subparsers else []
        if groups and re.fullmatch(r"[a-z-]+", word):
            choices = groups[0].choices or {}
            if word not in choices:
                return False
            level = choices[word]  # type: ignore[index]
    return True
