"""Test your own job: `from holdfast.testing import TestDriver, chaos_case`; for a check, `Context, Finding`.

Names load at first use: a test under real faults needs nothing of the test driver, and the other way round.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.chaos.cases import Outcome, chaos_case
    from holdfast.chaos.findings import Context, Finding
    from holdfast.runtime.testing import TestDriver

_HOMES = {
    "Context": "holdfast.chaos.findings",
    "Finding": "holdfast.chaos.findings",
    "Outcome": "holdfast.chaos.cases",
    "TestDriver": "holdfast.runtime.testing",
    "chaos_case": "holdfast.chaos.cases",
}

__all__ = ["Context", "Finding", "Outcome", "TestDriver", "chaos_case"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
