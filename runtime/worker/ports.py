"""The interfaces that a worker needs, in production, in the test driver and in the simulator alike.

Source: DESIGN section 2.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.ports import Clock, Lane, ObjectStore
from holdfast.runtime.wire import messages as m
from holdfast.runtime.wire.channels import Network
from holdfast.runtime.worker.local.opened import LocalState


class SubtaskPorts(Protocol):
    """The interfaces that a worker needs."""

    @property
    def clock(self) -> Clock: ...
    @property
    def store(self) -> ObjectStore: ...
    @property
    def network(self) -> Network: ...
    @property
    def local(self) -> LocalState: ...

    def send(self, message: m.FromWorker) -> None:
        """Send to the driver; may be lost."""

    def lane(self, name: str) -> Lane:
        """Return the lane of this name; its results are handed to `done` between turns."""
