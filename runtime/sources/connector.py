"""Connectors: one object that users write for a system that can be read and written.

`app.source`, `stream.sink` and `hf.App(changelog=)` take a connector, and pick the side. A system with one direction
needs no connector: its object is a `Source` or a `Sink` itself.

Source: docs/decisions/0032-connectors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from holdfast.errors import ConfigError
from holdfast.runtime.plan.source import Source
from holdfast.sinks.contract.changelogs import ROOT, Changelog
from holdfast.sinks.contract.sink import Sink


class SourceConnector(Protocol):
    """A system that can be read, as users configure it; cheap, picklable, nothing is opened."""

    def source(self) -> Source:
        """Return the side that is read."""


class Connector(SourceConnector, Protocol):
    """A system that can be read and written, as users configure it."""

    def sink(self) -> Sink:
        """Return the side that is written."""


class ChangelogConnector(Protocol):
    """A system that can hold the changelog of a job."""

    @classmethod
    def placed(cls, place: Mapping[str, str]) -> ChangelogConnector:
        """Return the connector for what `Changelog.place` returned, without `kind`: for commands that read state."""

    def changelog(self) -> Changelog:
        """Return it as the place of a changelog. Raises ConfigError if it is not configured as one."""


def source_of(given: Source | SourceConnector) -> Source:
    """Return what is read: the source side of a connector, anything else as it is."""
    return cast(SourceConnector, given).source() if _has(given, "source") else cast(Source, given)


def sink_of(given: Sink | Connector) -> Sink:
    """Return what is written: the sink side of a connector, anything else as it is."""
    return cast(Connector, given).sink() if _has(given, "sink") else cast(Sink, given)


def changelog_of(given: object) -> Changelog:
    """Return the place of a changelog that is given as "root" or as a connector.

    Raises:
        ConfigError: it can hold no changelog.
    """
    if isinstance(given, str) and given == "root":
        return ROOT
    if _has(given, "changelog"):
        return cast(ChangelogConnector, given).changelog()
    raise ConfigError(
        f"changelog={given!r} cannot hold the changelog of a job",
        not_done="the job was not planned",
        next_step='leave it out, or give a log or a topic, for example changelog=hf.Log("data/changelog")',
    )


def _has(given: object, side: str) -> bool:
    return not isinstance(given, type) and callable(getattr(type(given), side, None))
