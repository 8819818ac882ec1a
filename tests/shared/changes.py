"""What a change touches, and which turn of the rotation it is: by git and by the imports of test files.

The base of a change is the newest commit that it shares with its upstream branch. Where there is no other branch, or
nothing is ahead of it, as in a fresh clone of `main`, the base is six commits back by first parents: in that many,
every dear test has its turn, and commits that were pushed together are seldom more.

I/O: git, test files. Without git or its history nothing is touched, and the turn is the first one.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TURNS = 6
"""A dear test has its turn in every so many commits."""
VARIABLE = "HOLDFAST_TESTS_BASE"
"""May name the base."""


@dataclass(frozen=True)
class Change:
    """A change.

    Args:
        turn: Number of commits by first parents; the rotation takes it modulo `TURNS`.
        base: The commit from which on files count as changed; empty: none is known.
        files: Those that differ from the base, or are new, relative to the repository.
    """

    turn: int = 0
    base: str = ""
    files: frozenset[str] = frozenset()

    def touches(self, test_file: str, root: Path = ROOT) -> bool:
        """Return whether a test file is changed, or a module that it imports, or a script that it names."""
        return test_file in self.files or not self._names.isdisjoint(names_in(test_file, root))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for file in self.files if file.endswith(".py") for name in _names_of(file))


def find_change(root: Path = ROOT) -> Change:
    """Ask git for the change of a checkout."""
    head = _git(root, "rev-list", "--first-parent", "--count", "HEAD")
    if not head:
        return Change()
    turn = int(head[0])
    base = _base(root, turn)
    files = {*_git(root, "diff", "--name-only", base), *_git(root, "ls-files", "--others", "--exclude-standard")}
    return Change(turn, base, frozenset(files))


def _base(root: Path, turn: int) -> str:
    named = os.environ.get(VARIABLE)
    shared = [named] if named else _git(root, "merge-base", "HEAD", "@{upstream}")
    tip = _git(root, "rev-parse", "HEAD")
    if shared and shared != tip:
        return shared[0]
    return _git(root, "rev-parse", "HEAD" if turn == 1 else f"HEAD~{min(TURNS, turn - 1)}")[0]


def _git(root: Path, *arguments: str) -> list[str]:
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


@cache
def names_in(test_file: str, root: Path = ROOT) -> frozenset[str]:
    """Return the modules that a test file imports, and the names of Python files in its texts."""
    try:
        tree = ast.parse((root / test_file).read_text())
    except (OSError, SyntaxError):
        return frozenset()
    return frozenset(name for node in ast.walk(tree) for name in _names_at(node))


def _names_at(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (node.module, *(f"{node.module}.{each.name}" for each in node.names))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".py"):
        yield node.value.rpartition("/")[2]


def _names_of(file: str) -> Iterator[str]:
    """Yield the names by which tests know a file: of a room, of the package, or of a module that tests share."""
    path = file.removesuffix(".py").removesuffix("/__init__")
    if path.startswith("tests/"):
        name = path.rpartition("/")[2]
        yield from () if name == "conftest" else (name, f"{name}.py")
    else:
        room = path.removeprefix("src/holdfast").removeprefix("/")  # rooms are links there
        yield ".".join(("holdfast", *room.split("/"))) if room else "holdfast"
