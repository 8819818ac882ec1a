"""Holdfast: fault-tolerant stateful stream processing in Python on Spark.

import holdfast as hf

Names load at first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import errors as errors
    from holdfast import testing as testing
    from holdfast.errors import (
        ConfigError,
        Damaged,
        Fenced,
        HoldfastError,
        JobFailed,
        Unavailable,
    )
    from holdfast.runtime.aggregates import count, max, mean, min, sum
    from holdfast.runtime.app import App
    from holdfast.runtime.rowtypes import Row
    from holdfast.runtime.sources.generator import Generator
    from holdfast.runtime.sources.log import Log
    from holdfast.runtime.windows import calendar, hopping, session, tumbling
    from holdfast.sinks.sqlite import SQLite

_MODULES = {"errors": "holdfast.errors", "testing": "holdfast.testing"}
_HOMES = {
    "App": "holdfast.runtime.app",
    "count": "holdfast.runtime.aggregates",
    "sum": "holdfast.runtime.aggregates",
    "min": "holdfast.runtime.aggregates",
    "max": "holdfast.runtime.aggregates",
    "mean": "holdfast.runtime.aggregates",
    "Row": "holdfast.runtime.rowtypes",
    "tumbling": "holdfast.runtime.windows",
    "hopping": "holdfast.runtime.windows",
    "session": "holdfast.runtime.windows",
    "calendar": "holdfast.runtime.windows",
    "Log": "holdfast.runtime.sources.log",
    "Generator": "holdfast.runtime.sources.generator",
    "SQLite": "holdfast.sinks.sqlite",
    "HoldfastError": "holdfast.errors",
    "ConfigError": "holdfast.errors",
    "Damaged": "holdfast.errors",
    "Unavailable": "holdfast.errors",
    "Fenced": "holdfast.errors",
    "JobFailed": "holdfast.errors",
}

__all__ = [
    "App",
    "ConfigError",
    "Damaged",
    "Fenced",
    "Generator",
    "HoldfastError",
    "JobFailed",
    "Log",
    "Row",
    "SQLite",
    "Unavailable",
    "calendar",
    "count",
    "errors",
    "hopping",
    "max",
    "mean",
    "min",
    "session",
    "sum",
    "testing",
    "tumbling",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    home = _HOMES.get(name)
    if home is None:
        if name.startswith("_"):
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        unsupported = import_module("holdfast.runtime.unsupported")
        raise unsupported.no_attribute("hf", name, unsupported.MODULE, __all__)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
