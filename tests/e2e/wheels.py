"""Builds the wheel of this tree, as a user would install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("chaos", "checkpoint", "examples", "runtime", "sinks", "state", "storage")
NO_INDEX = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]


def built_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the tracked files in the tree, which leaves the tree as it is."""
    copy, out = folder / "copy", folder / "out"
    copy.mkdir()
    kept = [*FOLDERS, "src", "pyproject.toml", "README.md", "LICENSE"]
    subprocess.run(["cp", "--archive", *kept, str(copy)], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "pip", "wheel", *NO_INDEX, "--wheel-dir", str(out), str(copy)]
    subprocess.run(command, check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built
