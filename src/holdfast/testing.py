"""Test your own job: `from holdfast.testing import TestDriver, chaos_case`; to write a check, `Context, Finding`.

Test your own connector with pytest: `SourceKit, source_conformance` and `SinkKit, sink_conformance`.
One to a server is tested further with `Outages, source_outages, sink_outages`.

Names load at first use: a test under real faults does not load the test driver, and vice versa.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.chaos.cases.cases import chaos_case
    from holdfast.chaos.cases.outcome import Outcome
    from holdfast.chaos.judge.findings import Context, Finding
    from holdfast.runtime.replay.incidents.tested import IncidentReplay
    from holdfast.runtime.testing.driver import TestDriver
    from holdfast.runtime.testing.outages import Outages, sink_outages, source_outages
    from holdfast.runtime.testing.sink_kit import sink_conformance
    from holdfast.runtime.testing.source_kit import SourceKit, source_conformance
    from holdfast.runtime.testing.tested_sink import SinkKit

_HOMES = {
    "Context": "holdfast.chaos.judge.findings",
    "Finding": "holdfast.chaos.judge.findings",
    "Outcome": "holdfast.chaos.cases.outcome",
    "IncidentReplay": "holdfast.runtime.replay.incidents.tested",
    "Outages": "holdfast.runtime.testing.outages",
    "SinkKit": "holdfast.runtime.testing.tested_sink",
    "SourceKit": "holdfast.runtime.testing.source_kit",
    "TestDriver": "holdfast.runtime.testing.driver",
    "chaos_case": "holdfast.chaos.cases.cases",
    "sink_conformance": "holdfast.runtime.testing.sink_kit",
    "sink_outages": "holdfast.runtime.testing.outages",
    "source_conformance": "holdfast.runtime.testing.source_kit",
    "source_outages": "holdfast.runtime.testing.outages",
}

__all__ = [
    "Context",
    "Finding",
    "IncidentReplay",
    "Outages",
    "Outcome",
    "SinkKit",
    "SourceKit",
    "TestDriver",
    "chaos_case",
    "sink_conformance",
    "sink_outages",
    "source_conformance",
    "source_outages",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
