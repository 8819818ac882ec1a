"""Keeps compiled kernels on disk, so that only the first process of an installation compiles.

The folder is `__pycache__` beside this module. Where that cannot be written (a read-only installation, a zip),
it is a folder of the user below XDG_CACHE_HOME, or else below the folder for temporary files. If none is safe, kernels
are compiled in memory.

A file's name holds a hash of everything that its content depends on: the sources of all kernels, the versions of
Python and Numba, the signature, the processor. Its content begins with its own hash.

Invariants
    - Machine code is never loaded from a folder that another user can write, except from beside the source code, where
      that user could also replace the source.
    - A file is replaced as a whole: processes that compile at the same time write equal files.
    - A damaged file is compiled again and replaced.

Source: numba.core.caching, whose index files neither notice damage nor changes of functions in other modules.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult

from holdfast.caches import is_private, user_caches
from holdfast.state.compiled.digest import sources_digest

_DIGEST_BYTES = 32


class KernelCache(NullCache):
    """The cache of one kernel, as Numba's dispatcher calls it."""

    def __init__(self, function: Any) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._package = function.__module__.rpartition(".")[0]

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the compiled kernel; None if it is not cached."""
        folder = cache_folder()
        if folder is None:
            return None
        target.refresh()
        try:
            data = (folder / self._file(signature, target)).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[_DIGEST_BYTES:]).digest() != data[:_DIGEST_BYTES]:
            return None
        rebuild: Any = CompileResult._rebuild
        return rebuild(target, *pickle.loads(data[_DIGEST_BYTES:]))  # noqa: S301 - from a safe folder

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store a kernel that was compiled now; without space or permission it stays in memory."""
        folder = cache_folder()
        if folder is None:
            return
        dumps: Any = serialize.dumps
        body = dumps(compiled._reduce())
        file = folder / self._file(signature, compiled.target_context)
        try:
            handle, name = tempfile.mkstemp(dir=folder, prefix=f"{file.name}.")
            try:
                with os.fdopen(handle, "wb") as written:
                    written.write(hashlib.sha256(body).digest() + body)
                os.replace(name, file)
            except OSError:
                os.unlink(name)
        except OSError:
            return

    def _file(self, signature: Any, target: Any) -> str:
        depends = (
            self._name,
            str(signature),
            target.codegen().magic_tuple(),
            sources_digest(self._package),
            numba.__version__,
            sys.version,
        )
        return f"{self._name}.{hashlib.sha256(repr(depends).encode()).hexdigest()[:32]}.kernel"


@cache
def cache_folder() -> Path | None:
    """Return where kernels are cached; None if there is no safe folder."""
    beside = Path(__file__).parent / "__pycache__"
    if _writable(beside):
        return beside
    own = (user_caches() / "holdfast-kernels", Path(tempfile.gettempdir()) / f"holdfast-kernels-{os.geteuid()}")
    return next((folder for folder in own if is_private(folder)), None)


def _writable(folder: Path) -> bool:
    """Return whether files can be created in a folder beside source files."""
    if not folder.parent.is_dir():  # a module in a zip
        return False
    try:
        folder.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
