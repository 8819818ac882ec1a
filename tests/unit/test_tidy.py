"""Rules of the house that no linter knows: sizes, names, docstrings, and that the package leaves nothing out.

A rule here is a sentence in docs/style.md or docs/glossary.md; a failure names file, line and remedy.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("chaos", "checkpoint", "examples", "runtime", "sinks", "state")
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60

INSTEAD_OF = {
    "Manager": "say what it decides or holds (master, coordinator, table)",
    "Helper": "name the function after its result",
    "Util": "name the module after its subject",
    "Utils": "name the module after its subject",
    "Base": "a Protocol in ports.py, or a plain function",
}
UNFINISHED = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b")
RULE = re.compile(r"\bP([1-9][0-9]?)\b")
CODE_FROM_DATA = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
# What a pure folder may hold besides decisions; everything else in it is in the contract "The protocol is pure".
DOES_IO = {"checkpoint": {"repository"}, "state": {"directory", "rocks"}}
MUST_BE_PURE = {
    "runtime": {"plan", "master", "worker", "watermark", "windows", "joins"},
    "sinks": {"contract", "delivery", "tags"},
}
PROTOCOL = {
    "runtime": {"master", "worker", "watermark", "windows", "joins"},
    "sinks": {"contract", "delivery", "tags"},
    "state": {"delta", "keygroups", "keys"},
}
GLOSSARY = (
    "job",
    "app",
    "driver",
    "job master",
    "worker",
    "standby",
    "fragment",
    "subtask",
    "channel",
    "barrier",
    "Spark barrier stage",
    "epoch",
    "checkpoint",
    "savepoint",
    "snapshot",
    "base",
    "changelog",
    "segment",
    "delta",
    "job log",
    "manifest",
    "generation",
    "timeline",
    "key group",
    "watermark",
    "allowed lateness",
    "idleness",
    "late output",
    "DLQ",
    "stage",
    "deliver",
    "tag",
    "writer",
    "freeze",
    "commit",
    "rollback",
    "merge forward",
    "resident table",
    "rewind",
    "fork",
    "microbatch",
    "fence",
    "zombie",
)


def modules(*folders: str) -> list[Path]:
    """Every Python file of the project below these folders; links are not followed twice."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted({path for path in found if "__pycache__" not in path.parts})


OURS = modules(*FOLDERS, "src/holdfast", "tools")
ALL = [*OURS, *modules("tests")]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a module: six rules look through all modules."""
    return tuple(ast.walk(tree(path)))


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    """Keep no trees for the tests of other modules: every collection of garbage would look through them."""
    yield
    tree.cache_clear()
    nodes.cache_clear()


def at(path: Path, line: int, remedy: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {remedy}"


def none(found: list[str]) -> None:
    """Fail with every line of it, not only the first few."""
    assert not found, "\n" + "\n".join(found)


def definitions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def configuration() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pure_modules() -> set[str]:
    contracts = configuration()["tool"]["importlinter"]["contracts"]
    [pure] = [contract for contract in contracts if contract["name"] == "The protocol is pure"]
    return set(pure["source_modules"])


def name_of(path: Path) -> str:
    """Return the name under which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" else ("holdfast", *parts))


def _is_protocol(path: Path) -> bool:
    folder = path.relative_to(ROOT).parts[0]
    return folder == "checkpoint" or path.stem in PROTOCOL.get(folder, set())


class TestSize:
    def test_a_module_is_read_in_one_sitting(self) -> None:
        long = [(path, len(path.read_text().splitlines())) for path in OURS]
        none([at(p, n, f"over {MODULE_LINES_MAX} lines, split it") for p, n in long if n > MODULE_LINES_MAX])

    def test_a_function_fits_on_a_screen(self) -> None:
        none(
            [
                at(path, node.lineno, f"{node.name} is over {FUNCTION_LINES_MAX} lines, move work into the leaves")
                for path in OURS
                for node in definitions(path)
                if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
            ]
        )


class TestWords:
    def test_a_class_name_says_what_it_is(self) -> None:
        none(
            [
                at(path, node.lineno, f"{node.name}: not {word}; {INSTEAD_OF[word]}")
                for path in ALL
                for node in nodes(path)
                if isinstance(node, ast.ClassDef)
                for word in re.findall(r"[A-Z][a-z]*", node.name)
                if word in INSTEAD_OF
            ]
        )

    def test_nothing_is_left_for_later(self) -> None:
        this = Path(__file__).resolve()
        none(
            [
                at(path, number, "finish it, or refuse it at plan time")
                for path in ALL
                if path.resolve() != this
                for number, line in enumerate(path.read_text().splitlines(), 1)
                if UNFINISHED.search(line)
            ]
        )

    def test_the_glossary_defines_the_words_of_the_project(self) -> None:
        text = (ROOT / "docs/glossary.md").read_text()
        defined = {
            word.strip() for line in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) for word in re.split(",|/", line)
        }
        none([word for word in GLOSSARY if word not in defined])


class TestDocstrings:
    @pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
    def test_a_module_says_why_it_exists(self, path: Path) -> None:
        empty_package = path.name == "__init__.py" and not path.read_text().strip()
        test_file = "tests" in path.parts
        assert empty_package or test_file or ast.get_docstring(tree(path))

    def test_a_protocol_module_names_its_source_or_its_rule(self) -> None:
        protocol = [path for path in OURS if name_of(path) in pure_modules() and _is_protocol(path)]
        cites = re.compile(r"\bP[1-9][0-9]?\b|Source: ")
        silent = [path for path in protocol if not cites.search(ast.get_docstring(tree(path)) or "")]
        none([at(path, 1, "cite PROTOCOL P.. or a Source: in the docstring") for path in silent])

    def test_every_cited_rule_is_in_the_protocol(self) -> None:
        known = set(re.findall(r"^- P([0-9]+) ", (ROOT / "docs/protocol.md").read_text(), re.MULTILINE))
        none(
            [
                at(path, 1, f"there is no rule P{number}")
                for path in OURS
                for number in RULE.findall(ast.get_docstring(tree(path)) or "")
                if number not in known
            ]
        )


class TestSafety:
    def test_no_data_is_ever_run_as_code(self) -> None:
        places = [(path, line) for path in OURS for line in sorted(_runs_data(tree(path)))]
        none([at(path, line, "Arrow or msgspec, never code from data") for path, line in places])

    def test_types_are_learnt_before_there_are_threads(self) -> None:
        # Two threads that let msgspec learn a type at once end the process.
        none(
            [
                at(path, node.lineno, "make a Decoder where the module is loaded")
                for path in OURS
                for node in nodes(path)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode"
                if any(keyword.arg == "type" for keyword in node.keywords)
            ]
        )

    def test_no_error_is_swallowed_whole(self) -> None:
        none(
            [
                at(path, node.lineno, "name the exception, or say in the handler what is done with it")
                for path in OURS
                for node in nodes(path)
                if isinstance(node, ast.ExceptHandler)
                and (
                    node.type is None
                    or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException"))
                )
                and all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)
            ]
        )


def _runs_data(module: ast.Module) -> set[int]:
    """Lines that import a format which can carry code, or run text."""
    lines = set()
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names) if any(name.name.split(".")[0] in CODE_FROM_DATA for name in names):
                lines.add(node.lineno)
            case ast.ImportFrom(module=str(name)) if name.split(".")[0] in CODE_FROM_DATA:
                lines.add(node.lineno)
            case ast.Call(func=ast.Name(id="eval" | "exec")):
                lines.add(node.lineno)
    return lines


class TestPackaging:
    def test_every_package_folder_is_in_the_wheel(self) -> None:
        folders = {path.parent for path in modules(*FOLDERS)}
        ours = {f"holdfast.{'.'.join(folder.relative_to(ROOT).parts)}" for folder in folders}
        ours |= {
            ".".join(path.parent.relative_to(ROOT / "src").parts) for path in modules("src/holdfast") if _is_real(path)
        }
        assert sorted(configuration()["tool"]["setuptools"]["packages"]) == sorted(ours)

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_every_root_folder_is_linked_into_the_package(self, folder: str) -> None:
        link = ROOT / "src/holdfast" / folder
        assert link.is_symlink()
        assert str(link.readlink()) == f"../../{folder}"
        assert (ROOT / folder / "__init__.py").exists()


def _is_real(path: Path) -> bool:
    return path.resolve() == path


class TestPurity:
    def test_a_module_that_calls_itself_pure_is_held_to_it(self) -> None:
        says_so = [path for path in OURS if re.search(r"^Pure\b", ast.get_docstring(tree(path)) or "", re.MULTILINE)]
        none(sorted({name_of(path) for path in says_so} - pure_modules()))

    def test_every_module_that_must_be_pure_is_held_to_it(self) -> None:
        expected = {
            f"holdfast.{folder}.{path.stem}"
            for folder in ("checkpoint", "runtime", "sinks", "state")
            for path in (ROOT / folder).glob("*.py")
            if path.stem != "__init__" and _must_be_pure(folder, path.stem)
        }
        none(sorted(expected - pure_modules()))


def _must_be_pure(folder: str, module: str) -> bool:
    if folder in DOES_IO:
        return module not in DOES_IO[folder]
    return module in MUST_BE_PURE[folder]
