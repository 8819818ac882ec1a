"""Keeps the modules of two versions of a job apart, in one process.

Two folders may both have a `job.py` and a `prices.py` beside it. Python would give the second file the modules of the
first one, and both versions would look the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

INSTALLED = ("site-packages", "dist-packages")
"""Folders of packages that are installed, which both versions share."""


class OwnModules:
    """The modules in the folder of a job's file, which are loaded only while they are entered."""

    def __init__(self, file: str) -> None:
        self._folder = Path(file).absolute().parent
        self._modules: dict[str, ModuleType] = {}

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Import from the folder; other versions do not see what is loaded meanwhile."""
        path = list(sys.path)
        sys.path.insert(0, str(self._folder))
        sys.modules.update(self._modules)
        try:
            yield
        finally:
            self._modules = {name: module for name, module in sys.modules.items() if self._owns(name, module)}
            for name in self._modules:
                del sys.modules[name]
            sys.path[:] = path

    def _owns(self, name: str, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name == "__main__" or name.partition(".")[0] == "holdfast":
            return False
        path = Path(file).absolute()
        return self._folder in path.parents and not any(part in INSTALLED for part in path.parts)
