"""A hash of the sources of all kernels: kernels and images that other sources made are not used.

I/O: the modules' own files.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

_PACKAGES = ("holdfast.state.compiled", "holdfast.state.keys", "holdfast.state.tables.kernels")


@cache
def sources_digest(package: str = _PACKAGES[0]) -> str:
    """Return a hash of the source of every module that kernels of a package are compiled from.

    Args:
        package: One of `_PACKAGES`; or another, whose kernels are compiled from its own modules and from theirs.
    """
    digest = hashlib.sha256()
    for each in (*_PACKAGES, *({package} - set(_PACKAGES))):
        for file in sorted(resources.files(each).iterdir(), key=lambda file: file.name):
            if file.name.endswith(".py"):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
