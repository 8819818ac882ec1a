"""The two ends of a control stream, as the streams and channels between processes know them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.chaos.sim.faults.schedule import Process
from holdfast.model import WorkerId
from holdfast.runtime.wire import messages as m


class WorkerEnd(Process, ABC):
    """A worker, for what reaches it from outside."""

    id: WorkerId

    @abstractmethod
    def received(self, message: m.FromDriver) -> None:
        """A message of the driver arrived."""

    @abstractmethod
    def stream_closed(self, why: str) -> None:
        """The control stream closed."""

    @abstractmethod
    def wake(self, delay: float) -> None:
        """Let the loop have a turn soon, if it has none before."""


class DriverEnd(Process, ABC):
    """A driver, for what reaches it from outside."""

    @abstractmethod
    def received(self, message: m.FromWorker) -> None:
        """A worker said something."""

    @abstractmethod
    def stream_closed(self, worker: WorkerEnd, why: str) -> None:
        """A worker's stream closed."""

    @abstractmethod
    def launch_ended(self, number: int, why: str) -> None:
        """The Spark job of a worker ended."""
