"""The code and the packages that a replay depends on: recorded with an incident, and compared when it is replayed."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from importlib import metadata

import holdfast
from holdfast.runtime.replay.incidents.incident import About

LOOKED_AT = ("holdfast", "python", "polars", "pyarrow", "numpy")
"""Packages whose versions may change results of any job."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of all installed packages."""
    packages = {each.name: each.version for each in metadata.distributions()}
    return packages | {"python": platform.python_version(), "holdfast": holdfast.__version__}


def code_of(path: str) -> dict[str, str]:
    """Return the SHA-256 of a job's file, by its name."""
    with open(path, "rb") as file:
        return {os.path.basename(path): hashlib.sha256(file.read()).hexdigest()}


def changes_since(about: About, path: str) -> list[str]:
    """Return what differs from when an incident was written: the job's file, and packages that any job depends on."""
    return [*_files(about.code, code_of(path)), *_packages(about.versions, versions())]


def _files(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    if set(then.values()) != set(now.values()):
        yield f"the job's file, {', '.join(now)}"


def _packages(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in LOOKED_AT:
        if name in then and then[name] != now.get(name):
            yield f"{name}: {then[name]} then, {now.get(name, 'not installed')} now"
