"""Connectors: one object that users write for a system that can be read and written.

`app.source` and `stream.sink` take a connector, and pick the side. A system with one direction needs no connector: its
object is a `Source` or a `Sink` itself.

Source: docs/design/0032-connectors.md.
"""

from __future__ import annotations

from typing import Protocol, cast

from holdfast.runtime.plan.source import Source
from holdfast.sinks.contract import Sink


class Connector(Protocol):
    """A system as users configure it; cheap, picklable, nothing is opened."""

    def source(self) -> Source:
        """Return the side that is read."""

    def sink(self) -> Sink:
        """Return the side that is written."""


def source_of(given: Source | Connector) -> Source:
    """Return what is read: the source side of a connector, anything else as it is."""
    return cast(Connector, given).source() if _has(given, "source") else cast(Source, given)


def sink_of(given: Sink | Connector) -> Sink:
    """Return what is written: the sink side of a connector, anything else as it is."""
    return cast(Connector, given).sink() if _has(given, "sink") else cast(Sink, given)


def _has(given: object, side: str) -> bool:
    return not isinstance(given, type) and callable(getattr(type(given), side, None))
