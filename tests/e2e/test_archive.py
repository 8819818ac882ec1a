"""The archive of Spark's classes with a real JVM: the second start stores it, the third reads it, and none needs it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import patience
import pytest

from holdfast.runtime.spark.archive import FOLDER
from holdfast.runtime.spark.jvm import STORING

START = """
from holdfast.runtime.spark.launch import start_context
context = start_context("archive", "local[1]", 1)
maps = open(f"/proc/{context._gateway.proc.pid}/maps").read()
print(any(".jsa" in line and "holdfast-spark" in line for line in maps.splitlines()))
"""


@pytest.fixture
def caches(tmp_path: Path) -> Path:
    """The caches of a user who has started nothing yet."""
    caches = tmp_path / "caches"
    caches.mkdir()
    return caches


def start(caches: Path, folder: Path) -> tuple[bool, str]:
    """Start and end a JVM as a user does; return whether it has mapped an archive of this user, and what it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment |= {"XDG_CACHE_HOME": str(caches), "SPARK_LOCAL_IP": "127.0.0.1"}
    status, out, errors = patience.run([sys.executable, "-c", START], folder, "a start of Spark's JVM", environment)
    assert status == 0, errors
    return out == "True\n", re.sub(r"(?m)^\S+ \S+ WARN", "WARN", errors)


@pytest.mark.e2e
class TestArchive:
    def test_is_stored_by_the_second_start_and_read_by_the_third(self, caches: Path, tmp_path: Path) -> None:
        mapped, quiet = start(caches, tmp_path)
        assert not mapped and "Storing" not in quiet
        mapped, said = start(caches, tmp_path)
        (stored,) = (caches / FOLDER).glob("*.jsa")
        assert not mapped and said.replace(f"{STORING.format(stored)}\n", "") == quiet
        assert start(caches, tmp_path) == (True, quiet)
        assert [file.suffix for file in sorted((caches / FOLDER).iterdir())] == [".jsa", ".starts"]

    def test_a_damaged_archive_is_ignored_silently(self, caches: Path, tmp_path: Path) -> None:
        for _ in range(2):
            start(caches, tmp_path)
        (stored,) = (caches / FOLDER).glob("*.jsa")
        stored.chmod(0o600)
        stored.write_bytes(b"damaged" * 1_000)
        mapped, said = start(caches, tmp_path)
        assert not mapped and "jsa" not in said and "rchive" not in said
