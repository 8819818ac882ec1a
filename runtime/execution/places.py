"""The seam between resident workers and where their processes run: as Spark tasks, or as processes of this machine.

Source: docs/decisions/0113-local-processes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from holdfast.runtime.config.settings import Settings
from holdfast.runtime.driver.state import Site
from holdfast.runtime.execution.executing import Ports
from holdfast.runtime.execution.prepare import Prepared
from holdfast.runtime.processes.host import WorkerTask


class Processes(Protocol):
    """Starts and ends the worker processes of one run."""

    def launch(self, number: int, avoid: Sequence[Site]) -> None:
        """Start one worker, elsewhere than in these places if there is a choice; its end is reported."""

    def cancel(self, number: int) -> None:
        """End the worker of a launch."""

    def warm_up(self, workers: int) -> None:
        """Prepare for further launches, beside this number of workers."""

    def close(self, *, hurry: bool) -> None:
        """End the started processes; with `hurry`, wait for none."""


LaunchEnded: TypeAlias = Callable[[int, str | None], None]
"""Called from any thread with the number of a launch and why it ended, None if its worker left as it should."""


@dataclass(frozen=True)
class Started:
    """A place that has started and hosts the workers of one run."""

    host: str
    """Address at which workers reach the driver."""
    settings: Settings
    """Those of the run, with as many standbys as it can host."""
    container: int | None
    """Bytes that the executor's container leaves each worker; None: there is none."""
    processes: Callable[[WorkerTask, LaunchEnded], Processes]


class WorkerPlace(Protocol):
    """Where worker processes run."""

    def start(self, prepared: Prepared, ports: Ports) -> Started:
        """Start the host of the workers.

        Raises:
            ConfigError: it cannot host all of them.
            Unavailable: it does not start.
        """
