"""Keyed state beside the computation: tables and their store, the changelog, images and copies on the local disk.

Only paging/ and local/ touch files of this machine. Nothing here decides about epochs. The package can be called,
because users read state with `hf.state(...)`, and importing any module of this package gives `holdfast` that attribute.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, job: str, operator: str, epoch: int | str | None = None, root: str | None = None) -> Any:
        """Read the committed state of an operator as a Polars frame: see runtime/inspect/frame.py."""
        return import_module("holdfast.runtime.inspect.frame").state(job, operator, epoch, root)


sys.modules[__name__].__class__ = _Callable
