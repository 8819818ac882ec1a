"""The wheel works with every Python that it accepts: installed with its dependencies, a new project tested and run.

Installs with pip from the configured index, in the versions of requirements.lock. A Python is searched on the PATH,
with pyenv and with uv; one that this machine lacks is skipped by name.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from wheels import ROOT, built_wheel

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1_800)]

PYTHONS = ("3.11", "3.12", "3.13")
WITH_VENV = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


def candidates(version: str) -> Iterator[str]:
    """Return programs that may be this version of Python."""
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))
    if uv := shutil.which("uv"):
        asked = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False)
        yield from asked.stdout.split()


def python_of(version: str) -> str:
    """Return a Python of this version that can make a virtual environment; skip the test if there is none."""
    for program in candidates(version):
        answer = subprocess.run([program, "-c", WITH_VENV], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return program
    pytest.skip(f"Python {version} with venv is missing: not on the PATH, and neither pyenv nor uv has it")


def done(folder: Path, *command: str | Path, **environment: str) -> str:
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3_000:] + ended.stderr[-3_000:]
    return ended.stdout


@pytest.mark.parametrize("version", PYTHONS)
def test_a_new_project_passes_its_test_and_runs(version: str, wheel: Path, tmp_path: Path) -> None:
    done(tmp_path, python_of(version), "-m", "venv", "venv")
    programs = tmp_path / "venv/bin"
    pins = re.findall(r"^(\S+==\S+) \\$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (tmp_path / "pins.txt").write_text("\n".join(pins))
    install = (programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", "pins.txt")
    done(tmp_path, *install, f"{wheel}[metrics]", "pytest")

    assert done(tmp_path, programs / "holdfast", "--version").split()[0] == "holdfast"
    done(tmp_path, programs / "holdfast", "new", "sales")
    project = tmp_path / "sales"
    assert "2 passed" in done(project, programs / "python", "-m", "pytest", "-q")
    done(project, programs / "holdfast", "run", "job.py", "--once", "--master", "local[2]", TMPDIR=str(tmp_path))
    with closing(sqlite3.connect(project / "sales.db")) as database:
        assert database.execute("SELECT count(*) FROM hours").fetchone() == (12,)
    assert "# EOF" in done(project, programs / "holdfast", "status", "sales", "--format", "openmetrics")
