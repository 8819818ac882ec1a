"""Where compiled kernels are kept, and what happens to files that cannot be trusted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import holdfast
from holdfast.state.compiled import cache

SOURCE = Path(holdfast.__file__).resolve().parent
PACKAGES = (
    "__init__.py",
    "caches.py",
    "errors.py",
    "model.py",
    "ports.py",
    "frozen.py",
    "arguments.py",
    "traits.py",
    "connectors.py",
)
ROOMS = ("state", "storage")
USE = """
import json, sys, numpy as np
import numba
from holdfast.state.compiled import cache, jit

compiled = []
saved = cache.KernelCache.save_overload

def save(self, signature, result):
    compiled.append(self._name)
    saved(self, signature, result)

cache.KernelCache.save_overload = save
from holdfast.state.tables.kernels import {module}
print(json.dumps([len(compiled), str(cache.cache_folder())]))
"""
OTHER = """
from holdfast.state.compiled.jit import kernel

@kernel("number", "number")
def same(number):
    return number
"""
SLOTS = USE.replace("{module}", "slots")
TABLE = """
import numpy as np, pyarrow as pa
from holdfast.state.keys.batch import KeyType
from holdfast.state.tables.table import StateTable, TableSpec
key = KeyType(("k",), (pa.int64(),))
print(StateTable(TableSpec(1, "t", key, ()), 1).slots(key.from_ints(np.array([5, 6, 5]))).tolist())
"""


def installed(folder: Path) -> Path:
    """Copy the packages that kernels need, without compiled files; return the folder for sys.path."""
    package = folder / "holdfast"
    package.mkdir(parents=True)
    for name in PACKAGES:
        shutil.copy(SOURCE / name, package / name)
    for room in ROOMS:
        shutil.copytree(SOURCE / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run(code: str, path: Path, home: Path, **more: str) -> subprocess.Popen[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"HOME": str(home), "TMPDIR": str(home / "tmp"), **more}
    (home / "tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out.strip()


def kernels_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kernel"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation whose kernels of slots are compiled."""
    folder = tmp_path_factory.mktemp("installed")
    path = installed(folder / "lib")
    (folder / "home").mkdir()
    ended(run(SLOTS, path, folder / "home"))
    return folder


class TestTheCache:
    def test_is_beside_the_modules_and_saves_a_second_compilation(self, tree: Path) -> None:
        beside = tree / "lib/holdfast/state/compiled/__pycache__"
        assert len(kernels_in(beside)) >= 10
        assert ended(run(SLOTS, tree / "lib", tree / "home")) == f'[0, "{beside}"]'

    def test_a_damaged_file_is_compiled_again_and_replaced(self, tree: Path) -> None:
        beside = tree / "lib/holdfast/state/compiled/__pycache__"
        one, two, three = kernels_in(beside)[:3]
        good = [file.read_bytes() for file in (one, two, three)]
        one.write_bytes(good[0][:100])
        two.write_bytes(good[1][:-50] + b"x" * 50)
        three.write_bytes(b"")
        assert ended(run(SLOTS, tree / "lib", tree / "home")).startswith("[3,")
        assert ended(run(SLOTS, tree / "lib", tree / "home")).startswith("[0,")

    def test_a_change_of_any_kernel_module_compiles_all_again(self, tree: Path, tmp_path: Path) -> None:
        shutil.copytree(tree / "lib", tmp_path / "lib")
        with (tmp_path / "lib/holdfast/state/compiled/memory.py").open("a") as file:
            file.write("# changed\n")
        assert not ended(run(SLOTS, tmp_path / "lib", tree / "home")).startswith("[0,")

    def test_a_change_beside_a_kernel_of_another_package_compiles_its_kernels_again(
        self, tree: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(tree / "lib", tmp_path / "lib")
        other = tmp_path / "lib/holdfast/other"
        other.mkdir()
        (other / "__init__.py").write_text("")
        (other / "parts.py").write_text("")
        (other / "kernels.py").write_text(OTHER)
        both = f"{SLOTS}from holdfast.other import kernels\nprint(len(compiled))"
        assert ended(run(both, tmp_path / "lib", tree / "home")).endswith("\n1")
        assert ended(run(both, tmp_path / "lib", tree / "home")).endswith("\n0")
        (other / "parts.py").write_text("# changed\n")
        assert ended(run(both, tmp_path / "lib", tree / "home")).endswith("\n1")

    def test_two_processes_may_compile_at_once(self, tmp_path: Path) -> None:
        path = installed(tmp_path / "lib")
        both = [run(SLOTS, path, tmp_path) for _ in range(2)]
        assert all(not ended(process).startswith("[0,") for process in both)
        assert ended(run(SLOTS, path, tmp_path)).startswith("[0,")
        beside = tmp_path / "lib/holdfast/state/compiled/__pycache__"
        assert [file.name for file in beside.iterdir() if file.suffix != ".kernel"] == []


class TestAnInstallationThatCannotBeWritten:
    def test_in_a_zip_uses_a_folder_of_the_user(self, tmp_path: Path) -> None:
        path = installed(tmp_path / "lib")
        with zipfile.ZipFile(tmp_path / "code.zip", "w") as packed:
            for file in path.rglob("*.py"):
                packed.write(file, file.relative_to(path))
        first = ended(run(SLOTS, tmp_path / "code.zip", tmp_path))
        own = tmp_path / ".cache/holdfast-kernels"
        assert not first.startswith("[0,") and first.endswith(f'"{own}"]')
        assert (own.stat().st_mode & 0o777, own.stat().st_uid) == (0o700, os.geteuid())
        assert ended(run(SLOTS, tmp_path / "code.zip", tmp_path)) == f'[0, "{own}"]'

    @pytest.fixture
    def read_only(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """As if the modules' folder could not be written, which the superuser always can."""
        monkeypatch.setattr(cache, "_writable", lambda folder: False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        cache.cache_folder.cache_clear()
        return tmp_path

    @pytest.fixture(autouse=True)
    def forgotten(self) -> object:
        yield
        cache.cache_folder.cache_clear()

    def test_uses_a_folder_of_the_user(self, read_only: Path) -> None:
        assert cache.cache_folder() == read_only / "cache/holdfast-kernels"

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
    def test_never_uses_a_folder_that_others_can_enter(self, read_only: Path, mode: int) -> None:
        (read_only / "cache/holdfast-kernels").mkdir(parents=True)
        (read_only / "cache/holdfast-kernels").chmod(mode)
        assert cache.cache_folder() == read_only / f"holdfast-kernels-{os.geteuid()}"

    def test_never_follows_a_link_to_a_folder(self, read_only: Path) -> None:
        (read_only / "elsewhere").mkdir(mode=0o700)
        (read_only / "cache").mkdir()
        (read_only / "cache/holdfast-kernels").symlink_to(read_only / "elsewhere")
        assert cache.cache_folder() == read_only / f"holdfast-kernels-{os.geteuid()}"

    def test_without_any_safe_folder_compiles_in_memory(self, read_only: Path) -> None:
        (read_only / "cache").write_text("a file")
        (read_only / f"holdfast-kernels-{os.geteuid()}").write_text("a file")
        assert cache.cache_folder() is None


def test_a_table_opened_in_a_process_without_cache_works(tmp_path: Path) -> None:
    path = installed(tmp_path / "lib")
    shutil.rmtree(path / "holdfast/state/compiled/__pycache__", ignore_errors=True)
    (path / "holdfast/state/compiled/__pycache__").write_text("a file")
    (tmp_path / ".cache").write_text("a file")
    (tmp_path / "no").write_text("a file")
    assert ended(run(TABLE, path, tmp_path, XDG_CACHE_HOME=str(tmp_path / "no"), TMPDIR=str(tmp_path))) == "[0, 1, 0]"
