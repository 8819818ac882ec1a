"""The contract of each kind of capture with `holdfast capture` and `holdfast doctor`; one module per kind fulfils it.

The configuration of a connector names its module, so the commands know no kind. Such a module imports the library that
it needs when it is called, and names it if it is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, TypeAlias, cast

from holdfast.ports import ObjectStore
from holdfast.runtime.plan.source import Captured

Event: TypeAlias = Mapping[str, Any]
"""An event of a capture; its kind is `event`. An event of the kind `advice` has one other entry, `text`."""
Report: TypeAlias = Callable[[dict[str, Any]], None]


class Capturer(Protocol):
    """A module that captures one kind of source."""

    def capture(self, of: Any, report: Report) -> Mapping[str, int]:
        """Capture until SIGINT or SIGTERM; return counts by kind.

        Raises:
            ConfigError: something does not fit, or a library is missing.
            Damaged, NotAdmitted, Unavailable
        """

    def line(self, name: str, of: Any, event: Event) -> str:
        """Return an event as a line for people; the event of the end is `stopped`, with counts.

        Args:
            name: The source.
        """

    def probe(self, of: Any, store: ObjectStore) -> str | None:
        """Return the state of the capture, without changing anything; None: there is nothing to check.

        Raises:
            ConfigError, Damaged, NotAdmitted, Unavailable: it cannot run, and why.
        """


def capturer_of(of: Captured) -> Capturer:
    """Return the module that captures a source."""
    return cast(Capturer, import_module(of.capturer))
