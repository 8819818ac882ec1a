"""Rules of the house that no linter knows: sizes, names, docstrings, and that the package leaves nothing out.

A rule here is a sentence in docs/style.md or docs/glossary.md; a failure names file, line and remedy.
"""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("chaos", "checkpoint", "examples", "runtime", "sinks", "state", "storage")
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
CODE_ON_PURPOSE = {
    ROOT / "state/compiled/cache.py": "machine code is code in any format; from folders that only this user can write",
    ROOT / "runtime/processes/zygote.py": "the job's code, from the driver to processes that it forks",
    ROOT / "runtime/cli/start/jobfile.py": "names the modules that are part of the job's code",
}
"""Modules that handle code as data, each with the reason why that is safe."""
# Rooms that decide: none of their modules may be listed as one that acts.
DECIDE = (
    *("checkpoint", "sinks.sql", "state.keys", "state.tables"),
    *(f"runtime.{room}" for room in ("api", "rows", "config", "plan", "operators", "driver", "audit")),
    *(f"chaos.{room}" for room in ("mutants", "sim.checks", "sim.ports")),
)
PROTOCOL = {
    *("runtime.driver.master", "runtime.worker.protocol", "runtime.time.watermark", "runtime.time.windows"),
    *("sinks.contract.sink", "sinks.protocol.delivery", "sinks.sql.tags"),
    *("state.tables.delta", "state.keys.keygroups", "state.keys.batch"),
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
    "replay",
    "microbatch",
    "fence",
    "zombie",
)


def modules(*folders: str) -> list[Path]:
    """Every Python file of the project below these folders; links are not followed twice."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted({path for path in found if "__pycache__" not in path.parts})


TRANSLATED = re.compile(
    r"\b(stands? at|stays? so|by itself|(?:is|are) gone|[Tt]ells?(?!:)|anew|for good|at hand|[Nn]obody|[Ww]hoever|"
    r"[Ww]hat is no|not known whether|"
    r"[Tt]ak(?:e|es|ing) (?:it|them|\w+|(?:an?|the|its|their) \w+) for (?:it|an?|another|that|those|complete|rows))\b|"
    r"(, nor)\b"
)
"""Words that read as translated."""
OPENING = re.compile(r"(?:^|[.!?:] +|^[ ]*(?:[-|*] +)?)(Of|What) (?![^.]*\?)", re.MULTILINE)
"""The first word of a sentence that does not begin with its subject; questions may."""
POINTS = re.compile(r"See (\w+\.)*[A-Z]\w*\.\w+\.?")
"""A docstring that only names what a method implements."""
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
    """Keep no trees for the tests of other modules: every collection of garbage would look through them.

    Here there is none to collect: to look for it takes longer than to parse all modules.
    """
    gc.disable()
    yield
    gc.enable()
    tree.cache_clear()
    nodes.cache_clear()


def at(path: Path, line: int, remedy: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {remedy}"


def none(found: list[str]) -> None:
    """Fail with every line of it, not only the first few."""
    assert not found, "\n" + "\n".join(found)


def messages() -> Iterator[tuple[Path, int, str]]:
    """Every text in the code that is no docstring: file, line, text."""
    for path in OURS:
        bare = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
                yield path, node.lineno, node.value


def docstrings() -> Iterator[tuple[Path, int, str]]:
    """Every docstring of a module, class, function or attribute: file, line, text."""
    for path in OURS:
        for node in nodes(path):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield path, node.lineno, text


def lines_of_pages() -> Iterator[tuple[Path, int, str]]:
    """Every line of the pages that users read."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts and path.stem != "style"]
    for path in [ROOT / "README.md", *sorted(pages)]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield path, number, line


def definitions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@cache
def configuration() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@cache
def acting() -> dict[str, set[str]]:
    """Return which modules may import what acts, as the contract lists them: name or pattern -> what."""
    contracts = configuration()["tool"]["importlinter"]["contracts"]
    [purity] = [contract for contract in contracts if contract["name"] == "Purity is the rule, I/O the exception"]
    found: dict[str, set[str]] = {}
    for line in purity["ignore_imports"]:
        module, what = line.split(" -> ")
        found.setdefault(module, set()).update(purity["forbidden_modules"] if what == "*" else {what})
    return found


def matches(pattern: str, module: str) -> bool:
    """Return whether a line of the contract is about a module; `room.*` is about the modules of a room, not deeper."""
    return module == pattern or (pattern.endswith(".*") and module.rpartition(".")[0] == pattern[:-2])


def acts(module: str) -> bool:
    return any(matches(pattern, module) for pattern in acting())


def imported(path: Path) -> set[str]:
    """Return the outermost packages that a module imports."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names.update(name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def name_of(path: Path) -> str:
    """Return the name under which a module is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" else ("holdfast", *parts))


def _is_protocol(name: str) -> bool:
    return name.startswith("holdfast.checkpoint.") or name.removeprefix("holdfast.") in PROTOCOL


class TestSize:
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
    def test_a_class_name_is_specific(self) -> None:
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

    def test_there_are_no_todo_marks(self) -> None:
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

    def test_messages_pages_and_docstrings_are_in_plain_words(self) -> None:
        """As docs/style.md has it: name the actor, and use the verbs of the trade."""
        none(
            [
                at(path, line, f"{word!r}: see the table of words in docs/style.md")
                for path, line, text in (*messages(), *lines_of_pages(), *docstrings())
                for word in (*(found[1] or found[2] for found in TRANSLATED.finditer(text)), *OPENING.findall(text))
            ]
        )


class TestDocstrings:
    def test_a_method_that_implements_a_contract_says_nothing_or_more(self) -> None:
        """Its class derives from the contract, whose docstring readers and tools find."""
        rooms = ("sinks", "runtime/sources")
        none(
            [
                at(path, node.lineno, f"{node.name}: derive the class from the contract, and leave the docstring out")
                for path in OURS
                for each in nodes(path)
                if isinstance(each, ast.ClassDef) and path.relative_to(ROOT).as_posix().startswith(rooms)
                for node in each.body
                if isinstance(node, ast.FunctionDef) and POINTS.fullmatch(ast.get_docstring(node) or "")
            ]
        )

    @pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(ROOT)))
    def test_a_module_has_a_docstring(self, path: Path) -> None:
        empty_package = path.name == "__init__.py" and not path.read_text().strip()
        test_file = "tests" in path.parts
        assert empty_package or test_file or ast.get_docstring(tree(path))

    def test_a_protocol_module_names_its_source_or_its_rule(self) -> None:
        protocol = [path for path in OURS if _is_protocol(name_of(path)) and path.name != "__init__.py"]
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
        places = [
            (path, line) for path in OURS if path not in CODE_ON_PURPOSE for line in sorted(_runs_data(tree(path)))
        ]
        none([at(path, line, "Arrow or msgspec, never code from data") for path, line in places])

    def test_decoders_are_created_when_a_module_is_loaded(self) -> None:
        # Two threads in which msgspec prepares a type simultaneously crash the process.
        none(
            [
                at(path, node.lineno, "make a Decoder where the module is loaded")
                for path in OURS
                for node in nodes(path)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode"
                if any(keyword.arg == "type" for keyword in node.keywords)
            ]
        )

    def test_no_handler_swallows_every_error(self) -> None:
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
    def test_every_folder_with_modules_is_a_package(self) -> None:
        # setuptools finds packages by their __init__.py; a folder without one would not be in the wheel.
        folders = {path.parent for path in modules(*FOLDERS)}
        none([at(folder, 1, "add an __init__.py") for folder in folders if not (folder / "__init__.py").exists()])

    def test_every_package_has_a_docstring(self) -> None:
        packages = [path for path in modules(*FOLDERS) if path.name == "__init__.py"]
        none(
            [
                at(path, 1, "say what lives here and what may not")
                for path in packages
                if not ast.get_docstring(tree(path))
            ]
        )

    @pytest.mark.parametrize("folder", FOLDERS)
    def test_every_root_folder_is_linked_into_the_package(self, folder: str) -> None:
        link = ROOT / "src/holdfast" / folder
        assert link.is_symlink()
        assert str(link.readlink()) == f"../../{folder}"
        assert (ROOT / folder / "__init__.py").exists()


class TestPurity:
    def test_a_module_documented_as_pure_performs_no_io(self) -> None:
        says_so = [path for path in OURS if re.search(r"^Pure\b", ast.get_docstring(tree(path)) or "", re.MULTILINE)]
        free = [pattern for pattern, what in acting().items() if len(what) > 1]  # else one name is taken from a module
        found = [path for path in says_so if any(matches(pattern, name_of(path)) for pattern in free)]
        none([at(path, 1, "it is listed as a module that acts") for path in found])

    def test_no_module_of_a_deciding_package_acts(self) -> None:
        none([at(path, 1, "move what acts to another room") for path in OURS if _decides(path) and acts(name_of(path))])

    def test_every_module_that_is_listed_as_acting_acts(self) -> None:
        used = {
            pattern
            for path in OURS
            for pattern, what in acting().items()
            if matches(pattern, name_of(path)) and what & imported(path)
        }
        none(
            [f"pyproject.toml: {pattern} acts no longer, remove its line" for pattern in sorted(acting().keys() - used)]
        )

    def test_the_modules_that_must_cite_their_rule_exist(self) -> None:
        none(sorted(PROTOCOL - {name_of(path).removeprefix("holdfast.") for path in OURS}))


def _decides(path: Path) -> bool:
    return any(name_of(path).startswith(f"holdfast.{room}.") for room in DECIDE)
