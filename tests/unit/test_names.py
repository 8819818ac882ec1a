"""Names say what a thing is: rules for local variables, classes and tests, as docs/style.md has them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("chaos", "checkpoint", "runtime", "sinks", "state", "storage")
LINES_MAX = 3
"""Over more lines than these a reader no longer sees where a local variable comes from."""
PARTICIPLES = {
    *("begun", "built", "chosen", "cut", "done", "drawn", "driven", "fed", "found"),
    *("given", "gone", "heard", "held", "hidden", "kept", "known", "led", "lost"),
    *("made", "meant", "met", "overtaken", "paid", "put", "read", "said", "seen"),
    *("sent", "shown", "sold", "sought", "spent", "struck", "stuck", "taken", "thrown"),
    *("told", "torn", "understood", "woken", "written"),
}
NOUNS = {
    *("bleed", "breed", "deed", "embed", "feed", "need", "seed", "speed", "testbed"),
    *("weed"),
}
Scope = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> list[Path]:
    package = ROOT / "src/holdfast"
    files = [*package.glob("*.py"), *(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))]
    return sorted(files)


def is_participle(name: str) -> bool:
    return name in PARTICIPLES or (re.fullmatch("[a-z]+ed", name) is not None and name not in NOUNS)


def nodes_of(scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes in it."""
    waiting: list[ast.AST] = [*scope.body]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Scope | ast.ClassDef | ast.Lambda):
            yield node
            waiting.extend(ast.iter_child_nodes(node))


def bare_participles(scope: Scope) -> Iterator[tuple[str, int]]:
    """Yield each local variable that is named by a bare participle and lives long, with its first line."""
    lines: dict[str, list[int]] = defaultdict(list)
    for node in ast.walk(scope):
        if isinstance(node, ast.Name):
            lines[node.id].append(node.lineno)
    arguments = {argument.arg for argument in ast.walk(scope.args) if isinstance(argument, ast.arg)}
    assigned = {node.id for node in nodes_of(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for name in sorted(assigned - arguments):
        if is_participle(name) and max(lines[name]) - min(lines[name]) > LINES_MAX:
            yield name, min(lines[name])


class TestLocals:
    def test_a_local_variable_is_named_by_what_it_holds(self) -> None:
        bare = [
            f"{path.relative_to(ROOT)}:{line}: {name}: say what it is, as a noun"
            for path in modules()
            for scope in ast.walk(ast.parse(path.read_text()))
            if isinstance(scope, Scope)
            for name, line in bare_participles(scope)
        ]
        assert not bare, "\n" + "\n".join(bare)

    @pytest.mark.parametrize(
        ("code", "names"),
        [
            ("def f():\n found = 1\n\n\n\n return found", ["found"]),
            ("def f():\n found = 1\n return found", []),
            ("def f(found):\n found = 1\n\n\n\n return found", []),
            ("def f():\n rows = 1\n\n\n\n return rows", []),
            ("def f():\n for opened in ():\n\n\n\n  opened()", ["opened"]),
            ("def f():\n seed = 1\n\n\n\n return seed", []),
            ("def f():\n with x as kept:\n\n\n\n  return kept", ["kept"]),
        ],
    )
    def test_a_participle_over_more_than_three_lines_is_seen(self, code: str, names: list[str]) -> None:
        (scope,) = ast.parse(code).body
        assert isinstance(scope, Scope)
        assert [name for name, _ in bare_participles(scope)] == names


PUBLIC = {"Context"}
"""A keyed function's and a check's, each documented under the module from which users import it."""


class TestClasses:
    def test_no_two_modules_define_a_class_of_the_same_name(self) -> None:
        places: dict[str, list[str]] = defaultdict(list)
        for path in modules():
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
        shared = [
            f"{name}: {', '.join(found)}"
            for name, found in sorted(places.items())
            if len(found) > 1 and name not in PUBLIC
        ]
        assert not shared, "\nname each by its subject:\n" + "\n".join(shared)


class TestNamesOfTests:
    def test_a_test_is_named_by_a_sentence_with_its_subject(self) -> None:
        bare = [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
            for path in sorted((ROOT / "tests").rglob("*.py"))
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, Scope) and node.name.startswith(("test_of_", "test_that_"))
        ]
        assert not bare, "\nbegin with the subject:\n" + "\n".join(bare)
