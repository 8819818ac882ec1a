"""Which commit a run reports."""

from __future__ import annotations

import subprocess
from pathlib import Path

from holdfast.chaos.live.checkout import commit

IDENTITY = ("-c", "user.name=n", "-c", "user.email=e@example.org")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *IDENTITY, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def project(folder: Path, *, package_is_part: bool) -> Path:
    """Make a checkout with a package in it; return a file of the package."""
    file = folder / ".venv" / "holdfast" / "checkout.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    (folder / "job.py").write_text("")
    git(folder, "init", "-q")
    git(folder, "add", "-f", "." if package_is_part else "job.py")
    git(folder, "commit", "-q", "-m", "one")
    return file


class TestCommit:
    def test_is_that_of_the_checkout_that_contains_the_package(self, tmp_path: Path) -> None:
        file = project(tmp_path, package_is_part=True)
        assert commit(file) == git(tmp_path, "rev-parse", "--short=12", "HEAD")

    def test_is_not_that_of_a_project_whose_environment_contains_the_package(self, tmp_path: Path) -> None:
        assert commit(project(tmp_path, package_is_part=False)) is None

    def test_is_unknown_outside_a_checkout(self, tmp_path: Path) -> None:
        (tmp_path / "checkout.py").write_text("")
        assert commit(tmp_path / "checkout.py") is None
