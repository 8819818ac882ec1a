"""A reader of the documentation: runs the examples of a page in order, in an empty folder.

documents.py describes how a page marks its blocks.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import pyspark
import pytest
from documents import ROOT, Block, blocks, pages, sessions
from patience import WALL_S, wait_for_end
from pyspark import cloudpickle
from spark_jvm import end_jvm

import holdfast as hf

"""A page may start Spark several times in one block, on a machine that others use too."""
Session = list[Block]
Level = Literal["quick", "commands", "e2e"]
"""Python only; commands that need no Spark as well; everything."""


FIRST_READ = (
    "README",
    "docs/quickstart",
    "docs/first-job",
    "docs/kafka-to-postgres",
    "docs/deploy/spark",
    "docs/guide/spark",
    "docs/operate/index",
    "docs/operate/rewind",
)
"""Pages whose examples on Spark `make test` runs, up to a minute each; those of other pages are run by `make soak`."""
_ON_SPARK = re.compile(
    r"^holdfast run (?!.*--local)|\bspark-submit\b|\bSparkSession\b|app\.run\((?!.*local=True)", re.MULTILINE
)


def named(level: Level) -> list[Any]:
    """Return the sessions of all pages that have something for this level, with names for pytest."""
    found = []
    for page in pages():
        for number, session in enumerate(sessions(page), 1):
            name = f"{page.relative_to(ROOT).with_suffix('')}{f'-{number}' if number > 1 else ''}"
            kinds = {"e2e" if block.e2e else block.language for block in session if block.runs}
            if (
                level == "quick"
                and "python" in kinds
                or level == "e2e"
                and "e2e" in kinds
                or (level == "commands" and "sh" in kinds and "e2e" not in kinds)
            ):
                marks = []
                if level == "e2e":
                    first = str(page.relative_to(ROOT).with_suffix("")) in FIRST_READ
                    marks = [pytest.mark.kafka] if "kafka" in needs(session) else []
                    marks += [] if first or not _ON_SPARK.search(_code_of(session)) else [pytest.mark.slow]
                found.append(pytest.param(session, id=name, marks=marks))
    return found


def _code_of(session: Session) -> str:
    """Return all that the reader of a session does, what comes from the page that it continues included."""
    parts = [block for block in session if block.runs]
    before = [each for block in parts if block.continues for each in blocks(block.continues) if not each.e2e]
    return "\n".join(block.text for block in (*before, *parts))


def needs(session: Session) -> frozenset[str]:
    """Return the servers that the commands of a session find."""
    return frozenset().union(*(block.needs for block in session))


@contextlib.contextmanager
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """A reader in an empty folder, whose programs are those of this environment."""
    folder, programs = tmp_path / "folder", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    python = shlex.quote(sys.executable)
    for name, command in {
        "holdfast": f"{python} -m holdfast.runtime.cli.main",
        "python": python,
        "pytest": f"{python} -m pytest -p no:cacheprovider",
        "spark-submit": shlex.quote(str(Path(pyspark.__file__).parent / "bin/spark-submit")),
    }.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("HOLDFAST_ROOT", raising=False)
    before = set(sys.modules)
    yield Reader(folder, programs)
    end_jvm()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


class Reader:
    """Runs the examples of a page in order.

    Args:
        folder: Where it works.
        programs: A folder on its PATH.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs = folder, programs
        self.module = types.ModuleType("page")
        self.printed: str | None = None
        self._terminals: list[Shell] = []

    def follows(self, session: Session, level: Level) -> None:
        """Run the blocks of a page that belong to a level."""
        sys.modules["page"] = self.module
        with contextlib.ExitStack() as stack:
            stack.callback(sys.modules.pop, "page", None)
            cloudpickle.register_pickle_by_value(self.module)  # type: ignore[no-untyped-call]  # like a notebook's cells
            stack.callback(cloudpickle.unregister_pickle_by_value, self.module)
            stack.callback(self._closes_terminals)
            for block in session:
                for before in blocks(block.continues) if block.continues else ():
                    if not before.e2e and not (before.title or "").startswith("test_") and "pytest" not in before.text:
                        self._does(before)
                if level == "e2e" or not block.e2e and (level == "commands" or block.language != "sh"):
                    self._does(block)
            self._awaits_terminals()
        _plan(vars(self.module))
        _prepare(vars(self.module))

    def _does(self, block: Block) -> None:
        if block.language == "text" and "output" in block.marks:
            assert self.printed is not None, f"{block}: no command before it printed anything"
            assert _agree(block.text, self.printed), f"{block}: it is not what was printed:\n{self.printed}"
        elif not block.runs:
            return
        elif block.title is not None:
            self._writes(block.title, block)
        elif block.language == "python":
            self._executes(block)
        else:
            self._types(block)

    def _writes(self, title: str, block: Block) -> None:
        path = self.folder / title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        if not path.name.startswith("test_"):
            _plan(runpy.run_path(str(path)))

    def _executes(self, block: Block) -> None:
        padded = "\n" * (block.line - 1) + block.text
        exec(compile(padded, str(block.page), "exec"), vars(self.module))  # noqa: S102
        defined = [node.name for node in ast.parse(block.text).body if isinstance(node, ast.FunctionDef)]
        for name in defined:
            if name.startswith("test_"):
                vars(self.module)[name]()

    def _types(self, block: Block) -> None:
        shell = Shell(block, self.folder)
        if block.background:
            self._terminals.append(shell)
            return
        with contextlib.closing(shell):
            try:
                shell.ends()
            except (AssertionError, subprocess.TimeoutExpired) as error:
                for other in self._terminals:
                    error.add_note(f"the terminal of {other.block} shows:\n{other.shown()}")
                raise
            self.printed = shell.printed()

    def _awaits_terminals(self) -> None:
        for shell in self._terminals:
            shell.ends()

    def _closes_terminals(self) -> None:
        for shell in self._terminals:
            shell.close()


class Shell:
    """A shell that runs the commands of a block. Nothing that they started outlives `close`."""

    def __init__(self, block: Block, folder: Path) -> None:
        self.block = block
        self._out, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._errors,
            start_new_session=True,
        )

    def ends(self) -> None:
        """Wait until the commands have ended, as the page says that they do."""
        status = wait_for_end(self._process, f"the end of {self.block}")
        assert status == self.block.exits, f"{self.block}: exit status {status}\n{self.shown()}"

    def close(self) -> None:
        """End what is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WALL_S)
        self._out.close()
        self._errors.close()

    def printed(self) -> str:
        """Return what was written to stdout."""
        return _text(self._out)

    def shown(self) -> str:
        """Return what a terminal shows."""
        return self.printed() + _text(self._errors)


def _text(file: IO[bytes]) -> str:
    """Return what was written so far; what writes to the file shares its position, which must not change."""
    descriptor = file.fileno()
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode()


def _plan(names: Mapping[str, Any]) -> None:
    """Plan every app among these names: raises the error that a user would see."""
    for app in [value for value in names.values() if isinstance(value, hf.App)]:
        app.plan()


def _prepare(names: Mapping[str, Any]) -> None:
    """Create or check the target of every sink that needs this folder alone, as a start does."""
    for app in [value for value in names.values() if isinstance(value, hf.App)]:
        for spec in app.plan().sinks:
            paths = [Path(path) for path in spec.sink.traits.local_paths]
            if (
                paths
                and spec.sink.traits.kind != "Http"
                and all(path.resolve().is_relative_to(Path.cwd()) for path in paths)
            ):
                spec.sink.prepare(spec.schema, spec.upsert_key)


def _agree(shown: str, printed: str) -> bool:
    """Return whether a page shows the printed text; `...` matches anything, runs of blanks count as one."""
    pattern = "".join(
        ".*" if part == "..." else r"\s+" if part.isspace() else re.escape(part)
        for part in re.split(r"(\.\.\.|\s+)", shown.strip())
    )
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
