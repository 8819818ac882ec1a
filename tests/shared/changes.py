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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
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

    def touches(self, test_file: str) -> bool:
        """Return whether a test file, or a file that it imports or names, is changed."""
        return not self.files.isdisjoint((test_file, *depends_on(test_file)))


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
def depends_on(test_file: str, root: Path = ROOT) -> frozenset[str]:
    """Return the files of the repository that a test file imports, or names as a file of Python or of the guide."""
    path = root / test_file
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError):
        return frozenset()
    names = [*_modules(tree), *_named_files(tree)]
    return frozenset(found for name in names for found in _files(name, root))


def _modules(tree: ast.AST) -> Iterator[str]:
    """Yield paths of all modules that may be meant, without their ends."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.replace(".", "/") for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            path = node.module.replace(".", "/")
            yield from (path, *(f"{path}/{each.name}" for each in node.names))


def _named_files(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".py"):
            yield node.value.removesuffix(".py")


def _files(name: str, root: Path) -> Iterator[str]:
    """Yield the files of a module: in a room of the package, or beside tests."""
    within = name.removeprefix("holdfast/")
    places: Iterable[str] = (within, f"src/{name}") if within != name else (name, *_beside(name, root))
    for place in places:
        for file in (f"{place}.py", f"{place}/__init__.py"):
            if (root / file).is_file():
                yield file


@cache
def _test_modules(root: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in (root / "tests").rglob("*.py"):
        found.setdefault(path.stem, []).append(str(path.relative_to(root)).removesuffix(".py"))
    return found


def _beside(name: str, root: Path) -> list[str]:
    return _test_modules(root).get(name.rpartition("/")[2], [])
