"""The two ends of a control stream, as streams and channels see them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.chaos.sim.faults.schedule import Process
from holdfast.model import WorkerId
from holdfast.runtime.wire import messages as m


class WorkerEnd(Process, ABC):
    """A worker, as the recipient of events from outside."""

    id: WorkerId

    @abstractmethod
    def received(self, message: m.FromDriver) -> None:
        """A message from the driver arrived."""

    @abstractmethod
    def stream_closed(self, why: str) -> None:
        """The control stream closed."""

    @abstractmethod
    def wake(self, delay: float) -> None:
        """Schedule a turn of the loop soon, unless one is due earlier."""


class DriverEnd(Process, ABC):
    """A driver, as the recipient of events from outside."""

    @abstractmethod
    def received(self, message: m.FromWorker) -> None:
        """A message from a worker arrived."""

    @abstractmethod
    def stream_closed(self, worker: WorkerEnd, why: str) -> None:
        """A worker's stream closed."""

    @abstractmethod
    def launch_ended(self, number: int, why: str) -> None:
        """The Spark job of a worker ended."""
